#include "hub/model/strict_json.h"

#include <set>
#include <vector>

namespace moex {
namespace {

struct TooManyKeys {};

// One pass over the characters, strings skipped: hostile nesting and counts never reach the parser.
Status check_extent(std::string_view json_text, std::string_view what, const JsonLimits& limits) {
    std::uint64_t values = 0;
    std::uint32_t depth = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < json_text.size(); ++i) {
        const char c = json_text[i];
        if (in_string) {
            if (c == '\\') ++i;
            else if (c == '"') in_string = false;
            continue;
        }
        if (c == '"') in_string = true;
        if ((c == '[' || c == '{') && ++depth > limits.depth_max)
            return Error{ErrorCode::bad_json, text(what, ": JSON nested deeper than ", limits.depth_max, " levels")};
        if ((c == ']' || c == '}') && depth > 0) --depth;
        if ((c == ',' || c == ':') && ++values > limits.values_max)
            return Error{ErrorCode::bad_json, text(what, ": more than ", limits.values_max, " JSON values")};
    }
    return {};
}

}  // namespace

Result<nlohmann::ordered_json> parse_strict_json(std::string_view json_text, std::string_view what, const JsonLimits& limits) {
    using Json = nlohmann::ordered_json;
    MOEX_TRY(check_extent(json_text, what, limits));
    std::vector<std::set<std::string>> names;
    std::string twice;
    const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
        if (event == Json::parse_event_t::object_start) names.emplace_back();
        if (event == Json::parse_event_t::object_end && !names.empty()) names.pop_back();
        if (event == Json::parse_event_t::key && !names.empty() && twice.empty()) {
            const auto& name = parsed.get_ref<const std::string&>();
            if (!names.back().insert(name).second) twice = name;
            if (names.back().size() > limits.keys_max) throw TooManyKeys{};
        }
        return true;
    };
    try {
        Json value = Json::parse(json_text, watch);
        if (!twice.empty()) return Error{ErrorCode::bad_json, text(what, ": \"", twice.substr(0, 200), "\" stands twice in one object")};
        return value;
    } catch (const TooManyKeys&) {
        return Error{ErrorCode::bad_json, text(what, ": more than ", limits.keys_max, " keys in one object")};
    } catch (const Json::exception& error) {  // the library's way to say where the text stops being JSON
        return Error{ErrorCode::bad_json, text(what, ": not JSON: ", std::string_view(error.what()).substr(0, 200))};
    }
}

std::string json_excerpt(const nlohmann::ordered_json& value) {
    std::string shown = value.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    return shown;
}

}  // namespace moex
