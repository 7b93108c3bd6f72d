// Arguments of a call that are written as parameters, e.g. <parameter=a>\n1\n</parameter>, instead
// of one JSON object.
// A value whose schema allows texts alone is the text itself, up to the closing tag. Any other
// value is JSON. So a text that contains the closing tag cannot be written, and bounds on a text do
// not hold: they are listed as weakened.
#pragma once

#include <string>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/json_schema.h"
#include "hub/api/jobs/call_syntax.h"
#include "hub/api/openai_request.h"

namespace moex {

// Adds the grammar of a tool's arguments as parameters, in the order of the schema.
Result<NodeId> add_parameters(std::vector<GrammarNode>& nodes, const Tool& tool,
                              const CallSyntax& syntax, bool closes_objects,
                              std::vector<Weakening>& weakened);

// Returns the JSON of a parameter's value, as an API's client expects it.
std::string parameter_json(const Tool* tool, const std::string& key, const std::string& value);

}  // namespace moex
