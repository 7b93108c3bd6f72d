#include "hub/api/http.h"

#include <nlohmann/json.hpp>

#include "hub/api/hub_stops.h"
#include "hub/model/json_fields.h"

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

OrderedJson error_body(const Refusal& refusal, Dialect dialect) {
    // Fronts read this code in every dialect.
    const bool stops = refusal.code == hub_stops_code;
    if (dialect == Dialect::ollama) {
        OrderedJson body{{"error", refusal.message}};
        if (stops) body["code"] = hub_stops_code;
        return body;
    }
    if (dialect == Dialect::anthropic) {
        OrderedJson error{{"type", anthropic_error_type(refusal.status)},
                          {"message", refusal.message}};
        if (stops) error["code"] = hub_stops_code;
        return {{"type", "error"}, {"error", std::move(error)}};
    }

    // llama.cpp's clients know a prompt that is too long by its type, OpenAI's by its code.
    const bool is_too_long = refusal.code == "context_length_exceeded";
    OrderedJson error{
        {"message", refusal.message},
        {"type", is_too_long ? "exceed_context_size_error" : error_type(refusal.status)},
        {"param", or_null(refusal.param)},
        {"code", or_null(refusal.code)}};
    for (const auto& [name, number] : refusal.numbers) error[name] = number;
    return {{"error", std::move(error)}};
}

}  // namespace

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
    for (const auto& [key, value] : headers)
        if (key == name) return std::string_view(value);
    return std::nullopt;
}

const char* reason_phrase(unsigned status) {
    switch (status) {
        case 200: return "OK";
        case 204: return "No Content";
        case 206: return "Partial Content";
        case 304: return "Not Modified";
        case 400: return "Bad Request";
        case 401: return "Unauthorized";
        case 403: return "Forbidden";
        case 404: return "Not Found";
        case 405: return "Method Not Allowed";
        case 408: return "Request Timeout";
        case 413: return "Content Too Large";
        case 414: return "URI Too Long";
        case 415: return "Unsupported Media Type";
        case 416: return "Range Not Satisfiable";
        case 417: return "Expectation Failed";
        case 422: return "Unprocessable Content";
        case 426: return "Upgrade Required";
        case 429: return "Too Many Requests";
        case 431: return "Request Header Fields Too Large";
        case 500: return "Internal Server Error";
        case 501: return "Not Implemented";
        case 503: return "Service Unavailable";
        case 505: return "HTTP Version Not Supported";
        default: return status < 400 ? "OK" : "Error";
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
