// Parses the source of a template to a syntax tree. The parser refuses every construct that the
// evaluator cannot compute, with its name and line. A template with such a construct therefore
// fails when the checkpoint is packed, not during a chat.
#pragma once

#include <string_view>

#include "hub/model/jinja/syntax.h"

namespace moex::jinja {

// Parses a whole template. Throws a Failure on a syntax error or an unsupported construct.
Body parse_template(std::string_view source);

}  // namespace moex::jinja
