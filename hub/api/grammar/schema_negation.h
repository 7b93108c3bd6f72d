// The schema of all values that another schema refuses, which `not` and `if` need.
//
// The problem: an automaton of a schema cannot be turned around, because a JSON value is no regular
// text. The way taken: each keyword that restricts values has a counterpart that accepts exactly
// what it refuses, and a schema refuses what one of its keywords refuses. Example:
//   {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}
// is refused by objects without "kind", and by those whose "kind" is another value:
//   {"anyOf": [{"type": "object", "properties": {"kind": false}},
//              {"type": "object", "properties": {"kind": ...}, "required": ["kind"]}]}
// Limits: a keyword without a counterpart (pattern, format, items, oneOf, ...), or a schema that is
// too large, has no negation.
#pragma once

#include <optional>
#include <string>

#include "hub/api/grammar/schema_document.h"

namespace moex {

// nullopt: no negation is known.
std::optional<OrderedJson> negated_schema(const SchemaDocument& document, const OrderedJson& schema,
                                          const std::string& path);

}  // namespace moex
