// The names of filters, tests and functions that templates may use. Any other name fails when a
// rendering reaches it, as in Jinja: a template may have branches that no chat reaches. Each table
// of names is in the file that implements them: filters.cpp, is_tests.cpp, methods.cpp.
#pragma once

#include <string_view>

namespace moex::jinja {

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);
bool is_known_function(std::string_view name);

}  // namespace moex::jinja
