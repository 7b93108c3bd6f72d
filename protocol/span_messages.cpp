#include "protocol/span_messages.h"

#include <algorithm>
#include <cmath>

#include "protocol/payload.h"

namespace moex {
namespace {

constexpr std::size_t assign_head_bytes = 28,
                      assign_layer_bytes = sizeof(Sha256) + 8 + sizeof(Signature), ready_bytes = 28,
                      step_head_bytes = 12, sequence_bytes = 16, answer_head_bytes = 24,
                      kv_head_bytes = 28, state_head_bytes = 24, end_head_bytes = 4;

Error wrong_span_size(FrameType type, std::uint64_t found_bytes, std::uint64_t wanted_bytes) {
    return Error{ErrorCode::payload_size,
                 text(frame_type_name(type), " with ", found_bytes, " bytes, want ", wanted_bytes)};
}

Error wrong_field(FrameType type, const char* field, std::uint64_t found, std::uint64_t most) {
    return Error{ErrorCode::bad_field,
                 text(frame_type_name(type), ": ", field, " is ", found, ", want 1 to ", most)};
}

Status check_count(FrameType type, const char* field, std::uint64_t found, std::uint64_t most) {
    if (found == 0 || found > most) return wrong_field(type, field, found, most);
    return {};
}

Status check_pad(FrameType type, std::uint32_t pad) {
    if (pad == 0) return {};
    return Error{ErrorCode::bad_field, text(frame_type_name(type), ": pad bytes are not zero")};
}

// Reads the dtype of rows.
Result<Dtype> row_dtype(FrameType type, std::uint8_t value) {
    const auto dtype = static_cast<Dtype>(value);
    if (value >= 1 && value <= 5 && dtype != Dtype::int4) return dtype;
    return Error{ErrorCode::unknown_dtype, text(frame_type_name(type), " of dtype ", value)};
}

// Checks the sizes of keys and values: of all their fields, and of the frame that has them.
Status check_kv_shape(FrameType type, std::uint32_t num_rows, std::uint32_t num_layers,
                      std::uint32_t kv_size, const WireLimits& limits) {
    MOEX_TRY(check_count(type, "num_rows", num_rows, span_rows_max));
    MOEX_TRY(
        check_count(type, "num_layers", num_layers, std::min(span_layers_max, limits.num_layers)));
    return check_count(type, "kv_size", kv_size, span_kv_size_max);
}

bool all_finite(ByteView halves) {
    for (std::size_t at = 0; at + 1 < halves.size(); at += 2)
        if ((std::to_integer<unsigned>(halves[at + 1]) & 0x7cu) == 0x7cu) return false;
    return true;
}

}  // namespace

Bytes encode_span_assign(const SpanAssign& message) {
    MOEX_CHECK(message.layers.size() == message.end_layer - message.first_layer,
               "a blob for each layer");
    ByteWriter out(frame_header_bytes + assign_head_bytes +
                   message.layers.size() * assign_layer_bytes);
    begin_frame(out, FrameType::span_assign, 0);
    out.u32(message.span);
    out.u32(message.first_layer);
    out.u32(message.end_layer);
    out.u32(message.context_tokens);
    out.u64(message.kv_bytes_max);
    out.u32(0);
    for (const SpanAssign::Layer& layer : message.layers) {
        out.raw(std::as_bytes(std::span(layer.blob)));
        out.u64(layer.size_bytes);
        out.raw(layer.signature);
    }
    return finish_frame(std::move(out));
}

Result<SpanAssign> decode_span_assign(ByteView frame, const WireLimits& limits) {
    constexpr auto type = FrameType::span_assign;
    MOEX_ASSIGN(header, decode_header_of(frame, type));
    ByteReader in(frame.subspan(frame_header_bytes));
    SpanAssign message;
    message.span = in.u32();
    message.first_layer = in.u32();
    message.end_layer = in.u32();
    message.context_tokens = in.u32();
    message.kv_bytes_max = in.u64();
    const std::uint32_t pad = in.u32();
    if (in.overrun()) return wrong_span_size(type, header.payload_bytes, assign_head_bytes);
    MOEX_TRY(check_pad(type, pad));
    if (message.first_layer >= message.end_layer || message.end_layer > limits.num_layers ||
        message.end_layer - message.first_layer > span_layers_max)
        return Error{ErrorCode::bad_field,
                     text("SPAN_ASSIGN: layers ", message.first_layer, " to ", message.end_layer,
                          ", the model has ", limits.num_layers)};
    MOEX_TRY(check_count(type, "context_tokens", message.context_tokens, 1u << 30));
    const std::size_t num_layers = message.end_layer - message.first_layer;
    if (in.remaining_bytes() != num_layers * assign_layer_bytes)
        return wrong_span_size(type, header.payload_bytes,
                               assign_head_bytes + num_layers * assign_layer_bytes);
    message.layers.resize(num_layers);
    for (SpanAssign::Layer& layer : message.layers) {
        const ByteView blob = in.take(sizeof(Sha256));
        std::copy(blob.begin(), blob.end(), std::as_writable_bytes(std::span(layer.blob)).begin());
        layer.size_bytes = in.u64();
        MOEX_TRY(check_count(type, "size of a layer's blob", layer.size_bytes, 1ull << 32));
        const ByteView signature = in.take(sizeof(Signature));
        std::copy(signature.begin(), signature.end(), layer.signature.begin());
    }
    return message;
}

Bytes encode_span_release(std::uint32_t span) {
    ByteWriter out(frame_header_bytes + 4);
    begin_frame(out, FrameType::span_release, 0);
    out.u32(span);
    return finish_frame(std::move(out));
}

Result<std::uint32_t> decode_span_release(ByteView frame) {
    MOEX_ASSIGN(header, decode_header_of(frame, FrameType::span_release));
    if (header.payload_bytes != 4)
        return wrong_span_size(FrameType::span_release, header.payload_bytes, 4);
    return ByteReader(frame.subspan(frame_header_bytes)).u32();
}

Bytes encode_span_ready(const SpanReady& message) {
    const bool has_states = message.sequences_max > 0;
    ByteWriter out(frame_header_bytes + ready_bytes + (has_states ? 4 : 0));
    begin_frame(out, FrameType::span_ready, 0);
    out.u32(message.span);
    out.u32(message.num_pages);
    out.u32(message.page_tokens);
    out.u32(message.rows_max);
    for (const std::uint32_t us : message.layer_us) out.u32(us);
    if (has_states) out.u32(message.sequences_max);
    return finish_frame(std::move(out));
}

Result<SpanReady> decode_span_ready(ByteView frame) {
    constexpr auto type = FrameType::span_ready;
    MOEX_ASSIGN(header, decode_header_of(frame, type));
    const bool has_states = header.payload_bytes == ready_bytes + 4;
    if (header.payload_bytes != ready_bytes && !has_states)
        return wrong_span_size(type, header.payload_bytes, ready_bytes);
    ByteReader in(frame.subspan(frame_header_bytes));
    SpanReady message;
    message.span = in.u32();
    message.num_pages = in.u32();
    message.page_tokens = in.u32();
    message.rows_max = in.u32();
    for (std::uint32_t& us : message.layer_us) us = in.u32();
    if (has_states) {
        message.sequences_max = in.u32();
        MOEX_TRY(check_count(type, "sequences_max", message.sequences_max, 1u << 16));
    }
    if (message.num_pages == 0) return message;
    MOEX_TRY(check_count(type, "num_pages", message.num_pages, 1u << 24));
    MOEX_TRY(check_count(type, "page_tokens", message.page_tokens, 1u << 16));
    MOEX_TRY(check_count(type, "rows_max", message.rows_max, span_rows_max));
    return message;
}

std::uint32_t SpanStep::num_rows() const {
    std::uint32_t rows = 0;
    for (const SpanSequence& one : sequences) rows += one.num_rows;
    return rows;
}

Bytes encode_span_step(const SpanStep& message, std::uint32_t hidden_size) {
    const std::uint32_t num_rows = message.num_rows();
    MOEX_CHECK(num_rows > 0 && num_rows <= span_rows_max &&
                   message.x.size() == std::size_t{num_rows} * hidden_size,
               text("SPAN_STEP of ", num_rows, " rows with ", message.x.size(), " values"));
    const std::uint64_t x_bytes = wire_rows_bytes(message.dtype, num_rows, hidden_size);
    ByteWriter out(frame_header_bytes + step_head_bytes +
                   message.sequences.size() * sequence_bytes + x_bytes);
    begin_frame(out, FrameType::span_step, message.step);
    out.u32(message.span);
    out.u16(static_cast<std::uint16_t>(message.sequences.size()));
    out.u16(static_cast<std::uint16_t>(num_rows));
    out.u16(static_cast<std::uint16_t>(hidden_size));
    out.u8(static_cast<std::uint8_t>(message.dtype));
    out.u8(0);
    for (const SpanSequence& one : message.sequences) {
        out.u64(one.id);
        out.u32(one.num_before);
        out.u32(one.num_rows);
    }
    encode_rows(message.dtype, message.x, hidden_size, out.grow(x_bytes));
    return finish_frame(std::move(out));
}

Result<SpanStep> decode_span_step(ByteView frame, const WireLimits& limits) {
    constexpr auto type = FrameType::span_step;
    MOEX_ASSIGN(header, decode_header_of(frame, type));
    ByteReader in(frame.subspan(frame_header_bytes));
    SpanStep message{.step = header.sequence_id, .span = in.u32()};
    const std::size_t num_sequences = in.u16();
    const std::uint32_t num_rows = in.u16(), hidden_dim = in.u16();
    const std::uint8_t dtype_value = in.u8(), pad = in.u8();
    if (in.overrun()) return wrong_span_size(type, header.payload_bytes, step_head_bytes);
    MOEX_TRY(check_pad(type, pad));
    MOEX_ASSIGN(dtype, row_dtype(type, dtype_value));
    message.dtype = dtype;
    MOEX_TRY(check_rows(num_rows, span_rows_max, hidden_dim, limits.hidden_size));
    MOEX_TRY(check_count(type, "number of sequences", num_sequences, num_rows));
    const std::uint64_t x_bytes = wire_rows_bytes(dtype, num_rows, hidden_dim),
                        wanted = num_sequences * sequence_bytes + x_bytes;
    if (in.remaining_bytes() != wanted)
        return wrong_span_size(type, header.payload_bytes, step_head_bytes + wanted);

    std::uint64_t rows_of_all = 0;
    message.sequences.resize(num_sequences);
    for (SpanSequence& one : message.sequences) {
        one.id = in.u64();
        one.num_before = in.u32();
        one.num_rows = in.u32();
        rows_of_all += one.num_rows;
        MOEX_TRY(check_count(type, "rows of a sequence", one.num_rows, num_rows));
        if (one.num_before > (1u << 30))
            return wrong_field(type, "num_before", one.num_before, 1u << 30);
        for (const SpanSequence* before = message.sequences.data(); before != &one; ++before)
            if (before->id == one.id)
                return Error{ErrorCode::bad_order, text("SPAN_STEP: sequence ", one.id, " twice")};
    }
    if (rows_of_all != num_rows)
        return Error{ErrorCode::bad_field,
                     text("SPAN_STEP: the sequences have ", rows_of_all, " rows of ", num_rows)};
    message.x.resize(std::size_t{num_rows} * hidden_dim);
    if (!decode_rows(dtype, in.take(x_bytes), hidden_dim, message.x))
        return Error{ErrorCode::non_finite, "SPAN_STEP: a value is not finite"};
    return message;
}

std::uint64_t span_answer_bytes(std::uint32_t hidden_size, std::uint32_t num_rows,
                                std::uint64_t row_values) {
    return frame_header_bytes + answer_head_bytes +
           wire_rows_bytes(Dtype::f32, num_rows, hidden_size) +
           num_rows * row_values * sizeof(half);
}

namespace {

std::uint64_t kept_bytes(const SpanAnswer& message) {
    return message.row_values > 0
               ? std::uint64_t{message.num_rows} * message.row_values * sizeof(half)
               : span_kv_bytes(message.num_layers, message.num_rows, message.kv_size);
}

}  // namespace

Bytes encode_span_answer(const SpanAnswer& message, std::uint32_t hidden_size) {
    const bool done = message.verdict == SpanVerdict::done;
    const std::uint64_t x_bytes =
        done ? wire_rows_bytes(message.dtype, message.num_rows, hidden_size) : 0;
    MOEX_CHECK(message.kv.size() == (done ? kept_bytes(message) : 0),
               "SPAN_ANSWER: keys and values of another shape");
    ByteWriter out(frame_header_bytes + answer_head_bytes + x_bytes + message.kv.size());
    begin_frame(out, FrameType::span_answer, message.step);
    out.u32(message.span);
    out.u8(static_cast<std::uint8_t>(message.verdict));
    out.u8(static_cast<std::uint8_t>(message.dtype));
    out.u16(static_cast<std::uint16_t>(done ? message.num_rows : 0));
    out.u16(static_cast<std::uint16_t>(done ? message.num_layers : 0));
    out.u16(static_cast<std::uint16_t>(done ? hidden_size : 0));
    out.u32(done ? message.kv_size : 0);
    out.u32(message.worker_us);
    out.u32(done ? message.row_values : 0);
    if (done) {
        encode_rows(message.dtype, message.x, hidden_size, out.grow(x_bytes));
        out.raw(message.kv);
    }
    return finish_frame(std::move(out));
}

Result<SpanAnswer> decode_span_answer(ByteView frame, const WireLimits& limits) {
    constexpr auto type = FrameType::span_answer;
    MOEX_ASSIGN(header, decode_header_of(frame, type));
    ByteReader in(frame.subspan(frame_header_bytes));
    SpanAnswer message{.step = header.sequence_id, .span = in.u32()};
    const std::uint8_t verdict = in.u8(), dtype_value = in.u8();
    message.num_rows = in.u16();
    message.num_layers = in.u16();
    const std::uint32_t hidden_dim = in.u16();
    message.kv_size = in.u32();
    message.worker_us = in.u32();
    message.row_values = in.u32();
    if (in.overrun()) return wrong_span_size(type, header.payload_bytes, answer_head_bytes);
    if (verdict > static_cast<std::uint8_t>(SpanVerdict::failed))
        return wrong_field(type, "verdict", verdict, 4);
    message.verdict = static_cast<SpanVerdict>(verdict);
    MOEX_ASSIGN(dtype, row_dtype(type, dtype_value));
    message.dtype = dtype;
    if (message.verdict != SpanVerdict::done) {
        if (in.remaining_bytes() != 0)
            return wrong_span_size(type, header.payload_bytes, answer_head_bytes);
        if (message.num_rows != 0 || message.num_layers != 0 || hidden_dim != 0 ||
            message.kv_size != 0 || message.row_values != 0)
            return Error{ErrorCode::bad_field, "SPAN_ANSWER: a refusal with rows"};
        return message;
    }

    MOEX_TRY(check_rows(message.num_rows, span_rows_max, hidden_dim, limits.hidden_size));
    MOEX_TRY(check_kv_shape(type, message.num_rows, message.num_layers, message.kv_size, limits));
    const std::uint64_t x_bytes = wire_rows_bytes(dtype, message.num_rows, hidden_dim),
                        kv_bytes = kept_bytes(message);
    if (message.row_values > span_row_values_max)
        return wrong_field(type, "row_values", message.row_values, span_row_values_max);
    if (in.remaining_bytes() != x_bytes + kv_bytes)
        return wrong_span_size(type, header.payload_bytes, answer_head_bytes + x_bytes + kv_bytes);
    message.x.resize(std::size_t{message.num_rows} * hidden_dim);
    const bool finite = decode_rows(dtype, in.take(x_bytes), hidden_dim, message.x);
    const ByteView kv = in.take(kv_bytes);
    if (!finite || !all_finite(kv))
        return Error{ErrorCode::non_finite, "SPAN_ANSWER: a value is not finite"};
    message.kv.assign(kv.begin(), kv.end());
    return message;
}

Bytes encode_span_kv(const SpanKv& message) {
    MOEX_CHECK(
        message.rows.size() == span_kv_bytes(message.num_layers, message.num_rows, message.kv_size),
        "SPAN_KV: rows of another shape");
    ByteWriter out(frame_header_bytes + kv_head_bytes + message.rows.size());
    begin_frame(out, FrameType::span_kv, 0);
    out.u32(message.span);
    out.u64(message.sequence);
    out.u32(message.first);
    out.u16(static_cast<std::uint16_t>(message.num_rows));
    out.u16(static_cast<std::uint16_t>(message.num_layers));
    out.u32(message.kv_size);
    out.u32(0);
    out.raw(message.rows);
    return finish_frame(std::move(out));
}

Result<SpanKv> decode_span_kv(ByteView frame, const WireLimits& limits) {
    constexpr auto type = FrameType::span_kv;
    MOEX_ASSIGN(header, decode_header_of(frame, type));
    ByteReader in(frame.subspan(frame_header_bytes));
    SpanKv message;
    message.span = in.u32();
    message.sequence = in.u64();
    message.first = in.u32();
    message.num_rows = in.u16();
    message.num_layers = in.u16();
    message.kv_size = in.u32();
    const std::uint32_t pad = in.u32();
    if (in.overrun()) return wrong_span_size(type, header.payload_bytes, kv_head_bytes);
    MOEX_TRY(check_pad(type, pad));
    MOEX_TRY(check_kv_shape(type, message.num_rows, message.num_layers, message.kv_size, limits));
    if (message.first > (1u << 30)) return wrong_field(type, "first", message.first, 1u << 30);
    const std::uint64_t rows_bytes = span_kv_bytes(message.num_layers, message.num_rows,
                                                   message.kv_size);
    if (in.remaining_bytes() != rows_bytes)
        return wrong_span_size(type, header.payload_bytes, kv_head_bytes + rows_bytes);
    const ByteView rows = in.take(rows_bytes);
    if (!all_finite(rows)) return Error{ErrorCode::non_finite, "SPAN_KV: a value is not finite"};
    message.rows.assign(rows.begin(), rows.end());
    return message;
}

std::uint32_t span_kv_rows_max(std::uint64_t bytes_max, std::uint32_t num_layers,
                               std::uint32_t kv_size) {
    const std::uint64_t fit = bytes_max / span_kv_bytes(num_layers, 1, kv_size);
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(fit, 1, span_rows_max));
}

Bytes encode_span_state(const SpanState& message) {
    const ByteView floats = std::as_bytes(std::span(message.floats));
    ByteWriter out(frame_header_bytes + state_head_bytes + floats.size());
    begin_frame(out, FrameType::span_state, 0);
    out.u32(message.span);
    out.u64(message.sequence);
    out.u32(message.num_tokens);
    out.u16(static_cast<std::uint16_t>(message.index));
    out.u16(static_cast<std::uint16_t>(message.num_layers));
    out.u32(0);
    out.raw(floats);
    return finish_frame(std::move(out));
}

Result<SpanState> decode_span_state(ByteView frame, const WireLimits& limits) {
    constexpr auto type = FrameType::span_state;
    MOEX_ASSIGN(header, decode_header_of(frame, type));
    ByteReader in(frame.subspan(frame_header_bytes));
    SpanState message;
    message.span = in.u32();
    message.sequence = in.u64();
    message.num_tokens = in.u32();
    message.index = in.u16();
    message.num_layers = in.u16();
    const std::uint32_t pad = in.u32();
    if (in.overrun()) return wrong_span_size(type, header.payload_bytes, state_head_bytes);
    MOEX_TRY(check_pad(type, pad));
    MOEX_TRY(check_count(type, "num_tokens", message.num_tokens, 1u << 30));
    MOEX_TRY(check_count(type, "num_layers", message.num_layers,
                         std::min(span_layers_max, limits.num_layers)));
    if (message.index >= message.num_layers)
        return wrong_field(type, "index", message.index, message.num_layers - 1);
    const std::size_t bytes = in.remaining_bytes();
    if (bytes == 0 || bytes % sizeof(float) != 0)
        return wrong_span_size(type, header.payload_bytes, state_head_bytes + sizeof(float));
    message.floats.resize(bytes / sizeof(float));
    const ByteView floats = in.take(bytes);
    std::copy(floats.begin(), floats.end(),
              std::as_writable_bytes(std::span(message.floats)).begin());
    if (!std::all_of(message.floats.begin(), message.floats.end(),
                     [](float one) { return std::isfinite(one); }))
        return Error{ErrorCode::non_finite, "SPAN_STATE: a value is not finite"};
    return message;
}

Bytes encode_span_end(const std::vector<std::uint64_t>& sequences) {
    MOEX_CHECK(!sequences.empty() && sequences.size() <= span_ended_max,
               text("SPAN_END of ", sequences.size(), " sequences"));
    ByteWriter out(frame_header_bytes + end_head_bytes + 8 * sequences.size());
    begin_frame(out, FrameType::span_end, 0);
    out.u32(static_cast<std::uint32_t>(sequences.size()));
    for (const std::uint64_t id : sequences) out.u64(id);
    return finish_frame(std::move(out));
}

Result<std::vector<std::uint64_t>> decode_span_end(ByteView frame) {
    constexpr auto type = FrameType::span_end;
    MOEX_ASSIGN(header, decode_header_of(frame, type));
    ByteReader in(frame.subspan(frame_header_bytes));
    const std::uint32_t count = in.u32();
    if (in.overrun()) return wrong_span_size(type, header.payload_bytes, end_head_bytes);
    MOEX_TRY(check_count(type, "number of sequences", count, span_ended_max));
    if (in.remaining_bytes() != 8 * std::size_t{count})
        return wrong_span_size(type, header.payload_bytes, end_head_bytes + 8 * std::size_t{count});
    std::vector<std::uint64_t> sequences(count);
    for (std::uint64_t& id : sequences) id = in.u64();
    return sequences;
}

}  // namespace moex
