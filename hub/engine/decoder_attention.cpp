#include "hub/engine/decoder_attention.h"

#include <algorithm>
#include <cmath>

#include "hub/engine/kernels/matmul.h"
#include "hub/engine/row_buffer.h"

namespace moex {
namespace {

// Costs of loop iterations for loop_grain(). A range of the attention loop reads at least this many
// floats of keys and values. Adding a row costs as much as 2 passes over its floats, and rotating
// heads (RoPE) as much as 4.
constexpr std::size_t attend_floats = 16384;
constexpr std::size_t add_walks = 2, turn_walks = 4, gate_walks = 8;

void clamp(std::span<float> values, double limit) {
    const auto most = static_cast<float>(limit);
    for (float& value : values) value = std::clamp(value, -most, most);
}

}  // namespace

void add_mixed(AttendingRows& batch, const DecoderLayer& layer, const LayerPlan& plan,
               const ModelConfig& config, ThreadPool& threads) {
    const std::size_t hidden = config.hidden_size;
    parallel_each(threads, batch.rows.size(), (add_walks + 1) * hidden, walk_floats,
                  [&](std::size_t r) {
                      const auto x = row_of(batch.x, r, hidden),
                                 projected = row_of(batch.projected, r, hidden);
                      if (plan.has_o_bias) add_to(projected, layer.o_bias);
                      add_branch(x, projected, plan);
                      rms_norm(row_of(batch.normed, r, hidden), x, layer.post_attention_norm,
                               static_cast<float>(config.rms_norm_eps));
                  });
}

DecoderAttention::DecoderAttention(const ModelConfig& config, const DecoderWeights& weights,
                                   const LayerRopes& ropes, ThreadPool& threads,
                                   const Trace::Row& trace_row)
    : config_(config),
      weights_(weights),
      ropes_(ropes),
      threads_(threads),
      trace_row_(trace_row),
      shape_{config.num_heads, config.num_kv_heads, config.head_dim},
      q_size_(config.num_heads * config.head_dim),
      kv_size_(config.num_kv_heads * config.head_dim) {}

void DecoderAttention::norm(std::span<float> out, std::span<const float> x,
                            std::span<const float> weight) const {
    rms_norm(out, x, weight, static_cast<float>(config_.rms_norm_eps));
}

std::size_t DecoderAttention::turn_floats() const {
    return turn_walks * (shape_.heads_per_kv() + 2) * config_.head_dim;
}

// Computes q, k and v from norm(x).
void DecoderAttention::project(AttendingRows& batch, std::uint32_t layer_index) const {
    const TraceSpan span(trace_row_, "qkv");
    const DecoderLayer& layer = weights_.layers[layer_index];
    const std::size_t num_rows = batch.rows.size();
    rows_out(batch.normed, config_.hidden_size, num_rows);
    const HubProduct products[] = {
        {rows_out(batch.q, q_size_, num_rows), &layer.q},
        {rows_out(batch.k, kv_size_, num_rows), &layer.k},
        {rows_out(batch.v, kv_size_, num_rows), &layer.v},
        {rows_out(batch.output_gate, q_size_, num_rows), &layer.output_gate}};
    const bool has_gate = config_.layers[layer_index].has_output_gate;
    multiply(std::span(products).first(has_gate ? 4 : 3),
             rows_in(batch.normed, config_.hidden_size, num_rows), batch.codes, threads_,
             [&](std::size_t r) {
                 norm(row_of(batch.normed, r, config_.hidden_size),
                      row_of(batch.x, r, config_.hidden_size), layer.input_norm);
             });
    norm_rows(batch, layer_index);
}

// Normalises q and k over all heads of a row together, where the plan wants it. Their biases come
// first.
void DecoderAttention::norm_rows(AttendingRows& batch, std::uint32_t layer_index) const {
    const DecoderLayer& layer = weights_.layers[layer_index];
    const LayerPlan& plan = config_.layers[layer_index];
    if (plan.qk_norm != QkNorm::all_heads) return;
    parallel_each(threads_, batch.rows.size(), q_size_ + kv_size_, walk_floats, [&](std::size_t r) {
        const auto q = row_of(batch.q, r, q_size_), k = row_of(batch.k, r, kv_size_);
        if (plan.has_qkv_bias) {
            add_to(q, layer.q_bias);
            add_to(k, layer.k_bias);
        }
        norm(q, q, layer.q_norm);
        norm(k, k, layer.k_norm);
    });
}

// Adds biases to one kv head and its query heads in row `r`, normalises and rotates them, and
// stores k and v in the cache.
void DecoderAttention::turn_heads(AttendingRows& batch, std::uint32_t layer_index, std::size_t r,
                                  std::uint32_t kv_head) const {
    const DecoderLayer& layer = weights_.layers[layer_index];
    const LayerPlan& plan = config_.layers[layer_index];
    const SequenceRow& row = batch.rows[r];
    const std::size_t head = config_.head_dim, group = shape_.heads_per_kv() * head;
    const auto q = row_of(batch.q, r, q_size_).subspan(kv_head * group, group),
               k = row_of(batch.k, r, kv_size_).subspan(kv_head * head, head),
               v = row_of(batch.v, r, kv_size_).subspan(kv_head * head, head);

    const bool is_normed = plan.qk_norm == QkNorm::all_heads;  // by norm_rows()
    if (plan.has_qkv_bias) {
        if (!is_normed) {
            add_to(q, std::span(layer.q_bias).subspan(kv_head * group, group));
            add_to(k, std::span(layer.k_bias).subspan(kv_head * head, head));
        }
        add_to(v, std::span(layer.v_bias).subspan(kv_head * head, head));
    }

    const auto cos_sin = ropes_.cos_sin_of(layer_index,
                                           row_of(batch.cos_sin, r, ropes_.row_size()));
    const auto turn = [&](std::span<float> heads, std::span<const float> weight) {
        for (std::size_t at = 0; at < heads.size(); at += head) {
            const auto one = heads.subspan(at, head);
            if (!weight.empty() && !is_normed) norm(one, one, weight);
            if (plan.clip_qkv != 0) clamp(one, plan.clip_qkv);
            Rope::rotate(one, cos_sin);
        }
    };
    turn(q, layer.q_norm);
    turn(k, layer.k_norm);
    if (plan.clip_qkv != 0) clamp(v, plan.clip_qkv);
    row.kv->store_head(layer_index, kv_head, row.position, k, v);
}

void DecoderAttention::turn_all_heads(AttendingRows& batch, std::uint32_t layer_index) const {
    const std::size_t num_heads = batch.rows.size() * config_.num_kv_heads;
    parallel_each(threads_, num_heads, turn_floats(), walk_floats, [&](std::size_t i) {
        turn_heads(batch, layer_index, i / config_.num_kv_heads,
                   static_cast<std::uint32_t>(i % config_.num_kv_heads));
    });
}

// Groups consecutive rows of the same sequence into a task, up to attend_rows_max() rows.
std::vector<AttendTask> DecoderAttention::tasks_of(AttendingRows& batch,
                                                   std::uint32_t layer_index) const {
    const std::size_t num_rows = batch.rows.size(),
                      group_floats = std::size_t{shape_.heads_per_kv()} * config_.head_dim;
    const LayerPlan& plan = config_.layers[layer_index];
    const std::span<const float> sinks = weights_.layers[layer_index].sinks;
    const auto sinks_of = [&](std::size_t kv_head) {
        const std::size_t heads = shape_.heads_per_kv();
        return sinks.empty() ? sinks : sinks.subspan(kv_head * heads, heads);
    };
    std::vector<AttendTask> tasks;
    for (std::uint32_t first = 0; first < num_rows;) {
        const SequenceRow& row = batch.rows[first];
        std::uint32_t count = 1;
        while (first + count < num_rows && batch.rows[first + count].kv == row.kv &&
               count < attend_rows_max(shape_))
            ++count;

        for (std::uint32_t kv_head = 0; kv_head < config_.num_kv_heads; ++kv_head)
            tasks.push_back(
                {.q = {batch.q.data() + first * q_size_ + kv_head * group_floats, q_size_, count},
                 .kv = row.kv,
                 .layer = layer_index,
                 .kv_head = kv_head,
                 .first_position = row.position,
                 .window = plan.window,
                 .scale = static_cast<float>(plan.attention_scale),
                 .sinks = sinks_of(kv_head)});
        first += count;
    }
    return tasks;
}

void DecoderAttention::attend_rows(AttendingRows& batch, std::uint32_t layer_index) const {
    const TraceSpan span(trace_row_, "attend");
    rows_out(batch.attended, q_size_, batch.rows.size());
    const std::vector<AttendTask> tasks = tasks_of(batch, layer_index);
    const auto out_of = [&](const AttendTask& task) {
        return RowsOut{batch.attended.data() + (task.q.data - batch.q.data()), q_size_};
    };

    // `floats`: number of floats of keys and values that all tasks read
    std::size_t num_blocks = 0, most_blocks = 0, floats = 0;
    for (const AttendTask& task : tasks) {
        const std::size_t blocks = attend_blocks(task);
        num_blocks += blocks;
        most_blocks = std::max(most_blocks, blocks);
        floats += std::size_t{task.num_seen()} * task.q.num_rows * shape_.heads_per_kv() *
                  config_.head_dim;
    }
    // If one task has more blocks than an equal share per thread, several threads share the blocks
    // of a task.
    const bool is_split = most_blocks > 1 && most_blocks * threads_.num_threads() > num_blocks;
    // If every row belongs to a different sequence, no row reads another row's key. Then the task
    // that computes a row's attention also rotates the row's heads.
    const bool are_alone = std::adjacent_find(batch.rows.begin(), batch.rows.end(),
                                              [](const SequenceRow& a, const SequenceRow& b) {
                                                  return a.kv == b.kv;
                                              }) == batch.rows.end();
    if (is_split || !are_alone) turn_all_heads(batch, layer_index);
    if (is_split) return attend_split(batch, tasks, num_blocks, out_of);

    const std::size_t each = floats / tasks.size() + (are_alone ? turn_floats() : 0);
    parallel_each(threads_, tasks.size(), each, attend_floats, [&](std::size_t i) {
        if (are_alone) turn_heads(batch, layer_index, i / config_.num_kv_heads, tasks[i].kv_head);
        attend(out_of(tasks[i]), tasks[i], shape_);
    });
}

void DecoderAttention::attend_split(AttendingRows& batch, std::span<const AttendTask> tasks,
                                    std::size_t num_blocks,
                                    const std::function<RowsOut(const AttendTask&)>& out_of) const {
    struct Block {
        const AttendTask* task = nullptr;
        std::uint32_t index = 0;
        std::size_t part = 0;  // index of the first float of the part
    };
    std::vector<Block> blocks;
    std::vector<std::size_t> first_part{0};
    blocks.reserve(num_blocks);
    for (const AttendTask& task : tasks) {
        std::size_t at = first_part.back();
        for (std::uint32_t block = 0; block < attend_blocks(task); ++block) {
            blocks.push_back({&task, block, at});
            at += attend_part_floats(task.q.num_rows, shape_);
        }
        first_part.push_back(at);
    }
    if (batch.attend_parts.size() < first_part.back()) batch.attend_parts.resize(first_part.back());
    const std::span<float> parts = batch.attend_parts;

    threads_.parallel_for(blocks.size(), 1, [&](std::size_t begin, std::size_t end) {
        for (const Block& one : std::span(blocks).subspan(begin, end - begin))
            attend_block(parts.subspan(one.part, attend_part_floats(one.task->q.num_rows, shape_)),
                         *one.task, one.index, shape_);
    });
    for (std::size_t i = 0; i < tasks.size(); ++i)
        merge_parts(out_of(tasks[i]),
                    parts.subspan(first_part[i], first_part[i + 1] - first_part[i]), tasks[i],
                    shape_);
}

// Multiplies what attention computed by the sigmoid of the gate's projection.
void DecoderAttention::gate_rows(AttendingRows& batch) const {
    parallel_each(threads_, batch.rows.size(), gate_walks * q_size_, walk_floats,
                  [&](std::size_t r) {
                      const auto attended = row_of(batch.attended, r, q_size_),
                                 gate = row_of(batch.output_gate, r, q_size_);
                      for (std::size_t i = 0; i < q_size_; ++i)
                          attended[i] /= 1.0f + std::exp(-gate[i]);
                  });
}

// Computes x += o(attention(norm(x))) for each row, and then norm(x). The keys and values of the
// rows enter the cache first, so that rows of the same sequence see each other.
void DecoderAttention::compute(AttendingRows& batch, std::uint32_t layer_index) const {
    const DecoderLayer& layer = weights_.layers[layer_index];
    const LayerPlan& plan = config_.layers[layer_index];
    const std::size_t num_rows = batch.rows.size();
    project(batch, layer_index);

    attend_rows(batch, layer_index);
    if (plan.has_output_gate) gate_rows(batch);

    const TraceSpan span(trace_row_, "o");
    const HubProduct out[] = {{rows_out(batch.projected, config_.hidden_size, num_rows), &layer.o}};
    multiply(out, rows_in(batch.attended, q_size_, num_rows), batch.codes, threads_);

    add_mixed(batch, layer, plan, config_, threads_);
}

}  // namespace moex
