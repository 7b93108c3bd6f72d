// Messages of spans. A span is a range of consecutive layers that one worker computes whole: norms,
// attention with its keys and values, router and experts. A token then takes one round trip per
// span instead of one per layer. PROTOCOL.md, "Spans", has every byte.
//   model of 8 layers, span 7 = layers [2, 7): the hub computes layers 0 and 1, sends the rows of
//   the residual stream in SPAN_STEP, and continues with SPAN_ANSWER at layer 7
// A step names, for each sequence, the number of tokens before its rows. The worker forgets what it
// holds beyond that number, so that a step may be repeated and a sequence may be rolled back.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/identity.h"
#include "protocol/messages.h"

namespace moex {

// In HELLO: the worker can hold spans. In WELCOME: the hub may assign spans.
inline constexpr const char* span_cap = "span";
// The capabilities of layers whose blobs have version 2, and version 3 (protocol/span_layer.h).
inline constexpr const char* span2_cap = "span2";
inline constexpr const char* span3_cap = "span3";
// In HELLO: experts of a span's layers can take memory once. In WELCOME: the hub counts them once.
inline constexpr const char* span_once_cap = "span_once";

// Limits of the frames; encoders require them and decoders refuse what exceeds them.
inline constexpr std::uint32_t span_layers_max = 256, span_rows_max = 512, span_ended_max = 1024,
                               span_kv_size_max = 1u << 16, span_row_values_max = 1u << 24;

// SPAN_ASSIGN (hub to worker): hold layers [first_layer, end_layer) whole. `layers` names a blob
// for each layer (protocol/span_layer.h), which the worker fetches like the blob of an expert.
struct SpanAssign {
    struct Layer {
        Sha256 blob{};
        std::uint64_t size_bytes = 0;
        // of layer_text() (protocol/signed_package.h); zeros from a hub that signs nothing
        Signature signature{};
        bool operator==(const Layer&) const = default;
    };
    std::uint32_t span = 0;  // chosen by the hub; never used again on this connection
    std::uint32_t first_layer = 0, end_layer = 0;
    std::uint32_t context_tokens = 0;  // limit of a sequence's tokens
    std::uint64_t kv_bytes_max = 0;    // limit for keys and values
    std::vector<Layer> layers;         // [end_layer - first_layer]
};
Bytes encode_span_assign(const SpanAssign& message);
Result<SpanAssign> decode_span_assign(ByteView frame, const WireLimits& limits);

// SPAN_RELEASE (hub to worker): drop the span. The worker answers no further step of it.
Bytes encode_span_release(std::uint32_t span);
Result<std::uint32_t> decode_span_release(ByteView frame);

// SPAN_READY (worker to hub): the span is loaded, or cannot be held (num_pages 0).
struct SpanReady {
    std::uint32_t span = 0;
    std::uint32_t num_pages = 0;    // pages for keys and values, shared by all sequences
    std::uint32_t page_tokens = 0;  // tokens of a page
    std::uint32_t rows_max = 0;     // limit of rows in a step
    // Of a span with recurrent states: limit of sequences; 0: the pages are the only limit.
    std::uint32_t sequences_max = 0;
    // Measured time of a layer for a step of 1, 8 and 64 rows, in microseconds; 0: not measured.
    std::array<std::uint32_t, 3> layer_us{};
    bool operator==(const SpanReady&) const = default;
};
Bytes encode_span_ready(const SpanReady& message);
Result<SpanReady> decode_span_ready(ByteView frame);

// The rows of one sequence in a step: they have the positions [num_before, num_before + num_rows).
struct SpanSequence {
    std::uint64_t id = 0;          // chosen by the hub
    std::uint32_t num_before = 0;  // tokens of the sequence before these rows
    std::uint32_t num_rows = 0;
    bool operator==(const SpanSequence&) const = default;
};
// In a span with recurrent layers, the worker keeps the state before the rows of a step if a
// sequence has at most this number of them, so that the next step may begin at any of these rows.
// Otherwise it keeps the state behind them.
inline constexpr std::uint32_t span_kept_rows = 9;
// SPAN_STEP (hub to worker): compute the span for rows of the residual stream. `step` numbers the
// steps of a connection and is the frame's sequence id.
struct SpanStep {
    std::uint32_t step = 0;
    std::uint32_t span = 0;
    Dtype dtype = Dtype::f32;  // of x, and of the answer's x
    std::vector<SpanSequence> sequences;
    std::vector<float> x;  // [num_rows, hidden_size], in the order of the sequences
    std::uint32_t num_rows() const;
};
Bytes encode_span_step(const SpanStep& message, std::uint32_t hidden_size);
Result<SpanStep> decode_span_step(ByteView frame, const WireLimits& limits);

// The reason for which a worker computed no answer.
enum class SpanVerdict : std::uint8_t {
    done = 0,
    // the worker holds fewer tokens of a sequence than `num_before`; see SPAN_KV
    unknown_sequence = 1,
    no_pages = 2,  // no room for the keys and values, or for the state of the sequence
    no_span = 3,   // the worker does not hold the span
    failed = 4,    // the device failed
};
// SPAN_ANSWER (worker to hub): the residual stream behind the span, and what each layer keeps of
// the step's rows. A layer with attention keeps keys and values. A layer with a gated delta rule
// keeps the inputs of its recurrence (q, k and v before the convolution, then b and a of each value
// head), from which the hub computes the layer's state without its matrices. A refusal (another
// verdict than `done`) has no rows.
struct SpanAnswer {
    std::uint32_t step = 0;
    std::uint32_t span = 0;
    SpanVerdict verdict = SpanVerdict::done;
    Dtype dtype = Dtype::f32;
    std::uint32_t num_rows = 0, num_layers = 0;
    std::uint32_t kv_size = 0;    // num_kv_heads * head_dim
    std::uint32_t worker_us = 0;  // from the arrival of the step to the departure of the answer
    // Of a span with recurrent layers: the number of values that all layers keep of a row; 0: each
    // layer keeps 2 * kv_size values.
    std::uint32_t row_values = 0;
    std::vector<float> x;  // [num_rows, hidden_size]
    // f16 [num_layers, num_rows, key then value, kv_size], or of recurrent layers their inputs
    Bytes kv;
};
Bytes encode_span_answer(const SpanAnswer& message, std::uint32_t hidden_size);
// Error non_finite: a value of x, or a key or value, is not finite.
Result<SpanAnswer> decode_span_answer(ByteView frame, const WireLimits& limits);
// Returns the size of the frame of an answer with rows, of which all layers keep `row_values`
// values.
std::uint64_t span_answer_bytes(std::uint32_t hidden_size, std::uint32_t num_rows,
                                std::uint64_t row_values);

// SPAN_KV (hub to worker): keys and values that were computed elsewhere. They are the positions
// [first, first + num_rows) of the sequence, which has at least `first` tokens at the worker, and
// `first + num_rows` tokens afterwards. Of a span with recurrent layers, only the others are meant.
struct SpanKv {
    std::uint32_t span = 0;
    std::uint64_t sequence = 0;
    std::uint32_t first = 0, num_rows = 0, num_layers = 0;
    std::uint32_t kv_size = 0;
    Bytes rows;  // f16 [num_layers, num_rows, key then value, kv_size]
};
Bytes encode_span_kv(const SpanKv& message);
Result<SpanKv> decode_span_kv(ByteView frame, const WireLimits& limits);
// Returns the most rows that fit into a SPAN_KV frame of `bytes_max` bytes, at least 1.
std::uint32_t span_kv_rows_max(std::uint64_t bytes_max, std::uint32_t num_layers,
                               std::uint32_t kv_size);
// Returns the bytes of the keys and values of `num_rows` rows.
inline std::uint64_t span_kv_bytes(std::uint64_t num_layers, std::uint64_t num_rows,
                                   std::uint64_t kv_size) {
    return num_layers * num_rows * 2 * kv_size * sizeof(half);
}

// SPAN_STATE (hub to worker): the state of a sequence after its first `num_tokens` tokens in one
// recurrent layer, which was computed elsewhere. The frames of a span's recurrent layers follow
// each other in the order of the layers, behind the keys and values of these tokens.
struct SpanState {
    std::uint32_t span = 0;
    std::uint64_t sequence = 0;
    std::uint32_t num_tokens = 0;
    // Counts the span's recurrent layers.
    std::uint32_t index = 0, num_layers = 0;
    // f32 [value_heads, key_dim, value_dim]: S, then [conv_taps - 1, channels]: the latest inputs
    // of the convolution, the oldest first; zeros before the first token
    std::vector<float> floats;
};
Bytes encode_span_state(const SpanState& message);
// Error non_finite: a value is not finite.
Result<SpanState> decode_span_state(ByteView frame, const WireLimits& limits);

// SPAN_END (hub to worker): these sequences have ended. The worker overwrites their keys and values
// with zeros, and their states, in all of its spans.
Bytes encode_span_end(const std::vector<std::uint64_t>& sequences);
Result<std::vector<std::uint64_t>> decode_span_end(ByteView frame);

}  // namespace moex
