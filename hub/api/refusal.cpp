#include "hub/api/refusal.h"

#include <algorithm>
#include <cmath>

#include "protocol/text.h"

namespace moex {
namespace {

std::string whole_seconds(Duration wait) {
    const double seconds = std::ceil(std::chrono::duration<double>(wait).count());
    return text(static_cast<std::int64_t>(std::max(1.0, seconds)));
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

}  // namespace moex
