// Validates a value against a schema: for values that a schema lists, for a SchemaJudge, and, as a
// slow second check of the grammar, for answers in tests.
#pragma once

#include <functional>
#include <string>

#include "hub/api/grammar/byte_automaton.h"
#include "hub/model/json_fields.h"
#include "protocol/result.h"

namespace moex {

// A ResolveReference returns the target of a schema's $ref.
using ResolveReference = std::function<const OrderedJson&(const OrderedJson&)>;
// Returns an error if the value cannot be judged: a keyword is not supported (unevaluated* and
// dynamic references), or the steps exceed their bound.
Result<bool> schema_admits(const OrderedJson& schema, const OrderedJson& value,
                           const ResolveReference& resolve);
// Judges in the same way, with patterns that the caller has compiled.
using FindPattern = std::function<Result<SharedAutomaton>(const std::string&)>;
Result<bool> schema_admits(const OrderedJson& schema, const OrderedJson& value,
                           const ResolveReference& resolve, const FindPattern& pattern);

// Compares two values as JSON Schema does: 1 equals 1.0, and members have no order.
bool same_value(const OrderedJson& a, const OrderedJson& b);

// Writes a JSON value in the only spelling that answers use.
std::string json_text(const OrderedJson& value);

}  // namespace moex
