// Compiles a JSON Schema (draft 2020-12) into a grammar. Answers follow the standard and these
// further rules:
//   - Members have the order of the schema, and further members follow them. No name occurs twice,
//     however it is spelled, and a further member never has a declared name.
//   - There is one form of white space: a blank after ':' and ','.
//   - Strings and numbers are spelled as hub/api/grammar/json_text.h defines. A string from `enum`
//     or `const`, and a declared name, have their shortest form.
//   - At most GrammarLimits::depth_max levels are nested.
// Refused by name, with the path: keywords that are not supported (not, oneOf, if,
// patternProperties, uniqueItems, contains, minProperties, maxProperties, multipleOf, unevaluated*,
// dependent*, propertyNames, references to other documents, other formats), and a schema that no
// value satisfies. Keywords that only describe are ignored.
#pragma once

#include <memory>

#include "hub/api/grammar/grammar.h"
#include "hub/model/json_fields.h"
#include "protocol/result.h"

namespace moex {

// `name` is the first part of every path in an error message, e.g. "schema" in
// "schema.properties.a: ...".
Result<std::shared_ptr<const Grammar>> grammar_of_schema(const OrderedJson& schema,
                                                         std::string_view name);

// Adds the nodes of a schema to a larger grammar, and returns the root node of the schema.
Result<NodeId> add_schema(std::vector<GrammarNode>& nodes, const OrderedJson& schema,
                          std::string_view name);

}  // namespace moex
