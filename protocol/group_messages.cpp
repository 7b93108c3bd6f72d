// GROUP_DISPATCH and GROUP_RESULT: all experts that one worker computes in one round.
#include <algorithm>
#include <cstring>

#include "protocol/group_rows.h"
#include "protocol/messages.h"
#include "protocol/payload.h"

namespace moex {
namespace {

// size of the group header, which follows the common header and is never compressed
constexpr std::size_t group_header_bytes = 16;
constexpr std::size_t body_offset_bytes = frame_header_bytes + group_header_bytes;
static_assert(sizeof(GroupExpert) == 4, "the expert table is copied as it is stored in memory");

std::uint64_t table_bytes(const GroupShape& shape) {
    // Size of the two tables. They have two u16 per expert and two u16 per pair. The size is always
    // a multiple of 4, so that the rows behind the tables need no padding.
    return 4 * std::uint64_t{shape.num_experts} + 4 * std::uint64_t{shape.num_pairs};
}
static_assert(body_offset_bytes == group_result_y_offset);

std::uint32_t result_rows(const GroupShape& shape) {
    return shape.unsummed ? shape.num_pairs : shape.num_tokens;
}

void write_group_header(ByteWriter& out, const GroupShape& shape, std::uint8_t flags) {
    out.u16(shape.layer);
    out.u16(shape.num_experts);
    out.u32(shape.num_tokens);
    out.u16(shape.hidden_dim);
    out.u8(static_cast<std::uint8_t>(shape.dtype));
    out.u8(static_cast<std::uint8_t>(flags | (shape.unsummed ? flag_unsummed : 0)));
    out.u32(shape.num_pairs);
}

std::uint8_t flags_of(const std::optional<RoundTimes>& times) {
    return times ? flag_times : std::uint8_t{0};
}
void write_times(ByteWriter& out, const std::optional<RoundTimes>& times) {
    if (!times) return;
    out.u32(times->worker_us);
    out.u32(times->gpu_us);
}

Bytes group_frame(FrameType type, std::uint32_t sequence_id, const GroupShape& shape, ByteView raw,
                  bool lz4, std::uint8_t flags, const std::optional<RoundTimes>& times = {}) {
    const PackedPayload packed = pack_payload(raw, lz4);
    const ByteView body = packed.bytes(raw);
    ByteWriter out(body_offset_bytes + body.size() + group_result_times_bytes);
    begin_frame(out, type, sequence_id);
    write_group_header(out, shape, static_cast<std::uint8_t>(packed.flags() | flags));
    out.raw(body);
    write_times(out, times);
    return finish_frame(std::move(out));
}

struct GroupHeader {
    std::uint32_t sequence_id = 0;
    GroupShape shape;
    bool lz4 = false, times = false, x_int8 = false;
};

Result<GroupHeader> decode_group_header(ByteView frame, FrameType type, const WireLimits& limits) {
    MOEX_ASSIGN(frame_header, decode_header_of(frame, type));
    if (frame_header.payload_bytes < group_header_bytes)
        return Error{ErrorCode::truncated_frame,
                     text(frame_type_name(type), " ends inside its group header")};

    ByteReader in(frame.subspan(frame_header_bytes));
    GroupHeader header;
    GroupShape& shape = header.shape;
    header.sequence_id = frame_header.sequence_id;
    shape.layer = in.u16();
    shape.num_experts = in.u16();
    shape.num_tokens = in.u32();
    shape.hidden_dim = in.u16();
    const std::uint8_t dtype = in.u8();
    const std::uint8_t flags = in.u8();
    shape.num_pairs = in.u32();

    if (dtype < 1 || dtype > 5 || dtype == static_cast<std::uint8_t>(Dtype::int4))
        return Error{ErrorCode::unknown_dtype,
                     text("dtype ", dtype, " in ", frame_type_name(type), ", want 1, 2, 3 or 5")};
    const bool is_result = type == FrameType::group_result;
    if ((flags & ~(flag_lz4 | flag_unsummed | (is_result ? flag_times : flag_x_int8))) != 0)
        return Error{ErrorCode::unknown_flags,
                     text("flags ", flags, ", bits 0, 1 and ", is_result ? 2 : 3, " are known")};

    shape.dtype = static_cast<Dtype>(dtype);
    shape.unsummed = (flags & flag_unsummed) != 0;
    header.lz4 = (flags & flag_lz4) != 0;
    header.times = (flags & flag_times) != 0;
    header.x_int8 = (flags & flag_x_int8) != 0;

    MOEX_TRY(
        check_rows(shape.num_tokens, limits.num_tokens_max, shape.hidden_dim, limits.hidden_size));
    MOEX_TRY(check_unit(shape.layer, 0, limits.num_layers, limits.num_experts));
    if (shape.num_experts == 0 || shape.num_experts > limits.num_experts)
        return Error{ErrorCode::bad_field,
                     text("num_experts ", shape.num_experts, ", want 1..", limits.num_experts)};
    if (shape.num_pairs < shape.num_experts || shape.num_pairs > limits.num_pairs_max)
        return Error{ErrorCode::bad_field, text("num_pairs ", shape.num_pairs, ", want ",
                                                shape.num_experts, "..", limits.num_pairs_max)};
    return header;
}

// Checks the tables of a group: experts ascend, rows ascend within an expert and are below
// num_tokens, and gates are finite.
Status check_tables(const GroupShape& shape, const std::vector<GroupExpert>& experts,
                    const std::vector<std::uint16_t>& rows, const std::vector<half>& gates,
                    std::uint32_t num_experts) {
    std::uint64_t num_rows = 0;
    for (std::size_t i = 0; i < experts.size(); ++i) {
        if (experts[i].expert >= num_experts)
            return Error{ErrorCode::unknown_expert,
                         text("expert ", experts[i].expert, ", the model has ", num_experts)};
        if (i > 0 && experts[i].expert <= experts[i - 1].expert)
            return Error{ErrorCode::bad_order, text("expert ", experts[i].expert, " behind ",
                                                    experts[i - 1].expert, ", want ascending")};
        if (experts[i].num_rows == 0 || experts[i].num_rows > shape.num_tokens)
            return Error{ErrorCode::bad_field,
                         text("num_rows ", experts[i].num_rows, ", want 1..", shape.num_tokens)};
        num_rows += experts[i].num_rows;
    }
    if (num_rows != shape.num_pairs)
        return Error{ErrorCode::bad_field,
                     text("num_pairs ", shape.num_pairs, ", the experts' rows sum to ", num_rows)};

    std::size_t pair = 0;
    for (const GroupExpert& expert : experts) {
        std::int32_t previous = -1;
        for (std::uint32_t i = 0; i < expert.num_rows; ++i, ++pair) {
            if (rows[pair] >= shape.num_tokens)
                return Error{ErrorCode::bad_field,
                             text("row ", rows[pair], " of ", shape.num_tokens)};
            if (rows[pair] <= previous)
                return Error{ErrorCode::bad_order,
                             text("row ", rows[pair], " behind ", previous, ", want ascending")};
            previous = rows[pair];
        }
    }

    std::uint32_t non_finite = 0;
    for (const half gate : gates) non_finite |= (gate & 0x7c00u) == 0x7c00u ? 1u : 0u;
    if (non_finite != 0)
        return Error{ErrorCode::non_finite, "GROUP_DISPATCH holds a gate that is not finite"};
    return {};
}

template <class T>
void copy_from(std::vector<T>& out, std::size_t count, const std::byte*& from) {
    out.resize(count);
    std::memcpy(out.data(), from, count * sizeof(T));
    from += count * sizeof(T);
}

void check_sizes(const GroupDispatch& message) {
    const GroupShape& shape = message.shape;
    MOEX_CHECK(message.experts.size() == shape.num_experts &&
                   message.rows.size() == shape.num_pairs &&
                   message.gates.size() == shape.num_pairs,
               text(message.experts.size(), " experts, ", message.rows.size(), " rows, ",
                    message.gates.size(), " gates for ", shape.num_experts, " experts, ",
                    shape.num_pairs, " pairs"));
}

void check_rows_of(const GroupDispatch& message, const WireRows& from,
                   std::span<const std::uint32_t> tokens) {
    const GroupShape& shape = message.shape;
    MOEX_CHECK(from.dtype == x_dtype_of(shape, message.x_int8) &&
                   from.row_size == shape.hidden_dim && tokens.size() == shape.num_tokens,
               text(tokens.size(), " rows of ", from.row_size, ' ', dtype_name(from.dtype), " for ",
                    shape.num_tokens, " x ", shape.hidden_dim));
}

// Writes the tables of `message` to `to`, which has room for table_bytes() bytes.
void write_tables(std::byte* to, const GroupDispatch& message) {
    std::memcpy(to, message.experts.data(), 4 * message.experts.size());
    to += 4 * message.experts.size();
    std::memcpy(to, message.rows.data(), 2 * message.rows.size());
    to += 2 * message.rows.size();
    std::memcpy(to, message.gates.data(), 2 * message.gates.size());
}

// Encodes a GROUP_DISPATCH. `write_x` writes the rows of x in wire form into a span of
// wire_rows_bytes() bytes.
template <class WriteX>
Bytes encode_with(const GroupDispatch& message, bool lz4, const WriteX& write_x) {
    const GroupShape& shape = message.shape;
    check_sizes(message);

    const Dtype x_dtype = x_dtype_of(shape, message.x_int8);
    const std::uint8_t flags = message.x_int8 ? flag_x_int8 : std::uint8_t{0};
    const std::uint64_t rows_bytes = wire_rows_bytes(x_dtype, shape.num_tokens, shape.hidden_dim);
    const std::uint64_t raw_bytes = table_bytes(shape) + rows_bytes;

    const auto fill = [&](std::span<std::byte> raw) {
        write_tables(raw.data(), message);
        write_x(raw.last(rows_bytes));
    };

    if (lz4 && lz4_can_encode) {
        Bytes raw(raw_bytes);
        fill(raw);
        return group_frame(FrameType::group_dispatch, message.sequence_id, shape, raw, true, flags);
    }

    ByteWriter out(body_offset_bytes + raw_bytes);
    begin_frame(out, FrameType::group_dispatch, message.sequence_id);
    write_group_header(out, shape, flags);
    fill(out.grow(raw_bytes));
    return finish_frame(std::move(out));
}

}  // namespace

Bytes encode_group_dispatch(const GroupDispatch& message, bool lz4) {
    const GroupShape& shape = message.shape;
    MOEX_CHECK(message.x.size() == std::size_t{shape.num_tokens} * shape.hidden_dim,
               text(message.x.size(), " values for ", shape.num_tokens, " x ", shape.hidden_dim));
    return encode_with(message, lz4, [&](std::span<std::byte> out) {
        encode_rows(x_dtype_of(shape, message.x_int8), message.x, shape.hidden_dim, out);
    });
}

Bytes encode_group_dispatch(const GroupDispatch& message, const WireRows& from,
                            std::span<const std::uint32_t> tokens, bool lz4) {
    check_rows_of(message, from, tokens);
    const std::size_t num_rows = from.num_rows();

    // Write the values of all rows first, and then the scales of int8 rows.
    return encode_with(message, lz4, [&](std::span<std::byte> out) {
        std::byte* to = out.data();
        for (const std::uint32_t row : tokens) {
            MOEX_CHECK(row < num_rows, text("row ", row, " of ", num_rows));
            std::memcpy(to, from.values_of(row).data(), from.value_bytes());
            to += from.value_bytes();
        }
        if (from.scale_bytes() == 0) return;
        for (const std::uint32_t row : tokens) {
            std::memcpy(to, from.scale_of(row).data(), from.scale_bytes());
            to += from.scale_bytes();
        }
    });
}

WireFrame gather_group_dispatch(const GroupDispatch& message, std::shared_ptr<const WireRows> from,
                                std::span<const std::uint32_t> tokens) {
    const GroupShape& shape = message.shape;
    check_sizes(message);
    check_rows_of(message, *from, tokens);

    ByteWriter out(body_offset_bytes + table_bytes(shape));
    begin_frame(out, FrameType::group_dispatch, message.sequence_id);
    write_group_header(out, shape, message.x_int8 ? flag_x_int8 : std::uint8_t{0});
    write_tables(out.grow(table_bytes(shape)).data(), message);
    Bytes head = finish_frame(std::move(out)), tail;
    for (const std::uint32_t row : tokens) {
        const ByteView scale = from->scale_of(row);
        tail.insert(tail.end(), scale.begin(), scale.end());
    }

    const std::uint64_t frame_bytes = head.size() + tokens.size() * from->value_bytes() +
                                      tail.size();
    MOEX_CHECK(frame_bytes <= frame_bytes_max, text("GROUP_DISPATCH of ", frame_bytes, " bytes"));
    patch_payload_bytes(head, frame_bytes - frame_header_bytes);
    return {std::move(head), std::move(from), {tokens.begin(), tokens.end()}, std::move(tail)};
}

Status decode_group_dispatch_into(GroupDispatchView& out, ByteView frame, const WireLimits& limits,
                                  Bytes& scratch) {
    MOEX_ASSIGN(header, decode_group_header(frame, FrameType::group_dispatch, limits));
    const GroupShape& shape = header.shape;

    // A request that fits into a frame may have an answer that is too long for a frame.
    if (const std::uint64_t answer_bytes =
            body_offset_bytes + wire_rows_bytes(shape.dtype, result_rows(shape), shape.hidden_dim);
        answer_bytes > frame_bytes_max)
        return Error{ErrorCode::payload_size, text("the answer would have ", answer_bytes,
                                                   " bytes, at most ", frame_bytes_max)};
    const std::uint64_t rows_bytes = wire_rows_bytes(x_dtype_of(shape, header.x_int8),
                                                     shape.num_tokens, shape.hidden_dim);
    MOEX_ASSIGN(raw, open_payload(frame.subspan(body_offset_bytes), header.lz4,
                                  table_bytes(shape) + rows_bytes, scratch));

    out.sequence_id = header.sequence_id;
    out.shape = shape;
    out.x_int8 = header.x_int8;
    const std::byte* from = raw.data();
    copy_from(out.experts, shape.num_experts, from);
    copy_from(out.rows, shape.num_pairs, from);
    copy_from(out.gates, shape.num_pairs, from);
    out.x_bytes = raw.last(rows_bytes);
    return check_tables(shape, out.experts, out.rows, out.gates, limits.num_experts);
}

Result<GroupDispatch> decode_group_dispatch(ByteView frame, const WireLimits& limits) {
    GroupDispatchView view;
    Bytes scratch;
    MOEX_TRY(decode_group_dispatch_into(view, frame, limits, scratch));

    GroupDispatch message;
    message.sequence_id = view.sequence_id;
    message.shape = view.shape;
    message.x_int8 = view.x_int8;
    message.experts = std::move(view.experts);
    message.rows = std::move(view.rows);
    message.gates = std::move(view.gates);
    message.x.resize(std::size_t{view.shape.num_tokens} * view.shape.hidden_dim);

    if (!decode_rows(view.x_dtype(), view.x_bytes, view.shape.hidden_dim, message.x))
        return Error{ErrorCode::non_finite, "GROUP_DISPATCH holds a value that is not finite"};
    return message;
}

Bytes encode_group_result(const GroupResult& message, bool lz4) {
    const GroupShape& shape = message.shape;
    const std::uint64_t num_rows = result_rows(shape);
    MOEX_CHECK(message.y.size() == num_rows * shape.hidden_dim,
               text(message.y.size(), " values for ", num_rows, " x ", shape.hidden_dim));
    const std::uint64_t raw_bytes = wire_rows_bytes(shape.dtype, num_rows, shape.hidden_dim);
    if (lz4 && lz4_can_encode) {
        Bytes raw(raw_bytes);
        encode_rows(shape.dtype, message.y, shape.hidden_dim, raw);
        return group_frame(FrameType::group_result, message.sequence_id, shape, raw, true,
                           flags_of(message.times), message.times);
    }
    ByteWriter out(body_offset_bytes + raw_bytes + group_result_times_bytes);
    begin_frame(out, FrameType::group_result, message.sequence_id);
    write_group_header(out, shape, flags_of(message.times));
    encode_rows(shape.dtype, message.y, shape.hidden_dim, out.grow(raw_bytes));
    write_times(out, message.times);
    return finish_frame(std::move(out));
}

Bytes encode_group_result_bytes(std::uint32_t sequence_id, const GroupShape& shape,
                                ByteView y_bytes, const std::optional<RoundTimes>& times) {
    MOEX_CHECK(y_bytes.size() == wire_rows_bytes(shape.dtype, result_rows(shape), shape.hidden_dim),
               text(y_bytes.size(), " bytes of y"));
    return group_frame(FrameType::group_result, sequence_id, shape, y_bytes, false, flags_of(times),
                       times);
}

ByteView frame_group_result(std::span<std::byte> frame, std::uint32_t sequence_id,
                            const GroupShape& shape, const std::optional<RoundTimes>& times) {
    const std::uint64_t y_bytes = wire_rows_bytes(shape.dtype, result_rows(shape),
                                                  shape.hidden_dim);
    MOEX_CHECK(frame.size() == body_offset_bytes + y_bytes + group_result_times_bytes,
               text(frame.size(), " bytes of a frame for ", y_bytes, " of y"));
    const std::uint64_t times_bytes = times ? group_result_times_bytes : 0;

    // Encode the parts of the frame around y: the headers and the times.
    ByteWriter out(body_offset_bytes + group_result_times_bytes);
    begin_frame(out, FrameType::group_result, sequence_id);
    write_group_header(out, shape, flags_of(times));
    write_times(out, times);
    Bytes around = finish_frame(std::move(out));
    patch_payload_bytes(around, around.size() - frame_header_bytes + y_bytes);

    std::copy_n(around.begin(), body_offset_bytes, frame.begin());
    std::copy(around.begin() + body_offset_bytes, around.end(),
              frame.begin() + static_cast<std::ptrdiff_t>(body_offset_bytes + y_bytes));
    return frame.first(body_offset_bytes + y_bytes + times_bytes);
}

Result<GroupShape> peek_group_result(ByteView frame, const WireLimits& limits) {
    MOEX_ASSIGN(header, decode_group_header(frame, FrameType::group_result, limits));
    return header.shape;
}

Result<GroupResult> decode_group_result(ByteView frame, const WireLimits& limits) {
    return decode_group_result(frame, limits, {});
}

Result<GroupResult> decode_group_result(ByteView frame, const WireLimits& limits,
                                        std::vector<float> memory) {
    MOEX_ASSIGN(header, decode_group_header(frame, FrameType::group_result, limits));
    const GroupShape& shape = header.shape;
    const std::uint64_t num_rows = result_rows(shape);
    GroupResult message;
    if (header.times) {
        if (frame.size() < body_offset_bytes + group_result_times_bytes)
            return Error{ErrorCode::truncated_frame, "GROUP_RESULT ends inside its times"};
        ByteReader last(frame.last(group_result_times_bytes));
        message.times = RoundTimes{.worker_us = last.u32(), .gpu_us = last.u32()};
        frame = frame.first(frame.size() - group_result_times_bytes);
    }

    Bytes scratch;
    MOEX_ASSIGN(raw,
                open_payload(frame.subspan(body_offset_bytes), header.lz4,
                             wire_rows_bytes(shape.dtype, num_rows, shape.hidden_dim), scratch));

    message.sequence_id = header.sequence_id;
    message.shape = shape;
    const std::size_t num_values = num_rows * shape.hidden_dim;
    // Clear `memory`, so that growing it does not copy old contents.
    if (memory.capacity() < num_values) memory.clear();
    memory.resize(num_values);
    message.y = std::move(memory);

    if (!decode_rows(shape.dtype, raw, shape.hidden_dim, message.y))
        return Error{ErrorCode::non_finite, "GROUP_RESULT holds a value that is not finite"};
    return message;
}

}  // namespace moex
