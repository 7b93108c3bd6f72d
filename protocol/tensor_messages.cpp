// DISPATCH, RESULT, CANCEL, HEARTBEAT and WEIGHT_SYNC: the five published messages.
#include <algorithm>
#include <cstring>

#include "protocol/group_rows.h"
#include "protocol/messages.h"
#include "protocol/payload.h"

namespace moex {
namespace {

std::uint32_t rows_in(std::size_t num_values, std::uint32_t hidden_size, const char* name) {
    MOEX_CHECK(hidden_size != 0 && hidden_size <= 0xffff && num_values != 0 &&
                   num_values % hidden_size == 0,
               text(name, ": ", num_values, " values in rows of ", hidden_size));
    return static_cast<std::uint32_t>(num_values / hidden_size);
}

Bytes tensor_frame(FrameType type, std::uint32_t sequence_id, TensorHeader header, Bytes raw,
                   bool lz4) {
    const PackedPayload packed = pack_payload(raw, lz4);
    const ByteView payload = packed.bytes(raw);
    header.flags = packed.flags();
    ByteWriter out(tensor_header_bytes + payload.size());
    begin_tensor_frame(out, type, sequence_id, header);
    out.raw(payload);
    return finish_frame(std::move(out));
}

struct TensorFrame {
    std::uint32_t sequence_id = 0;
    TensorHeader header;
    ByteView raw;
};

Result<TensorHeader> decode_rows_header(ByteView frame, FrameType type, const WireLimits& limits) {
    MOEX_TRY(decode_header_of(frame, type));
    MOEX_ASSIGN(header, decode_tensor_header(frame));

    if (header.dtype == Dtype::int4)
        return Error{ErrorCode::unknown_dtype, text("int4 rows in ", frame_type_name(type))};
    MOEX_TRY(check_rows(header.num_tokens, limits.num_tokens_max, header.hidden_dim,
                        limits.hidden_size));
    MOEX_TRY(check_unit(header.layer, header.expert, limits.num_layers, limits.num_experts));
    return header;
}

// Decodes a DISPATCH or RESULT. The uncompressed payload has the rows, then `tail_bytes_per_token`
// bytes for each token.
Result<TensorFrame> decode_tensor_frame(ByteView frame, FrameType type, const WireLimits& limits,
                                        std::uint32_t tail_bytes_per_token, Bytes& scratch) {
    MOEX_ASSIGN(frame_header, decode_header_of(frame, type));
    MOEX_ASSIGN(header, decode_rows_header(frame, type, limits));

    const std::uint64_t raw_bytes = wire_rows_bytes(header.dtype, header.num_tokens,
                                                    header.hidden_dim) +
                                    std::uint64_t{header.num_tokens} * tail_bytes_per_token;
    MOEX_ASSIGN(raw, open_payload(frame.subspan(tensor_header_bytes),
                                  (header.flags & flag_lz4) != 0, raw_bytes, scratch));

    TensorFrame decoded;
    decoded.sequence_id = frame_header.sequence_id;
    decoded.header = header;
    decoded.raw = raw;
    return decoded;
}

Status decode_empty(ByteView frame, FrameType type) {
    MOEX_ASSIGN(header, decode_header_of(frame, type));
    if (header.payload_bytes != 0)
        return Error{ErrorCode::payload_size, text(frame_type_name(type), " with ",
                                                   header.payload_bytes, " bytes, want none")};
    return {};
}

}  // namespace

std::uint64_t tensor_frame_bytes_max(const WireLimits& limits) {
    const std::uint64_t rows_max = std::max(limits.num_tokens_max, limits.num_pairs_max);
    const std::uint64_t group_bytes = 16 + 4 * std::uint64_t{limits.num_experts} +
                                      4 * std::uint64_t{limits.num_pairs_max} +
                                      wire_rows_bytes(Dtype::f32, rows_max, limits.hidden_size);
    const std::uint64_t frame_bytes = tensor_header_bytes + lz4_block_bytes_max(group_bytes);
    return std::clamp<std::uint64_t>(frame_bytes, unauthenticated_frame_bytes_max, frame_bytes_max);
}

Bytes encode_dispatch(const Dispatch& message, std::uint32_t hidden_size, bool lz4) {
    const std::uint32_t num_tokens = rows_in(message.x.size(), hidden_size, "DISPATCH");
    MOEX_CHECK(message.gates.size() == num_tokens,
               text(message.gates.size(), " gates for ", num_tokens, " tokens"));

    const std::uint64_t rows_bytes = wire_rows_bytes(message.dtype, num_tokens, hidden_size);
    Bytes raw(rows_bytes + num_tokens * sizeof(half));
    encode_rows(message.dtype, message.x, hidden_size, std::span(raw).first(rows_bytes));
    std::memcpy(raw.data() + rows_bytes, message.gates.data(), num_tokens * sizeof(half));

    const TensorHeader header{message.layer, message.expert,
                              num_tokens,    static_cast<std::uint16_t>(hidden_size),
                              message.dtype, 0};
    return tensor_frame(FrameType::dispatch, message.sequence_id, header, std::move(raw), lz4);
}

Result<Dispatch> decode_dispatch(ByteView frame, const WireLimits& limits) {
    Bytes scratch;
    MOEX_ASSIGN(decoded,
                decode_tensor_frame(frame, FrameType::dispatch, limits, sizeof(half), scratch));

    const TensorHeader& header = decoded.header;
    const std::uint64_t rows_bytes = wire_rows_bytes(header.dtype, header.num_tokens,
                                                     header.hidden_dim);

    Dispatch message;
    message.sequence_id = decoded.sequence_id;
    message.layer = header.layer;
    message.expert = header.expert;
    message.dtype = header.dtype;
    message.x.resize(std::size_t{header.num_tokens} * header.hidden_dim);
    message.gates.resize(header.num_tokens);

    std::memcpy(message.gates.data(), decoded.raw.data() + rows_bytes,
                header.num_tokens * sizeof(half));

    if (!decode_rows(header.dtype, decoded.raw.first(rows_bytes), header.hidden_dim, message.x))
        return Error{ErrorCode::non_finite, "DISPATCH holds a value that is not finite"};
    for (const half gate : message.gates)
        if ((gate & 0x7c00u) == 0x7c00u)
            return Error{ErrorCode::non_finite, "DISPATCH holds a gate that is not finite"};

    return message;
}

Bytes encode_result(const ExpertResult& message, std::uint32_t hidden_size, bool lz4) {
    const std::uint32_t num_tokens = rows_in(message.y.size(), hidden_size, "RESULT");
    Bytes raw(wire_rows_bytes(message.dtype, num_tokens, hidden_size));
    encode_rows(message.dtype, message.y, hidden_size, raw);

    const TensorHeader header{message.layer, message.expert,
                              num_tokens,    static_cast<std::uint16_t>(hidden_size),
                              message.dtype, 0};
    return tensor_frame(FrameType::result, message.sequence_id, header, std::move(raw), lz4);
}

Result<GroupShape> peek_result(ByteView frame, const WireLimits& limits) {
    MOEX_ASSIGN(header, decode_rows_header(frame, FrameType::result, limits));
    return GroupShape{.layer = header.layer,
                      .num_tokens = header.num_tokens,
                      .hidden_dim = header.hidden_dim,
                      .dtype = header.dtype};
}

Result<ExpertResult> decode_result(ByteView frame, const WireLimits& limits) {
    Bytes scratch;
    MOEX_ASSIGN(decoded, decode_tensor_frame(frame, FrameType::result, limits, 0, scratch));
    const TensorHeader& header = decoded.header;

    ExpertResult message;
    message.sequence_id = decoded.sequence_id;
    message.layer = header.layer;
    message.expert = header.expert;
    message.dtype = header.dtype;
    message.y.resize(std::size_t{header.num_tokens} * header.hidden_dim);

    if (!decode_rows(header.dtype, decoded.raw, header.hidden_dim, message.y))
        return Error{ErrorCode::non_finite, "RESULT holds a value that is not finite"};
    return message;
}

Bytes encode_cancel(std::uint32_t sequence_id) {
    ByteWriter out(frame_header_bytes);
    begin_frame(out, FrameType::cancel, sequence_id);
    return finish_frame(std::move(out));
}

Status decode_cancel(ByteView frame) { return decode_empty(frame, FrameType::cancel); }
Status decode_heartbeat(ByteView frame) { return decode_empty(frame, FrameType::heartbeat); }

Bytes encode_heartbeat(std::uint32_t sequence_id, std::string_view json) {
    ByteWriter out(frame_header_bytes + json.size());
    begin_frame(out, FrameType::heartbeat, sequence_id);
    out.raw(as_byte_view(json));
    return finish_frame(std::move(out));
}

Bytes encode_weight_sync(const WeightSync& message, std::uint32_t hidden_size) {
    MOEX_CHECK(hidden_size <= 0xffff, text("hidden_size ", hidden_size));
    const TensorHeader header{
        message.layer, message.expert, 0, static_cast<std::uint16_t>(hidden_size), Dtype::int4, 0};
    ByteWriter out(tensor_header_bytes + message.blob.size());
    begin_tensor_frame(out, FrameType::weight_sync, message.sequence_id, header);
    out.raw(message.blob);
    return finish_frame(std::move(out));
}

Result<WeightSync> decode_weight_sync(ByteView frame, const WireLimits& limits) {
    MOEX_ASSIGN(frame_header, decode_header_of(frame, FrameType::weight_sync));
    MOEX_ASSIGN(header, decode_tensor_header(frame));

    if (header.dtype != Dtype::int4)
        return Error{ErrorCode::unknown_dtype,
                     text("WEIGHT_SYNC of ", dtype_name(header.dtype), ", want int4")};
    if (header.flags != 0)
        return Error{ErrorCode::unknown_flags, "WEIGHT_SYNC is never compressed"};

    if (header.num_tokens != 0)
        return Error{ErrorCode::num_tokens_range,
                     text("WEIGHT_SYNC with num_tokens ", header.num_tokens, ", want 0")};
    if (header.hidden_dim != limits.hidden_size)
        return Error{ErrorCode::bad_field, text("hidden_dim ", header.hidden_dim,
                                                ", the model has ", limits.hidden_size)};

    MOEX_TRY(check_unit(header.layer, header.expert, limits.num_layers, limits.num_experts));
    WeightSync message;
    if (frame_header.payload_bytes != message.blob.size())
        return Error{ErrorCode::payload_size, text("WEIGHT_SYNC with ", frame_header.payload_bytes,
                                                   " bytes, want a SHA-256 of 32")};

    message.sequence_id = frame_header.sequence_id;
    message.layer = header.layer;
    message.expert = header.expert;
    std::memcpy(message.blob.data(), frame.data() + tensor_header_bytes, message.blob.size());
    return message;
}

}  // namespace moex
