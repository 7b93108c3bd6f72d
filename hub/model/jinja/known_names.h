// The names of filters, tests and methods that templates may use. The parser refuses all other
// names. Each table of names is in the file that implements them: filters.cpp, is_tests.cpp,
// methods.cpp.
#pragma once

#include <string_view>

namespace moex::jinja {

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);
bool is_known_function(std::string_view name);
bool is_known_method(std::string_view name);  // true if any kind of value has the method

}  // namespace moex::jinja
