// The names of filters, tests and methods that templates may use. The parser refuses other names.
// Each table is in the file that implements its names: filters.cpp, is_tests.cpp, methods.cpp.
#pragma once

#include <string_view>

namespace moex::jinja {

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);
bool is_known_function(std::string_view name);
bool is_known_method(std::string_view name);  // of any kind of value

}  // namespace moex::jinja
