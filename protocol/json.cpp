#include "protocol/json.h"

namespace moex {
namespace {

// Returns the largest depth of nested brackets outside strings, without building a JSON tree.
std::size_t json_depth(std::string_view json) {
    std::size_t depth = 0, deepest = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < json.size(); ++i) {
        const char c = json[i];
        if (in_string) {
            if (c == '\\')
                ++i;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            deepest = ++depth > deepest ? depth : deepest;
        } else if ((c == '}' || c == ']') && depth > 0) {
            --depth;
        }
    }
    return deepest;
}

Status absent(const char* name, Presence presence) {
    if (presence == Presence::required)
        return Error{ErrorCode::bad_field, text("\"", name, "\" is missing")};
    return {};
}

}  // namespace

Result<Json> parse_json_object(std::string_view json, std::size_t bytes_max, const char* what) {
    if (json.size() > bytes_max)
        return Error{ErrorCode::bad_json,
                     text(what, ": ", json.size(), " bytes of JSON, at most ", bytes_max)};
    if (json_depth(json) > json_depth_max)
        return Error{ErrorCode::bad_json, text(what, ": JSON deeper than ", json_depth_max)};
    Json parsed = Json::parse(json, nullptr, false);
    if (parsed.is_discarded()) return Error{ErrorCode::bad_json, text(what, ": not JSON")};
    if (!parsed.is_object())
        return Error{ErrorCode::bad_json,
                     text(what, ": JSON ", parsed.type_name(), ", want an object")};
    return parsed;
}

Status read_text(std::string& out, const Json& object, const char* name, std::size_t bytes_max,
                 Presence presence) {
    const Json* member = find_member(object, name);
    if (member == nullptr) return absent(name, presence);
    const auto* value = member->get_ptr<const Json::string_t*>();
    if (value == nullptr)
        return Error{ErrorCode::bad_field,
                     text("\"", name, "\" is ", member->type_name(), ", want a string")};
    if (value->size() > bytes_max)
        return Error{ErrorCode::bad_field,
                     text("\"", name, "\" has ", value->size(), " bytes, at most ", bytes_max)};
    for (const char c : *value)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
            return Error{ErrorCode::bad_field, text("\"", name, "\" holds a control character")};
    out = *value;
    return {};
}

Status read_flag(bool& out, const Json& object, const char* name, Presence presence) {
    const Json* member = find_member(object, name);
    if (member == nullptr) return absent(name, presence);
    const auto* value = member->get_ptr<const Json::boolean_t*>();
    if (value == nullptr)
        return Error{ErrorCode::bad_field,
                     text("\"", name, "\" is ", member->type_name(), ", want true or false")};
    out = *value;
    return {};
}

Status read_integer(std::uint64_t& out, const Json& object, const char* name,
                    std::uint64_t value_min, std::uint64_t value_max, Presence presence) {
    const Json* member = find_member(object, name);
    if (member == nullptr) return absent(name, presence);
    if (!member->is_number_unsigned())
        return Error{ErrorCode::bad_field,
                     text("\"", name, "\" is not a whole number of at least 0")};
    const std::uint64_t value = *member->get_ptr<const Json::number_unsigned_t*>();
    if (value < value_min || value > value_max)
        return Error{ErrorCode::bad_field,
                     text("\"", name, "\" is ", value, ", want ", value_min, "..", value_max)};
    out = value;
    return {};
}

std::string_view clip_utf8(std::string_view text, std::size_t bytes_max) {
    if (text.size() <= bytes_max) return text;
    while (bytes_max > 0 && (static_cast<unsigned char>(text[bytes_max]) & 0xc0u) == 0x80u)
        --bytes_max;
    return text.substr(0, bytes_max);
}

}  // namespace moex
