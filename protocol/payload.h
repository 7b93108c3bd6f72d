// The tensor part of a message: as it is, or as one LZ4 block
// when that is smaller. Shared by tensor and group messages.
#pragma once

#include "protocol/frame.h"
#include "protocol/lz4_block.h"

namespace moex {

// How `raw` travels. `block` is empty when it goes as it is.
struct PackedPayload {
    Bytes block;
    std::uint8_t flags() const { return block.empty() ? 0 : flag_lz4; }
    ByteView bytes(ByteView raw) const { return block.empty() ? raw : ByteView(block); }
};
inline PackedPayload pack_payload(ByteView raw, bool lz4) {
    return {lz4 && lz4_can_encode ? lz4_encode(raw) : Bytes{}};
}

// The raw_bytes that `payload` stands for: itself, or decompressed
// into `scratch`. Sizes are checked before `scratch` grows.
Result<ByteView> open_payload(ByteView payload, bool lz4, std::uint64_t raw_bytes, Bytes& scratch);

// Refuses a layer or expert that the model does not have.
Status check_unit(std::uint16_t layer, std::uint16_t expert, std::uint32_t num_layers,
                  std::uint32_t num_experts);

// Refuses num_tokens of 0 or above the maximum, and a hidden_dim of another model.
Status check_rows(std::uint32_t num_tokens, std::uint32_t num_tokens_max, std::uint32_t hidden_dim,
                  std::uint32_t hidden_size);

// The header of `frame`, which must be of `type`.
Result<FrameHeader> decode_header_of(ByteView frame, FrameType type);

}  // namespace moex
