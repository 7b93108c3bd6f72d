// The patterns and formats that a schema sets for a string, combined into one automaton.
#pragma once

#include <string>

#include "hub/api/grammar/byte_automaton.h"
#include "hub/model/json_fields.h"

namespace moex {

// Returns an automaton for `pattern` and `format`, or any_text() if the schema has neither. Bounds
// on the length are not included. Formats: date-time, date, time, uuid, email, ipv4, hostname and
// uri, each within what RFC 3339, RFC 4122, RFC 5321, RFC 791, RFC 1123 and RFC 3986 allow. Days
// fit their month, and there are no leap seconds. Any other format is an annotation without effect.
Result<SharedAutomaton> string_texts(const OrderedJson& schema);

// Returns the automaton of the texts in which a pattern is found.
Result<SharedAutomaton> automaton_of_pattern(const std::string& pattern);
// Returns the automaton of a format; null: the format is an annotation.
Result<SharedAutomaton> automaton_of_format(const std::string& format);

}  // namespace moex
