#include "hub/api/refusal.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "hub/api/http.h"
#include "hub/model/json_fields.h"
#include "protocol/text.h"

namespace moex {
namespace {

const char* error_type(unsigned status) {
    switch (status) {
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 404: return "not_found_error";
        case 429: return "rate_limit_error";
        case 503: return "unavailable_error";
        default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

const char* anthropic_error_type(unsigned status) {
    switch (status) {
        case 413: return "request_too_large";
        case 503: return "overloaded_error";
        default: return status >= 500 ? "api_error" : error_type(status);
    }
}

OrderedJson or_null(const std::string& value) {
    return value.empty() ? OrderedJson() : OrderedJson(value);
}

std::string whole_seconds(Duration wait) {
    const double seconds = std::ceil(std::chrono::duration<double>(wait).count());
    return text(static_cast<std::int64_t>(std::max(1.0, seconds)));
}

OrderedJson error_body(const Refusal& refusal, Dialect dialect) {
    if (dialect == Dialect::ollama) return {{"error", refusal.message}};
    if (dialect == Dialect::anthropic)
        return {{"type", "error"},
                {"error",
                 {{"type", anthropic_error_type(refusal.status)}, {"message", refusal.message}}}};

    OrderedJson error{{"message", refusal.message},
                      {"type", error_type(refusal.status)},
                      {"param", or_null(refusal.param)},
                      {"code", or_null(refusal.code)}};
    for (const auto& [name, number] : refusal.numbers) error[name] = number;
    return {{"error", std::move(error)}};
}

}  // namespace

Refusal refuse_for_now(unsigned status, std::string message, std::string code, Duration wait) {
    return {.status = status,
            .message = std::move(message),
            .code = std::move(code),
            .param = {},
            .headers = {{"Retry-After", whole_seconds(wait)}}};
}

Refusal refusal_of(const Error& error) {
    const auto with = [&](unsigned status, const char* code) {
        return Refusal{status, error.message, code, {}};
    };
    switch (error.code) {
        case ErrorCode::invalid_argument: return with(400, "invalid_value");
        case ErrorCode::unsupported: return with(400, "unsupported");
        case ErrorCode::overloaded: return with(429, "queue_full");
        case ErrorCode::unavailable:
        case ErrorCode::timeout:
        case ErrorCode::cancelled: return with(503, error_code_name(error.code));
        default: return with(500, error_code_name(error.code));
    }
}

HttpResponse refusal_response(const Refusal& refusal, Dialect dialect) {
    HttpResponse response{.status = refusal.status};
    response.body = dump_json(error_body(refusal, dialect));
    const bool has_names = dialect == Dialect::anthropic || dialect == Dialect::responses;
    if (has_names) response.event_name = "error";

    if (refusal.status == 429) response.headers = {{"Retry-After", "1"}};
    if (refusal.status == 503) response.headers = {{"Retry-After", "5"}};
    for (const auto& [name, value] : refusal.headers) response.set_header(name, value);
    return response;
}

}  // namespace moex
