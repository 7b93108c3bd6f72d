// Validates a value against a schema of the supported subset: for values that a schema lists, and,
// as a slow second check of the grammar, for answers in tests.
#pragma once

#include <functional>
#include <string>

#include "hub/model/json_fields.h"
#include "protocol/result.h"

namespace moex {

// A ResolveReference returns the target of a schema's $ref.
using ResolveReference = std::function<const OrderedJson&(const OrderedJson&)>;
Result<bool> schema_admits(const OrderedJson& schema, const OrderedJson& value,
                           const ResolveReference& resolve, std::uint32_t depth = 0);

// Compares two values as JSON Schema does: 1 equals 1.0, and members have no order.
bool same_value(const OrderedJson& a, const OrderedJson& b);

// Writes a JSON value in the only spelling that answers use.
std::string json_text(const OrderedJson& value);

}  // namespace moex
