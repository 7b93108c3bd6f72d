// Chooses the device that computes an answer: this one (a browser that holds the whole model), the
// hub, or both: the hub computes the keys and values of the prompt and hands them off, and this
// device writes the answer. Pure functions, which the native tests and the tab's module share.
//   prompt of 2,000 tokens, answer of 100; here 400 and 40 tokens/s, hub 4,000 and 60 tokens/s,
//   8 KB of rows a token over 100 Mbit/s, round trip 20 ms:
//     here 5.0 + 2.5 = 7.5 s, hub 0.52 + 1.7 = 2.2 s, hand-off max(0.5, 1.3) + 2.5 = 3.9 s
// Where a rate of a computer was not measured yet, the thresholds of the design document decide,
// which need no rates: local if the user says so, the hub if this device has too little memory, a
// hand-off for prompts of more than 1,024 tokens over less than 80 ms. Source: the design "agentic
// browsers", routing policy; its constants for one model are replaced by the sizes of the model at
// hand.
#pragma once

#include <array>
#include <cstdint>

namespace moex {

enum class AnswerPlace : std::uint8_t { nowhere, here, hub, handed };
const char* answer_place_name(AnswerPlace place);

// The devices that the user allows to read the words.
enum class WordsMayGo : std::uint8_t { nowhere, to_hub };

// Measured rates of one computer; 0: not measured yet.
struct ModelSpeed {
    double prompt_tokens_per_s = 0, answer_tokens_per_s = 0;
};

struct RouteFacts {
    std::uint32_t prompt_tokens = 0, answer_tokens = 0;  // the latter is an estimate
    std::uint32_t held_tokens = 0;     // tokens of the prompt with keys and values on this device
    std::uint32_t context_tokens = 0;  // of the model here; 0: no model is loaded here
    std::uint32_t hub_context_tokens = 0;
    WordsMayGo words = WordsMayGo::nowhere;
    bool hub_answers = false;    // the hub was reached a moment ago
    bool hub_hands_off = false;  // it hands off keys and values that this device can use
    bool battery_is_low = false;
    ModelSpeed here, hub;
    double bytes_per_s = 0;          // of the connection to the hub; 0: unknown, counts as fast
    double round_trip_s = 0;         // 0: not measured yet
    double f16_bytes_per_token = 0;  // keys and values of a token, as the hub sends them
    double u8_bytes_per_token = 0;
};

struct RouteChoice {
    AnswerPlace place = AnswerPlace::nowhere;
    bool is_measured = false;  // false: chosen by the thresholds
    // Expected seconds to the last token, by AnswerPlace; infinite: that way cannot work, or its
    // rates are not known.
    std::array<double, 4> seconds{};
    // For a hand-off: the keys and values travel as 8-bit codes, because the connection is slower
    // than the hub's computation.
    bool as_u8 = false;
    AnswerPlace by_thresholds = AnswerPlace::nowhere;
};

RouteChoice route(const RouteFacts& facts);

}  // namespace moex
