// Chooses the device that computes an answer: this one (a browser that holds the whole model), the
// hub, or both: the hub computes the keys and values of the prompt and hands them off, and this
// device writes the answer. Pure functions, which the native tests and the tab's module share.
//   prompt of 2,000 tokens, answer of 100; here 400 and 40 tokens/s, hub 4,000 and 60 tokens/s,
//   8 KB of rows a token over 100 Mbit/s, round trip 20 ms:
//     here 5.0 + 2.5 = 7.5 s, hub 0.52 + 1.7 = 2.2 s, hand-off max(0.5, 1.3) + 2.5 = 3.9 s
// Where this device holds the keys and values of a prompt's beginning, it may send them to the hub,
// if that is faster than the hub's own computation.
// Where the hub has another model, which is the better one, the user's wish for quality decides
// before any time does: the better answer is the hub's, whatever it takes.
// Where a rate of a computer was not measured yet, the thresholds of the design document decide,
// which need no rates: local if the user says so, the hub if this device has too little memory, a
// hand-off for prompts of more than 1,024 tokens over less than 80 ms. A device without a GPU
// counts as slow until the hub's rates are known: it answers where the hub cannot. Source: the
// design "agentic browsers", routing policy; its constants for one model are replaced by the sizes
// of the model at hand.
#pragma once

#include <array>
#include <cstdint>

namespace moex {

// refined: this device writes a draft, and the hub the better answer
enum class AnswerPlace : std::uint8_t { nowhere, here, hub, handed, refined };
inline constexpr std::size_t num_answer_places = 5;
const char* answer_place_name(AnswerPlace place);

// The devices that the user allows to read the words.
enum class WordsMayGo : std::uint8_t { nowhere, to_hub };

// The user's wish where the hub's model is better than the one on this device. Two places with one
// model give answers of one quality, so there it decides nothing.
enum class AnswerQuality : std::uint8_t { quickest, best, draft_then_best };

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
    bool hub_answers = false;      // the hub was reached a moment ago
    bool hub_hands_off = false;    // it hands off keys and values that this device can use
    bool hub_takes_pages = false;  // it takes keys and values that this device has computed
    bool hub_is_better = false;    // it answers with another model, the better one
    AnswerQuality quality = AnswerQuality::quickest;
    bool battery_is_low = false;
    bool here_on_processor = false;  // this device has no GPU
    ModelSpeed here, hub;
    double bytes_per_s = 0;          // of the connection from the hub; 0: unknown, counts as fast
    double up_bytes_per_s = 0;       // of the connection to the hub; 0: unknown, as bytes_per_s
    double round_trip_s = 0;         // 0: not measured yet
    double f16_bytes_per_token = 0;  // keys and values of a token, as the hub sends them
    double u8_bytes_per_token = 0;
};

struct RouteChoice {
    AnswerPlace place = AnswerPlace::nowhere;
    bool is_measured = false;  // false: chosen by the thresholds
    // Expected seconds to the last token, by AnswerPlace; infinite: that way cannot work, or its
    // rates are not known.
    std::array<double, num_answer_places> seconds{};
    // For a hand-off: the keys and values travel as 8-bit codes, because the connection is slower
    // than the hub's computation.
    bool as_u8 = false;
    // For an answer of the hub: this device sends the keys and values that it holds, because they
    // arrive before the hub would have computed them; in 8 bits only if 16 bits would not.
    bool sends_pages = false, sends_as_u8 = false;
    AnswerPlace by_thresholds = AnswerPlace::nowhere;
};

RouteChoice route(const RouteFacts& facts);

}  // namespace moex
