// Tokens → syntax tree. Everything the evaluator cannot do is refused here by name and line, so
// that a checkpoint's template fails when it is packed and not in a chat.
#pragma once

#include <string_view>

#include "hub/model/jinja/syntax.h"

namespace moex::jinja {

// Throws Failure.
Body parse_template(std::string_view source);

// What the evaluator knows; the parser refuses other names.
bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);
bool is_known_function(std::string_view name);
bool is_known_method(std::string_view name);  // of any kind of value

}  // namespace moex::jinja
