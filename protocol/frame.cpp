#include "protocol/frame.h"

#include <cstring>

namespace moex {
namespace {

constexpr unsigned char magic[4] = {0x4d, 0x6f, 0x45, 0x78};  // "MoEx"
constexpr std::size_t type_offset_bytes = 6;
constexpr std::size_t payload_size_offset_bytes = 8;

std::uint32_t header_bytes(FrameType type) {
    return has_tensor_header(type) ? tensor_header_bytes : frame_header_bytes;
}

}  // namespace

const char* frame_type_name(FrameType type) {
    switch (type) {
        case FrameType::dispatch: return "DISPATCH";
        case FrameType::result: return "RESULT";
        case FrameType::cancel: return "CANCEL";
        case FrameType::heartbeat: return "HEARTBEAT";
        case FrameType::weight_sync: return "WEIGHT_SYNC";
        case FrameType::hello: return "HELLO";
        case FrameType::welcome: return "WELCOME";
        case FrameType::assign: return "ASSIGN";
        case FrameType::ready: return "READY";
        case FrameType::release: return "RELEASE";
        case FrameType::group_dispatch: return "GROUP_DISPATCH";
        case FrameType::group_result: return "GROUP_RESULT";
        case FrameType::prefetch: return "PREFETCH";
        case FrameType::busy: return "BUSY";
        case FrameType::challenge: return "CHALLENGE";
        case FrameType::proof: return "PROOF";
        case FrameType::drain: return "DRAIN";
        case FrameType::error: return "ERROR";
        case FrameType::budget: return "BUDGET";
        case FrameType::identity: return "IDENTITY";
        case FrameType::power: return "POWER";
        case FrameType::slots: return "SLOTS";
        case FrameType::span_assign: return "SPAN_ASSIGN";
        case FrameType::span_release: return "SPAN_RELEASE";
        case FrameType::span_ready: return "SPAN_READY";
        case FrameType::span_step: return "SPAN_STEP";
        case FrameType::span_answer: return "SPAN_ANSWER";
        case FrameType::span_kv: return "SPAN_KV";
        case FrameType::span_end: return "SPAN_END";
        case FrameType::span_state: return "SPAN_STATE";
        case FrameType::hubs: return "HUBS";
    }
    return "unknown";
}

bool is_known_frame_type(std::uint16_t type) {
    return (type >= 1 && type <= 5) || (type >= 16 && type <= 41);
}

bool has_tensor_header(FrameType type) {
    return type == FrameType::dispatch || type == FrameType::result ||
           type == FrameType::weight_sync;
}

Result<FrameHeader> decode_frame_header(ByteView frame) {
    if (frame.size() < frame_header_bytes)
        return Error{
            ErrorCode::truncated_frame,
            text("frame of ", frame.size(), " bytes, the header has ", frame_header_bytes)};
    ByteReader in(frame);
    if (std::memcmp(in.take(sizeof magic).data(), magic, sizeof magic) != 0)
        return Error{ErrorCode::bad_magic, "frame does not begin with MoEx"};
    FrameHeader header;
    header.version = in.u16();
    const std::uint16_t type = in.u16();
    header.payload_bytes = in.u32();
    header.sequence_id = in.u32();
    if (header.version != protocol_version)
        return Error{ErrorCode::unsupported_version, text("frame version ", header.version,
                                                          ", this side speaks ", protocol_version)};
    if (!is_known_frame_type(type))
        return Error{ErrorCode::unknown_type, text("frame type ", type)};
    header.type = static_cast<FrameType>(type);
    const std::uint64_t wanted_bytes = std::uint64_t{header_bytes(header.type)} +
                                       header.payload_bytes;
    if (frame.size() < wanted_bytes)
        return Error{ErrorCode::truncated_frame,
                     text(frame_type_name(header.type), " of ", frame.size(),
                          " bytes, its header says ", wanted_bytes)};
    if (frame.size() > wanted_bytes)
        return Error{ErrorCode::payload_size,
                     text(frame_type_name(header.type), " of ", frame.size(),
                          " bytes, its header says ", wanted_bytes)};
    return header;
}

Result<TensorHeader> decode_tensor_header(ByteView frame) {
    if (frame.size() < tensor_header_bytes)
        return Error{ErrorCode::truncated_frame,
                     text("frame of ", frame.size(), " bytes ends inside its ", tensor_header_bytes,
                          "-byte header")};
    ByteReader in(frame.subspan(frame_header_bytes));
    TensorHeader header;
    header.layer = in.u16();
    header.expert = in.u16();
    header.num_tokens = in.u32();
    header.hidden_dim = in.u16();
    const std::uint8_t dtype = in.u8();
    header.flags = in.u8();
    if (dtype < 1 || dtype > 4)
        return Error{ErrorCode::unknown_dtype, text("dtype ", dtype, ", want 1..4")};
    header.dtype = static_cast<Dtype>(dtype);
    if ((header.flags & ~flag_lz4) != 0)
        return Error{ErrorCode::unknown_flags,
                     text("flags ", header.flags, ", only bit 0 is known here")};
    return header;
}

void begin_frame(ByteWriter& out, FrameType type, std::uint32_t sequence_id) {
    for (const unsigned char byte : magic) out.u8(byte);
    out.u16(protocol_version);
    out.u16(static_cast<std::uint16_t>(type));
    out.u32(0);
    out.u32(sequence_id);
}

void begin_tensor_frame(ByteWriter& out, FrameType type, std::uint32_t sequence_id,
                        const TensorHeader& header) {
    MOEX_DCHECK(has_tensor_header(type), frame_type_name(type));
    begin_frame(out, type, sequence_id);
    out.u16(header.layer);
    out.u16(header.expert);
    out.u32(header.num_tokens);
    out.u16(header.hidden_dim);
    out.u8(static_cast<std::uint8_t>(header.dtype));
    out.u8(header.flags);
}

Bytes finish_frame(ByteWriter&& out) {
    Bytes frame = std::move(out).take();
    MOEX_CHECK(frame.size() >= frame_header_bytes,
               text("a frame of ", frame.size(), " bytes was never begun"));
    const auto type = static_cast<FrameType>(std::to_integer<unsigned>(frame[type_offset_bytes]));
    const std::uint64_t payload_bytes = frame.size() - header_bytes(type);
    MOEX_CHECK(frame.size() <= frame_bytes_max,
               text(frame_type_name(type), " of ", frame.size(), " bytes"));
    patch_payload_bytes(frame, payload_bytes);
    return frame;
}

void patch_payload_bytes(std::span<std::byte> frame, std::uint64_t payload_bytes) {
    for (std::size_t i = 0; i < 4; ++i)
        frame[payload_size_offset_bytes + i] = static_cast<std::byte>(payload_bytes >> (8 * i));
}

}  // namespace moex
