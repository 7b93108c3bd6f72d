// The patterns and formats that a schema sets for a string, combined into one automaton.
#pragma once

#include "hub/api/grammar/byte_automaton.h"
#include "hub/model/json_fields.h"

namespace moex {

// Returns an automaton for `pattern` and `format`, or any_text() if the schema has neither. Bounds
// on the length are not included. Formats: date-time, date, time, uuid, email, ipv4, each within
// what RFC 3339, RFC 4122, RFC 5321 and RFC 791 allow. Days fit their month, and there are no leap
// seconds.
Result<SharedAutomaton> string_texts(const OrderedJson& schema);

}  // namespace moex
