// The spelling of JSON strings, byte by byte: the inside of a string whose decoded text an
// automaton accepts. A byte is refused unless the text can still end well after it, and each state
// knows its least bytes to an end. Pure. Rules that readers of an answer may rely on: a string is
// valid UTF-8, with any escape of RFC 8259, and surrogates in pairs. A pattern applies to the
// decoded text, and lengths count its code points.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hub/api/grammar/byte_automaton.h"
#include "hub/api/grammar/json_number.h"

namespace moex {

// The state within a text: inside a JSON string (`escaped`), or inside a plain text.
struct TextState {
    ByteAutomaton::State state = 0;
    std::uint32_t escape = 0;  // bits of an escape that is open (see json_text.cpp); 0: none
    bool operator==(const TextState&) const = default;
};
std::optional<TextState> step_text(const ByteAutomaton& texts, bool escaped, TextState at,
                                   unsigned char byte);
bool may_end_text(const ByteAutomaton& texts, TextState at);
std::uint32_t least_text(const ByteAutomaton& texts, bool escaped, TextState at);
// Returns the bytes that the decoded text gains by the next `byte` of a JSON string; often no
// bytes.
std::string decoded_by(TextState before, unsigned char byte);
// Returns true if the next byte of a JSON string begins a code point of the decoded text.
bool begins_code_point(bool escaped, TextState before, unsigned char byte);
// Returns the number of code points that begin in `next`, which must be valid bytes after the state
// `at`.
std::uint64_t code_points_in(bool escaped, TextState at, std::string_view next);

}  // namespace moex
