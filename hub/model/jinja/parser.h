// Tokens → syntax tree. Everything the evaluator cannot do is refused here by name and line, so
// that a checkpoint's template fails when it is packed and not in a chat.
#pragma once

#include <string_view>

#include "hub/model/jinja/syntax.h"

namespace moex::jinja {

// Throws Failure.
Body parse_template(std::string_view source);

}  // namespace moex::jinja
