// The headers of every frame: the 16-byte common header, and the 28-byte tensor header of DISPATCH,
// RESULT and WEIGHT_SYNC. messages.h defines the payloads. One frame is one binary WebSocket
// message. The length of a frame equals header + payload_bytes exactly. PROTOCOL.md has the tables.
#pragma once

#include <cstdint>

#include "protocol/bytes.h"
#include "protocol/result.h"
#include "protocol/tensor_format.h"

namespace moex {

inline constexpr std::uint16_t protocol_version = 1;
inline constexpr std::uint32_t frame_header_bytes = 16;
inline constexpr std::uint32_t tensor_header_bytes = 28;
inline constexpr std::uint32_t hello_bytes_max = 4096;  // whole frame
inline constexpr std::uint32_t unauthenticated_frame_bytes_max = 65536;
inline constexpr std::uint32_t error_json_bytes_max = 1024;
// limit of every frame, even if a connection agreed on a higher limit
inline constexpr std::uint32_t frame_bytes_max = 64u << 20;

enum class FrameType : std::uint16_t {
    dispatch = 1,
    result = 2,
    cancel = 3,
    heartbeat = 4,
    weight_sync = 5,
    hello = 16,
    welcome = 17,
    assign = 18,
    ready = 19,
    release = 20,
    group_dispatch = 21,
    group_result = 22,
    prefetch = 23,
    busy = 24,
    challenge = 25,
    proof = 26,
    drain = 27,
    error = 28,
    budget = 29,
    identity = 30,
    power = 31,
    slots = 32,
    // protocol/span_messages.h
    span_assign = 33,
    span_release = 34,
    span_ready = 35,
    span_step = 36,
    span_answer = 37,
    span_kv = 38,
    span_end = 39,
    hubs = 40,
    span_state = 41,
};
// name such as "DISPATCH"; "unknown" for an unknown type
const char* frame_type_name(FrameType type);
bool is_known_frame_type(std::uint16_t type);

inline constexpr std::uint8_t flag_lz4 = 1;       // the whole payload is one LZ4 block
inline constexpr std::uint8_t flag_unsummed = 2;  // GROUP_*: y is unsummed, [num_pairs, hidden_dim]
inline constexpr std::uint8_t flag_times = 4;     // GROUP_RESULT: the frame ends with RoundTimes
inline constexpr std::uint8_t flag_x_int8 = 8;    // GROUP_DISPATCH: x is int8, whatever the dtype

struct FrameHeader {
    std::uint16_t version = protocol_version;
    FrameType type = FrameType::heartbeat;
    // number of bytes that follow the header: the header has 28 bytes for frames of type 1, 2 and
    // 5, and 16 bytes for others
    std::uint32_t payload_bytes = 0;
    std::uint32_t sequence_id = 0;
};

struct TensorHeader {
    std::uint16_t layer = 0;
    std::uint16_t expert = 0;
    std::uint32_t num_tokens = 0;
    std::uint16_t hidden_dim = 0;
    Dtype dtype = Dtype::f16;
    std::uint8_t flags = 0;
};

bool has_tensor_header(FrameType type);

// Reads the common header of a frame. Checks magic, version and type, and that the length of
// `frame` equals the length in the header.
Result<FrameHeader> decode_frame_header(ByteView frame);
// Reads the tensor header after the common header. Only some frame types have it. Refuses unknown
// flag bits and dtypes. The caller checks num_tokens.
Result<TensorHeader> decode_tensor_header(ByteView frame);

// Writes the common header with payload_bytes 0; finish_frame() later replaces the 0 by the final
// size.
void begin_frame(ByteWriter& out, FrameType type, std::uint32_t sequence_id);
void begin_tensor_frame(ByteWriter& out, FrameType type, std::uint32_t sequence_id,
                        const TensorHeader& header);
Bytes finish_frame(ByteWriter&& out);
// Sets payload_bytes in the header of `frame`, which stores a part of its payload in another
// buffer.
void patch_payload_bytes(std::span<std::byte> frame, std::uint64_t payload_bytes);

}  // namespace moex
