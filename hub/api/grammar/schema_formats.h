// What a schema says of a string's text: its patterns and formats as one automaton.
#pragma once

#include "hub/api/grammar/byte_automaton.h"
#include "hub/model/json_fields.h"

namespace moex {

// Of `pattern` and `format`; any_text() without them. Lengths are apart. Formats: date-time, date,
// time, uuid, email, ipv4, each within what RFC 3339, RFC 4122, RFC 5321 and RFC 791 allow; days
// fit their month, and there are no leap seconds.
Result<SharedAutomaton> string_texts(const OrderedJson& schema);

}  // namespace moex
