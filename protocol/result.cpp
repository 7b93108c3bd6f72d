#include "protocol/result.h"

namespace moex {

const char* error_code_name(ErrorCode code) {
    switch (code) {
        case ErrorCode::truncated_frame: return "truncated_frame";
        case ErrorCode::bad_magic: return "bad_magic";
        case ErrorCode::unsupported_version: return "unsupported_version";
        case ErrorCode::unknown_type: return "unknown_type";
        case ErrorCode::unknown_dtype: return "unknown_dtype";
        case ErrorCode::unknown_flags: return "unknown_flags";
        case ErrorCode::payload_size: return "payload_size";
        case ErrorCode::num_tokens_range: return "num_tokens_range";
        case ErrorCode::unknown_expert: return "unknown_expert";
        case ErrorCode::bad_order: return "bad_order";
        case ErrorCode::bad_compression: return "bad_compression";
        case ErrorCode::non_finite: return "non_finite";
        case ErrorCode::bad_json: return "bad_json";
        case ErrorCode::bad_field: return "bad_field";
        case ErrorCode::not_found: return "not_found";
        case ErrorCode::io_error: return "io_error";
        case ErrorCode::bad_file: return "bad_file";
        case ErrorCode::unsupported: return "unsupported";
        case ErrorCode::hash_mismatch: return "hash_mismatch";
        case ErrorCode::no_space: return "no_space";
        case ErrorCode::invalid_argument: return "invalid_argument";
        case ErrorCode::unauthorized: return "unauthorized";
        case ErrorCode::unavailable: return "unavailable";
        case ErrorCode::overloaded: return "overloaded";
        case ErrorCode::timeout: return "timeout";
        case ErrorCode::cancelled: return "cancelled";
        case ErrorCode::device_lost: return "device_lost";
        case ErrorCode::internal: return "internal";
    }
    return "internal";
}

}  // namespace moex
