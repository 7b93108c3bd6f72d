// Filters that make a text of a text; filters.cpp has their table, and all others.
#pragma once

#include "hub/model/jinja/renderer.h"

namespace moex::jinja {

// What string filters see: the printed value.
MarkedText soft_text(Renderer& renderer, const Value& value);
// An argument that is true or false.
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
