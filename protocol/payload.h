// The tensor part of a message, sent as it is, or as one LZ4 block if that is smaller. Tensor
// messages and group messages share these functions.
#pragma once

#include "protocol/frame.h"
#include "protocol/lz4_block.h"

namespace moex {

// The bytes that are sent for the payload `raw`. `block` is empty when `raw` is sent uncompressed.
struct PackedPayload {
    Bytes block;
    std::uint8_t flags() const { return block.empty() ? 0 : flag_lz4; }
    ByteView bytes(ByteView raw) const { return block.empty() ? raw : ByteView(block); }
};
inline PackedPayload pack_payload(ByteView raw, bool lz4) {
    return {lz4 && lz4_can_encode ? lz4_encode(raw) : Bytes{}};
}

// Returns the uncompressed payload, which has `raw_bytes` bytes: `payload` itself, or its contents
// decompressed into `scratch`. Sizes are checked before `scratch` grows.
Result<ByteView> open_payload(ByteView payload, bool lz4, std::uint64_t raw_bytes, Bytes& scratch);

// Returns an error for a layer or expert number that the model does not have.
Status check_unit(std::uint16_t layer, std::uint16_t expert, std::uint32_t num_layers,
                  std::uint32_t num_experts);

// Returns an error if num_tokens is 0 or above the maximum, or if hidden_dim is not that of the
// model.
Status check_rows(std::uint32_t num_tokens, std::uint32_t num_tokens_max, std::uint32_t hidden_dim,
                  std::uint32_t hidden_size);

// Returns the header of `frame`. Returns an error if the frame's type is not `type`.
Result<FrameHeader> decode_header_of(ByteView frame, FrameType type);

}  // namespace moex
