// Filters that convert a text to a text. filters.cpp has the table of all filters, and all filters
// of other kinds.
#pragma once

#include "hub/model/jinja/renderer.h"

namespace moex::jinja {

// Returns a value in its printed form, which is the input of string filters.
MarkedText soft_text(Renderer& renderer, const Value& value);
// Returns an argument as true or false. Returns `otherwise` if the argument is absent.
bool flag(const CallArguments& arguments, std::size_t position, std::string_view name,
          bool otherwise = false);

Value filter_indent(Renderer& renderer, const Value& operand, const CallArguments& arguments);
Value filter_trim(Renderer& renderer, const Value& operand, const CallArguments& arguments);
Value filter_replace(Renderer& renderer, const Value& operand, const CallArguments& arguments);
Value filter_escape(Renderer& renderer, const Value& operand, const CallArguments& arguments);
Value filter_center(Renderer& renderer, const Value& operand, const CallArguments& arguments);
Value filter_truncate(Renderer& renderer, const Value& operand, const CallArguments& arguments);
Value filter_wordcount(Renderer& renderer, const Value& operand, const CallArguments& arguments);

}  // namespace moex::jinja
