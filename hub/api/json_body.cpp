#include "hub/api/json_body.h"

#include <optional>

#include "hub/model/strict_json.h"

namespace moex {
namespace {

constexpr std::size_t escape_bytes = 6;  // \uXXXX

// Returns the value of the escape \uXXXX at `at`; nullopt: there is no such escape.
std::optional<unsigned> unicode_escape(std::string_view words, std::size_t at) {
    if (at + escape_bytes > words.size() || words[at] != '\\' || words[at + 1] != 'u')
        return std::nullopt;
    unsigned value = 0;
    for (const char c : words.substr(at + 2, 4)) {
        const char lower = static_cast<char>(c | 0x20);
        if (c >= '0' && c <= '9')
            value = value * 16 + static_cast<unsigned>(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            value = value * 16 + static_cast<unsigned>(lower - 'a' + 10);
        else
            return std::nullopt;
    }
    return value;
}

bool is_high(std::optional<unsigned> value) { return value && *value >> 10 == 0xd800 >> 10; }
bool is_low(std::optional<unsigned> value) { return value && *value >> 10 == 0xdc00 >> 10; }

}  // namespace

std::string with_whole_surrogates(std::string_view json_text) {
    std::string out;
    out.reserve(json_text.size());
    for (std::size_t at = 0; at < json_text.size();) {
        if (json_text[at] != '\\') {
            out += json_text[at++];
            continue;
        }
        const auto value = unicode_escape(json_text, at);
        std::size_t length = value ? escape_bytes : 2;  // any other escape has two bytes
        const bool is_pair = is_high(value) && is_low(unicode_escape(json_text, at + escape_bytes));
        if (is_pair) length = 2 * escape_bytes;
        if (!is_pair && (is_high(value) || is_low(value)))
            out += "\\ufffd";
        else
            out += json_text.substr(at, length);
        at += length;
    }
    return out;
}

Checked<OrderedJson> parse_api_body(std::string_view body, std::uint32_t bytes_max) {
    if (body.size() > bytes_max)
        return Refusal{413,
                       text("The request body has ", body.size(), " bytes, at most ", bytes_max,
                            " are allowed."),
                       "request_too_large", ""};

    constexpr JsonLimits json_limits{.depth_max = 64, .values_max = 400'000, .keys_max = 4096};
    const bool has_surrogates = body.find("\\ud") != std::string_view::npos ||
                                body.find("\\uD") != std::string_view::npos;
    const std::string whole = has_surrogates ? with_whole_surrogates(body) : std::string();
    auto parsed = parse_strict_json<OrderedJson>(has_surrogates ? std::string_view(whole) : body,
                                                 "body", json_limits);
    if (!parsed.ok())
        return Refusal{
            400, text("We could not parse the JSON body of your request: ", parsed.error().message),
            "invalid_json", ""};

    if (!parsed->is_object())
        return Refusal{400,
                       text("The body has to be a JSON object, found ", json_excerpt(*parsed), "."),
                       "invalid_json", ""};
    return *std::move(parsed);
}

}  // namespace moex
