// Whether a schema of this subset admits a value: for values that a schema lists, and, as a slow
// twin, for answers in tests.
#pragma once

#include <functional>
#include <string>

#include "hub/model/json_fields.h"
#include "protocol/result.h"

namespace moex {

// `resolve` gives the target of a schema's $ref.
using ResolveReference = std::function<const OrderedJson&(const OrderedJson&)>;
Result<bool> schema_admits(const OrderedJson& schema, const OrderedJson& value,
                           const ResolveReference& resolve, std::uint32_t depth = 0);

// Equal as JSON schema means it: 1 is 1.0, and members have no order.
bool same_value(const OrderedJson& a, const OrderedJson& b);

// A value in the one form that answers have.
std::string json_text(const OrderedJson& value);

}  // namespace moex
