#include "protocol/payload.h"

namespace moex {

Status check_unit(std::uint16_t layer, std::uint16_t expert, std::uint32_t num_layers,
                  std::uint32_t num_experts) {
    if (layer >= num_layers)
        return Error{ErrorCode::unknown_expert,
                     text("layer ", layer, ", the model has ", num_layers)};
    if (expert >= num_experts)
        return Error{ErrorCode::unknown_expert,
                     text("expert ", expert, ", the model has ", num_experts)};
    return {};
}

Status check_rows(std::uint32_t num_tokens, std::uint32_t num_tokens_max, std::uint32_t hidden_dim,
                  std::uint32_t hidden_size) {
    if (num_tokens == 0 || num_tokens > num_tokens_max)
        return Error{ErrorCode::num_tokens_range,
                     text("num_tokens ", num_tokens, ", want 1..", num_tokens_max)};
    if (hidden_dim != hidden_size)
        return Error{ErrorCode::bad_field,
                     text("hidden_dim ", hidden_dim, ", the model has ", hidden_size)};
    return {};
}

Result<FrameHeader> decode_header_of(ByteView frame, FrameType type) {
    MOEX_ASSIGN(header, decode_frame_header(frame));
    if (header.type != type)
        return Error{ErrorCode::unknown_type, text(frame_type_name(header.type), " where ",
                                                   frame_type_name(type), " is wanted")};
    return header;
}

Result<ByteView> open_payload(ByteView payload, bool lz4, std::uint64_t raw_bytes, Bytes& scratch) {
    if (raw_bytes == 0 || raw_bytes > frame_bytes_max)
        return Error{ErrorCode::payload_size,
                     text("payload of ", raw_bytes, " raw bytes, at most ", frame_bytes_max)};
    if (!lz4) {
        if (payload.size() != raw_bytes)
            return Error{ErrorCode::payload_size,
                         text("payload of ", payload.size(), " bytes, the header's shape wants ",
                              raw_bytes)};
        return payload;
    }
    if (payload.size() > lz4_block_bytes_max(raw_bytes))
        return Error{ErrorCode::payload_size,
                     text("LZ4 block of ", payload.size(), " bytes for ", raw_bytes, " raw bytes")};
    // LZ4 compresses at most 255 to 1. A block that is too short for its claimed size is therefore
    // invalid, and is refused before memory is allocated for it.
    if (payload.size() < raw_bytes / 255)
        return Error{ErrorCode::bad_compression,
                     text("LZ4 block of ", payload.size(), " bytes cannot hold ", raw_bytes)};
    scratch.resize(raw_bytes);
    if (!lz4_decode(payload, scratch))
        return Error{ErrorCode::bad_compression, text("LZ4 block of ", payload.size(),
                                                      " bytes does not decode to ", raw_bytes)};
    return ByteView(scratch);
}

}  // namespace moex
