// The tensor part of a message, plain or as one LZ4 block when the block is smaller. Tensor
// messages and group messages share these functions.
#pragma once

#include "protocol/frame.h"
#include "protocol/lz4_block.h"

namespace moex {

// The wire form of a payload `raw`. `block` is empty when `raw` is sent uncompressed.
struct PackedPayload {
    Bytes block;
    std::uint8_t flags() const { return block.empty() ? 0 : flag_lz4; }
    ByteView bytes(ByteView raw) const { return block.empty() ? raw : ByteView(block); }
};
inline PackedPayload pack_payload(ByteView raw, bool lz4) {
    return {lz4 && lz4_can_encode ? lz4_encode(raw) : Bytes{}};
}

// Returns the `raw_bytes` bytes of a payload: `payload` itself, or its contents decompressed into
// `scratch`. Sizes are checked before `scratch` grows.
Result<ByteView> open_payload(ByteView payload, bool lz4, std::uint64_t raw_bytes, Bytes& scratch);

// Refuses a layer or expert that the model does not have.
Status check_unit(std::uint16_t layer, std::uint16_t expert, std::uint32_t num_layers,
                  std::uint32_t num_experts);

// Refuses num_tokens of 0 or above the maximum, and a hidden_dim of another model.
Status check_rows(std::uint32_t num_tokens, std::uint32_t num_tokens_max, std::uint32_t hidden_dim,
                  std::uint32_t hidden_size);

// Returns the header of `frame`. Refuses a frame of another type than `type`.
Result<FrameHeader> decode_header_of(ByteView frame, FrameType type);

}  // namespace moex
