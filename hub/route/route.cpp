#include "hub/route/route.h"

#include <algorithm>
#include <limits>

namespace moex {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

// After a hand-off the device computes the end of the prompt itself: the tokens behind the hub's
// last full page of 16, and the last token, because its logits are needed.
constexpr std::uint32_t own_tokens = 16;

// The thresholds of the design, for devices that have measured nothing yet.
constexpr std::uint32_t long_prompt_tokens = 1024;
constexpr double near_round_trip_s = 0.080, slow_tokens_per_s = 8;

double at(AnswerPlace place, const std::array<double, num_answer_places>& seconds) {
    return seconds[static_cast<std::size_t>(place)];
}

std::uint32_t missing(const RouteFacts& facts) {
    return facts.prompt_tokens - std::min(facts.prompt_tokens, facts.held_tokens);
}

bool fits(const RouteFacts& facts, std::uint32_t context_tokens) {
    return facts.prompt_tokens < context_tokens;
}

// Returns true if an answer at this place is possible and allowed.
bool can_work(AnswerPlace place, const RouteFacts& facts) {
    const bool is_here = fits(facts, facts.context_tokens),
               has_hub = facts.words == WordsMayGo::to_hub && facts.hub_answers &&
                         fits(facts, facts.hub_context_tokens);
    switch (place) {
        case AnswerPlace::here: return is_here;
        case AnswerPlace::hub: return has_hub;
        case AnswerPlace::handed:
            return is_here && has_hub && facts.hub_hands_off && missing(facts) > own_tokens;
        case AnswerPlace::refined: return is_here && has_hub && facts.hub_is_better;
        case AnswerPlace::nowhere: break;
    }
    return false;
}

// Returns how many tokens of the prompt this device can send rows of: whole pages of the hub.
std::uint32_t sendable(const RouteFacts& facts) {
    return std::min(facts.prompt_tokens, facts.held_tokens) / own_tokens * own_tokens;
}

double time_of(double tokens, double tokens_per_s) {
    if (tokens == 0) return 0;
    return tokens_per_s > 0 ? tokens / tokens_per_s : never;
}

// Seconds until the hub has the rows of this device, which it need not compute then.
double sending_s(const RouteFacts& facts, double bytes_per_token) {
    const double bytes_per_s = facts.up_bytes_per_s > 0 ? facts.up_bytes_per_s : facts.bytes_per_s;
    const double bytes = sendable(facts) * bytes_per_token;
    return facts.round_trip_s + (bytes_per_s > 0 ? bytes / bytes_per_s : 0);
}

// Decides whether rows are sent to the hub, and how.
void choose_sending(const RouteFacts& facts, RouteChoice& choice) {
    if (!can_work(AnswerPlace::hub, facts) || !facts.hub_takes_pages || sendable(facts) == 0)
        return;
    if (facts.hub.prompt_tokens_per_s == 0) {
        const bool is_near = facts.round_trip_s > 0 && facts.round_trip_s < near_round_trip_s;
        choice.sends_pages = is_near && sendable(facts) > long_prompt_tokens;
        return;
    }
    const double computing_s = sendable(facts) / facts.hub.prompt_tokens_per_s;
    const bool in_time = sending_s(facts, facts.f16_bytes_per_token) < computing_s;
    choice.sends_as_u8 = !in_time && sending_s(facts, facts.u8_bytes_per_token) < computing_s;
    choice.sends_pages = in_time || choice.sends_as_u8;
}

double seconds_of(AnswerPlace place, const RouteFacts& facts, double bytes_per_token) {
    const double rest = missing(facts), answer = facts.answer_tokens;
    switch (place) {
        case AnswerPlace::here:
            return time_of(rest, facts.here.prompt_tokens_per_s) +
                   time_of(answer, facts.here.answer_tokens_per_s);
        // The hub may have a part of the prompt in its cache; the device does not know how much.
        case AnswerPlace::hub:
            return facts.round_trip_s +
                   time_of(facts.prompt_tokens, facts.hub.prompt_tokens_per_s) +
                   time_of(answer, facts.hub.answer_tokens_per_s);
        // Pages travel while the hub computes the next ones. An unknown connection counts as fast:
        // a hand-off measures it, and is given up where it turns out to be slow.
        case AnswerPlace::handed:
            return facts.round_trip_s +
                   std::max(
                       time_of(facts.prompt_tokens, facts.hub.prompt_tokens_per_s),
                       facts.bytes_per_s > 0 ? rest * bytes_per_token / facts.bytes_per_s : 0.0) +
                   time_of(own_tokens, facts.here.prompt_tokens_per_s) +
                   time_of(answer, facts.here.answer_tokens_per_s);
        case AnswerPlace::refined:  // until the draft is whole
            return seconds_of(AnswerPlace::here, facts, bytes_per_token);
        case AnswerPlace::nowhere: break;
    }
    return never;
}

// The seconds of an answer by the hub, for which this device may send rows.
double hub_seconds(const RouteFacts& facts, const RouteChoice& choice) {
    const double whole = seconds_of(AnswerPlace::hub, facts, 0);
    if (!choice.sends_pages) return whole;
    const double sent_s = sending_s(
        facts, choice.sends_as_u8 ? facts.u8_bytes_per_token : facts.f16_bytes_per_token);
    return whole + sent_s - time_of(sendable(facts), facts.hub.prompt_tokens_per_s);
}

// Returns the place that the wish for quality asks for, whatever the times are.
AnswerPlace place_by_quality(const RouteFacts& facts) {
    if (!facts.hub_is_better || facts.quality == AnswerQuality::quickest)
        return AnswerPlace::nowhere;
    const bool drafts = facts.quality == AnswerQuality::draft_then_best && !facts.battery_is_low;
    if (drafts && can_work(AnswerPlace::refined, facts)) return AnswerPlace::refined;
    return can_work(AnswerPlace::hub, facts) ? AnswerPlace::hub : AnswerPlace::nowhere;
}

AnswerPlace place_by_thresholds(const RouteFacts& facts) {
    const bool here = can_work(AnswerPlace::here, facts), hub = can_work(AnswerPlace::hub, facts);
    if (!here) return hub ? AnswerPlace::hub : AnswerPlace::nowhere;
    if (!hub) return AnswerPlace::here;
    if (facts.here_on_processor) return AnswerPlace::hub;
    const bool is_near = facts.round_trip_s > 0 && facts.round_trip_s < near_round_trip_s;
    if (missing(facts) > long_prompt_tokens && is_near)
        return can_work(AnswerPlace::handed, facts) ? AnswerPlace::handed : AnswerPlace::hub;
    const double own_rate = facts.here.answer_tokens_per_s;
    const bool is_slow = own_rate > 0 && own_rate < slow_tokens_per_s;
    return is_slow ? AnswerPlace::hub : AnswerPlace::here;
}

// Returns true if the 8-bit form is worth its rounding: the connection, not the hub, is what the
// 16-bit form would wait for.
bool wants_u8(const RouteFacts& facts) {
    return facts.bytes_per_s > 0 && facts.hub.prompt_tokens_per_s > 0 &&
           missing(facts) * facts.f16_bytes_per_token / facts.bytes_per_s >
               facts.prompt_tokens / facts.hub.prompt_tokens_per_s;
}

}  // namespace

const char* answer_place_name(AnswerPlace place) {
    switch (place) {
        case AnswerPlace::here: return "here";
        case AnswerPlace::hub: return "hub";
        case AnswerPlace::handed: return "handed";
        case AnswerPlace::refined: return "refined";
        case AnswerPlace::nowhere: break;
    }
    return "nowhere";
}

RouteChoice route(const RouteFacts& facts) {
    constexpr std::array places = {AnswerPlace::here, AnswerPlace::hub, AnswerPlace::handed};
    RouteChoice choice;
    choice.seconds.fill(never);
    choice.as_u8 = wants_u8(facts);
    const double bytes_per_token = choice.as_u8 ? facts.u8_bytes_per_token
                                                : facts.f16_bytes_per_token;
    choose_sending(facts, choice);
    if (can_work(AnswerPlace::refined, facts))
        choice.seconds[static_cast<std::size_t>(AnswerPlace::refined)] = seconds_of(
            AnswerPlace::refined, facts, bytes_per_token);
    bool all_known = true;
    for (const AnswerPlace place : places) {
        if (!can_work(place, facts)) continue;
        const double seconds = place == AnswerPlace::hub
                                   ? hub_seconds(facts, choice)
                                   : seconds_of(place, facts, bytes_per_token);
        choice.seconds[static_cast<std::size_t>(place)] = seconds;
        all_known = all_known && seconds < never;
    }

    choice.by_thresholds = choice.place = place_by_thresholds(facts);
    if (const AnswerPlace wished = place_by_quality(facts); wished != AnswerPlace::nowhere) {
        choice.is_measured = all_known;
        choice.place = wished;
        return choice;
    }
    if (!all_known || choice.place == AnswerPlace::nowhere) return choice;
    choice.is_measured = true;
    if (facts.battery_is_low && can_work(AnswerPlace::hub, facts)) {
        choice.place = AnswerPlace::hub;
        return choice;
    }
    for (const AnswerPlace place : places)
        if (at(place, choice.seconds) < at(choice.place, choice.seconds)) choice.place = place;
    return choice;
}

}  // namespace moex
