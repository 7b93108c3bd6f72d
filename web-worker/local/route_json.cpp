#include "web-worker/local/route_json.h"

#include <cmath>

namespace moex {
namespace {

using Json = nlohmann::ordered_json;

const Json& member(const Json& json, const char* name) {
    static const Json nothing;
    const auto found = json.find(name);
    return found == json.end() ? nothing : *found;
}

// A rate, a time or a count of bytes: finite, and not negative.
void read(const Json& json, const char* name, double& out) {
    const Json& value = member(json, name);
    if (!value.is_number()) return;
    const double number = value.get<double>();
    if (std::isfinite(number) && number >= 0) out = number;
}
void read(const Json& json, const char* name, std::uint32_t& out) {
    double number = out;
    read(json, name, number);
    out = static_cast<std::uint32_t>(std::min(number, 4294967295.0));
}
void read(const Json& json, const char* name, bool& out) {
    const Json& value = member(json, name);
    if (value.is_boolean()) out = value.get<bool>();
}
void read(const Json& json, const char* name, ModelSpeed& out) {
    const Json& speed = member(json, name);
    if (!speed.is_object()) return;
    read(speed, "prompt_tokens_per_s", out.prompt_tokens_per_s);
    read(speed, "answer_tokens_per_s", out.answer_tokens_per_s);
}

}  // namespace

RouteFacts read_route_facts(const Json& json) {
    RouteFacts facts;
    if (!json.is_object()) return facts;
    const Json& words = member(json, "words");
    if (words.is_string() && words.get_ref<const std::string&>() == "to_hub")
        facts.words = WordsMayGo::to_hub;
    const Json& quality = member(json, "quality");
    if (quality == "best") facts.quality = AnswerQuality::best;
    if (quality == "draft_then_best") facts.quality = AnswerQuality::draft_then_best;
    read(json, "hub_is_better", facts.hub_is_better);
    read(json, "hub_takes_pages", facts.hub_takes_pages);
    read(json, "up_bytes_per_s", facts.up_bytes_per_s);
    read(json, "answer_tokens", facts.answer_tokens);
    read(json, "hub_context_tokens", facts.hub_context_tokens);
    read(json, "hub_answers", facts.hub_answers);
    read(json, "hub_hands_off", facts.hub_hands_off);
    read(json, "battery_is_low", facts.battery_is_low);
    read(json, "here_on_processor", facts.here_on_processor);
    read(json, "here", facts.here);
    read(json, "hub", facts.hub);
    read(json, "bytes_per_s", facts.bytes_per_s);
    read(json, "round_trip_s", facts.round_trip_s);
    return facts;
}

Json route_json(const RouteChoice& choice) {
    Json seconds = Json::object();
    for (const AnswerPlace place :
         {AnswerPlace::here, AnswerPlace::hub, AnswerPlace::handed, AnswerPlace::refined}) {
        const double time = choice.seconds[static_cast<std::size_t>(place)];
        seconds[answer_place_name(place)] = std::isfinite(time) ? Json(time) : Json();
    }
    return {{"place", answer_place_name(choice.place)},
            {"is_measured", choice.is_measured},
            {"seconds", std::move(seconds)},
            {"as_u8", choice.as_u8},
            {"sends_pages", choice.sends_pages},
            {"sends_as_u8", choice.sends_as_u8},
            {"by_thresholds", answer_place_name(choice.by_thresholds)}};
}

}  // namespace moex
