// Compiles a JSON Schema (draft 2020-12, and the spellings of older drafts) into a grammar. Answers
// follow the standard and these further rules:
//   - Members have the order of the schema, and further members follow them. No name occurs twice,
//     however it is spelled, and a further member never has a declared name.
//   - An object whose schema declares `properties` has no further members, unless the schema allows
//     them by `additionalProperties` or `patternProperties` (SchemaReading::closes_objects).
//   - There is one form of white space: a blank after ':' and ','.
//   - Strings and numbers are spelled as hub/api/grammar/json_text.h and json_number.h define. A
//     string from `enum` or `const`, and a declared name, have their shortest form.
//   - A `format` that the hub does not know is an annotation, as the standard has it.
//   - The items that `contains` asks for are the first ones.
//   - At most GrammarLimits::depth_max levels are nested.
// A keyword that the grammar cannot hold is refused by name, with its path, or left out and listed
// (SchemaReading::weakens). So is a schema that no value satisfies. Keywords that only describe are
// ignored. schema_document.h has the keywords and their translations.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/schema_reading.h"
#include "hub/model/json_fields.h"
#include "protocol/result.h"

namespace moex {

// `name` is the first part of every path in an error message, e.g. "schema" in
// "schema.properties.a: ...". `weakened` gets the keywords that a weakening reading left out; it
// may be null.
Result<std::shared_ptr<const Grammar>> grammar_of_schema(
    const OrderedJson& schema, std::string_view name, SchemaReading reading = {},
    std::vector<Weakening>* weakened = nullptr);

// Adds the nodes of a schema to a larger grammar, and returns the root node of the schema.
Result<NodeId> add_schema(std::vector<GrammarNode>& nodes, const OrderedJson& schema,
                          std::string_view name, SchemaReading reading = {},
                          std::vector<Weakening>* weakened = nullptr);

// Adds the nodes of a schema inside the document `root`, to which its references refer.
Result<NodeId> add_schema_part(std::vector<GrammarNode>& nodes, const OrderedJson& root,
                               const OrderedJson& part, std::string_view name,
                               SchemaReading reading = {},
                               std::vector<Weakening>* weakened = nullptr);

// Adds the nodes of a schema whose grammar may accept more than the schema does, but never refuses
// the schema. If a limit is exceeded, or if no value satisfies the schema, the values are any
// objects; `weakened` then names the keyword "schema".
Result<NodeId> add_weakened_schema(std::vector<GrammarNode>& nodes, const OrderedJson& schema,
                                   std::string_view name, bool closes_objects,
                                   std::vector<Weakening>& weakened);

}  // namespace moex
