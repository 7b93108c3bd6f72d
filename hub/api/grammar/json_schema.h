// JSON schema (draft 2020-12) to a grammar. What it means here, beside the standard:
//   members come in the schema's order, further ones behind them; no name comes twice, however it
//   is spelled; a further member never has a declared name;
//   one form of white space: a blank behind ':' and ',';
//   strings and numbers as hub/api/grammar/json_text.h writes them; a string from `enum`, `const`
//   or a member's name in its shortest form;
//   at most GrammarLimits::depth_max levels inside each other.
// Refused by name, with the path: what is no part of it (not, oneOf, if, patternProperties,
// uniqueItems, contains, minProperties, maxProperties, multipleOf, unevaluated*, dependent*,
// propertyNames, references to elsewhere, other formats), and a schema that nothing satisfies.
// Keywords that only describe are passed over.
#pragma once

#include <memory>

#include "hub/api/grammar/grammar.h"
#include "hub/model/json_fields.h"
#include "protocol/result.h"

namespace moex {

// `name` stands in front of paths in errors, e.g. "schema".
Result<std::shared_ptr<const Grammar>> grammar_of_schema(const OrderedJson& schema,
                                                         std::string_view name);

// The schema as part of a larger grammar: adds its nodes, returns its own.
Result<NodeId> add_schema(std::vector<GrammarNode>& nodes, const OrderedJson& schema,
                          std::string_view name);

}  // namespace moex
