#include "hub/engine/decoder_delta_net.h"

#include <algorithm>
#include <cmath>

#include "hub/engine/kernels/matmul.h"
#include "hub/engine/row_buffer.h"
#include "protocol/half_rows.h"

namespace moex {
namespace {

// Costs of loop iterations for loop_grain(), in passes over floats.
constexpr std::size_t shape_walks = 8, gate_walks = 12, recur_floats = 16384;
// Channels of the convolution that one iteration of its loop computes.
constexpr std::size_t conv_channels = 512;
// Added to the squared length of queries and keys before they are divided by their length.
constexpr float length_eps = 1e-6f;

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// Divides a head by its length, and multiplies it by `scale`.
void normalise(std::span<float> head, float scale) {
    float squares = 0;
    for (const float one : head) squares += one * one;
    scale_by(head, scale / std::sqrt(squares + length_eps));
}

}  // namespace

DecoderDeltaNet::DecoderDeltaNet(const ModelConfig& config, const DecoderWeights& weights,
                                 ThreadPool& threads, const Trace::Row& trace_row)
    : config_(config),
      weights_(weights),
      threads_(threads),
      trace_row_(trace_row),
      shape_(RecurrentShape::of(config)),
      channels_(shape_.channels()),
      value_size_(std::size_t{shape_.delta.value_heads} * shape_.delta.value_dim) {
    std::uint32_t count = 0;
    for (const LayerPlan& plan : config.layers) {
        index_of_layer_.push_back(count);
        if (plan.mixer == Mixer::gated_delta_rule) ++count;
    }
}

void DecoderDeltaNet::project(AttendingRows& batch, std::uint32_t layer_index) {
    const TraceSpan span(trace_row_, "qkvz");
    const DecoderLayer& layer = weights_.layers[layer_index];
    const DeltaNetWeights& net = layer.delta_net;
    const std::size_t num_rows = batch.rows.size(), hidden = config_.hidden_size;
    rows_out(batch.normed, hidden, num_rows);
    const RowsIn normed = rows_in(batch.normed, hidden, num_rows);
    const HubProduct products[] = {{rows_out(columns_, channels_, num_rows), &net.qkv},
                                   {rows_out(z_, value_size_, num_rows), &net.z}};
    multiply(products, normed, batch.codes, threads_, [&](std::size_t r) {
        rms_norm(row_of(batch.normed, r, hidden), row_of(batch.x, r, hidden), layer.input_norm,
                 static_cast<float>(config_.rms_norm_eps));
    });
    const MatmulJob gates[] = {{rows_out(b_, shape_.delta.value_heads, num_rows), net.b, normed},
                               {rows_out(a_, shape_.delta.value_heads, num_rows), net.a, normed}};
    matmul(gates, threads_);
}

void DecoderDeltaNet::find_runs(std::span<const SequenceRow> all, std::uint32_t layer) {
    runs_.clear();
    const DeltaShape& shape = shape_.delta;
    const std::size_t keys = std::size_t{shape.key_heads} * shape.key_dim;
    for (std::uint32_t first = 0; first < all.size();) {
        const SequenceRow& row = all[first];
        std::uint32_t count = 1;
        while (first + count < all.size() && all[first + count].kv == row.kv) ++count;

        RecurrentState::Layer memory = row.kv->recurrent().layer(index_of_layer_[layer]);
        const float* const qkv = &qkv_[first * channels_];
        const DeltaRows rows{
            .first_position = row.position,
            .settled_position = memory.settled_position,
            .q = {qkv, channels_, count},
            .k = {qkv + keys, channels_, count},
            .v = {qkv + 2 * keys, channels_, count},
            .log_decay = {&log_decay_[first * shape.value_heads], shape.value_heads, count},
            .beta = {&beta_[first * shape.value_heads], shape.value_heads, count},
            .out = {nullptr, value_size_}};
        runs_.push_back({.first_row = first,
                         .num_rows = count,
                         .first_position = row.position,
                         .memory = memory,
                         .rows = rows});
        first += count;
    }
}

// Computes some channels of a row of the convolution: silu of the sum over the latest inputs. There
// is no input before position 0.
void DecoderDeltaNet::convolve(const Run& run, const DeltaNetWeights& weights, std::size_t row,
                               std::size_t first_channel, std::size_t num_channels) {
    const std::uint32_t taps = shape_.conv_taps;
    const auto position = run.first_position + static_cast<std::uint32_t>(row - run.first_row);
    float* const out = &qkv_[row * channels_ + first_channel];
    std::fill_n(out, num_channels, 0.0f);
    for (std::uint32_t tap = 0; tap < taps; ++tap) {
        const std::uint32_t back = taps - 1 - tap;
        if (back > position) continue;
        const std::uint32_t from = position - back;
        const float* const input =
            from >= run.first_position
                ? &columns_[(row - back) * channels_ + first_channel]
                : &run.memory.from_columns[from % shape_.columns() * channels_ + first_channel];
        const float* const factors = &weights.conv[tap * channels_ + first_channel];
        for (std::size_t i = 0; i < num_channels; ++i) out[i] += factors[i] * input[i];
    }
    for (std::size_t i = 0; i < num_channels; ++i) out[i] *= sigmoid(out[i]);
}

// Stores the latest inputs of the convolution for the next rows of the sequence.
void DecoderDeltaNet::keep_columns(const Run& run) const {
    const std::uint32_t kept = shape_.columns(), end = run.first_position + run.num_rows;
    const std::span<float> to = run.memory.to_columns;
    if (run.memory.from_columns.data() != to.data())
        std::copy(run.memory.from_columns.begin(), run.memory.from_columns.end(), to.begin());
    const std::uint32_t count = std::min(run.num_rows, kept);
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::size_t row = run.first_row + run.num_rows - count + i;
        std::copy_n(&columns_[row * channels_], channels_,
                    &to[(end - count + i) % kept * channels_]);
    }
}

// Makes a row's queries, keys, decays and strengths from the projections.
void DecoderDeltaNet::shape_row(std::size_t row, const DeltaNetWeights& weights) {
    const DeltaShape& shape = shape_.delta;
    const std::size_t dim = shape.key_dim, keys = shape.key_heads * dim;
    const auto qk = row_of(qkv_, row, channels_).first(2 * keys);
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
    for (std::size_t at = 0; at < keys; at += dim) {
        normalise(qk.subspan(at, dim), scale);
        normalise(qk.subspan(keys + at, dim), 1.0f);
    }
    const std::size_t first = row * shape.value_heads;
    for (std::size_t head = 0; head < shape.value_heads; ++head) {
        log_decay_[first + head] = weights.decay_rate[head] *
                                   softplus(a_[first + head] + weights.dt_bias[head]);
        beta_[first + head] = sigmoid(b_[first + head]);
    }
}

void DecoderDeltaNet::recur(std::vector<float>& out) {
    const TraceSpan span(trace_row_, "recur");
    const DeltaShape& shape = shape_.delta;
    std::size_t floats = 0;
    for (Run& run : runs_) {
        run.rows.out = {&out[run.first_row * value_size_], value_size_};
        floats += run.num_rows * value_size_ * shape.key_dim / shape.key_heads;
    }
    parallel_each(threads_, runs_.size() * shape.key_heads, floats / runs_.size(), recur_floats,
                  [&](std::size_t i) {
                      Run& run = runs_[i / shape.key_heads];
                      const auto head = static_cast<std::uint32_t>(i % shape.key_heads);
                      if (run.memory.extends)
                          run.memory.to.extend(run.memory.from, run.rows, head);
                      else
                          run.memory.to.append(run.rows, head);
                  });
    for (Run& run : runs_)
        if (run.memory.extends)
            run.memory.to.finish_extend(run.rows);
        else
            run.memory.to.finish_append(run.rows);
}

// Normalises each value head of a row's output and multiplies it by its gate.
void DecoderDeltaNet::gate_row(AttendingRows& batch, std::size_t row,
                               const DeltaNetWeights& weights) const {
    const std::size_t dim = shape_.delta.value_dim;
    const auto out = row_of(batch.attended, row, value_size_);
    const float* const z = &z_[row * value_size_];
    for (std::size_t at = 0; at < value_size_; at += dim) {
        const auto head = out.subspan(at, dim);
        rms_norm(head, head, weights.norm, static_cast<float>(config_.rms_norm_eps));
        for (std::size_t i = 0; i < dim; ++i) head[i] *= z[at + i] * sigmoid(z[at + i]);
    }
}

// Computes the inputs of the recurrence from those of the convolution and from b and a.
void DecoderDeltaNet::move_on(std::span<const SequenceRow> rows, std::uint32_t layer_index) {
    const DeltaNetWeights& net = weights_.layers[layer_index].delta_net;
    const std::size_t num_rows = rows.size();
    rows_out(qkv_, channels_, num_rows);
    rows_out(log_decay_, shape_.delta.value_heads, num_rows);
    rows_out(beta_, shape_.delta.value_heads, num_rows);
    find_runs(rows, layer_index);
    const std::size_t blocks = (channels_ + conv_channels - 1) / conv_channels;
    for (const Run& run : runs_)
        parallel_each(threads_, run.num_rows * blocks, shape_.conv_taps * conv_channels,
                      walk_floats, [&](std::size_t i) {
                          const std::size_t at = i % blocks * conv_channels;
                          convolve(run, net, run.first_row + i / blocks, at,
                                   std::min(conv_channels, channels_ - at));
                      });
    for (const Run& run : runs_) keep_columns(run);
    parallel_each(threads_, num_rows, shape_walks * channels_, walk_floats,
                  [&](std::size_t r) { shape_row(r, net); });
}

void DecoderDeltaNet::compute(AttendingRows& batch, std::uint32_t layer_index) {
    const DecoderLayer& layer = weights_.layers[layer_index];
    const DeltaNetWeights& net = layer.delta_net;
    const std::size_t num_rows = batch.rows.size(), hidden = config_.hidden_size;
    project(batch, layer_index);
    num_kept_ = num_rows;

    rows_out(batch.attended, value_size_, num_rows);
    move_on(batch.rows, layer_index);
    recur(batch.attended);
    parallel_each(threads_, num_rows, gate_walks * value_size_, walk_floats,
                  [&](std::size_t r) { gate_row(batch, r, net); });

    const TraceSpan span(trace_row_, "o");
    const HubProduct out[] = {{rows_out(batch.projected, hidden, num_rows), &net.out}};
    multiply(out, rows_in(batch.attended, value_size_, num_rows), batch.codes, threads_);
    add_mixed(batch, layer, config_.layers[layer_index], config_, threads_);
}

void DecoderDeltaNet::append_kept(Bytes& to) const {
    const std::size_t heads = shape_.delta.value_heads;
    for (std::size_t row = 0; row < num_kept_; ++row)
        for (const auto& [values, size] :
             {std::pair(&columns_, channels_), {&b_, heads}, {&a_, heads}}) {
            const std::size_t at = to.size();
            to.resize(at + size * sizeof(half));
            halves_of_floats(values->data() + row * size, size, to.data() + at);
        }
}

void DecoderDeltaNet::take_kept(std::span<const SequenceRow> rows, std::uint32_t layer,
                                ByteView kept) {
    const std::size_t heads = shape_.delta.value_heads, num_rows = rows.size();
    rows_out(columns_, channels_, num_rows);
    rows_out(b_, heads, num_rows);
    rows_out(a_, heads, num_rows);
    const std::byte* from = kept.data();
    for (std::size_t row = 0; row < num_rows; ++row)
        for (const auto& [values, size] :
             {std::pair(&columns_, channels_), {&b_, heads}, {&a_, heads}}) {
            floats_of_halves(from, size, values->data() + row * size);
            from += size * sizeof(half);
        }
    rows_out(ignored_, value_size_, num_rows);
    move_on(rows, layer);
    recur(ignored_);
}

std::vector<float> DecoderDeltaNet::state_before_step(const SequenceRow& row,
                                                      std::uint32_t layer) const {
    return row.kv->recurrent().before_step(index_of_layer_[layer]);
}

}  // namespace moex
