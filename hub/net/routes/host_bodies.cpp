#include "hub/net/routes/host_bodies.h"

namespace moex::net {

using nlohmann::json;

Refusal refusal_to_host(const Error& error) {
    switch (error.code) {
        case ErrorCode::invalid_argument: return {400, error.message, "invalid_value", ""};
        case ErrorCode::not_found: return {404, error.message, "not_found", ""};
        case ErrorCode::unavailable: return {503, error.message, "unavailable", ""};
        default: return {500, error.message, error_code_name(error.code), ""};
    }
}

Checked<json> object_of(const HttpRequest& request) {
    json body = json::parse(request.body, nullptr, false);
    if (!body.is_object()) return Refusal{400, "wanted a JSON object", "bad_json", ""};
    return body;
}

Checked<std::string> string_field(const json& body, const char* name) {
    const auto found = body.find(name);
    if (found == body.end() || !found->is_string())
        return Refusal{400, text("'", name, "' has to be a string"), "invalid_value", name};
    return found->get<std::string>();
}

Checked<std::uint64_t> number_field(const json& body, const char* name, std::uint64_t max,
                                    std::uint64_t absent) {
    const auto found = body.find(name);
    if (found == body.end() || found->is_null()) return absent;
    if (found->is_number_unsigned() && found->get<std::uint64_t>() <= max)
        return found->get<std::uint64_t>();
    return Refusal{400, text("'", name, "' has to be a whole number up to ", max), "invalid_value",
                   name};
}

}  // namespace moex::net
