// The buffers of a decoder on the GPU: weights, the cache of keys and values, and the buffers
// through which the kernels of a step pass data on. They are created once; a step creates nothing.
// Each matrix has a buffer of its own. A table (embeddings, head) and a layer's experts are split
// over as many buffers as the size limit of a binding requires. All f32 vectors share one buffer.
#pragma once

#include <memory>
#include <vector>

#include "web-worker/decoder/decoder_model.h"
#include "web-worker/decoder/decoder_sizes.h"
#include "web-worker/gpu/device.h"

namespace moex {

// Owns the GPU buffers of a decoder.
class DecoderMemory {
  public:
    struct Shard {  // rows [first_row, first_row + num_rows) of a table
        gpu::BufferId buffer;
        std::uint32_t first_row = 0, num_rows = 0;
        gpu::Binding place;  // TableShard
    };
    struct Arena {  // some of a layer's expert blobs, in one buffer
        gpu::BufferId buffer;
        std::uint32_t first_expert = 0, num_experts = 0;
        gpu::Binding place;  // ArenaPlace
    };
    struct Layer {
        gpu::BufferId qkv, o, router, kv;
        // of a gated delta rule: the matrix of its small gates, and what it remembers of the
        // sequence
        gpu::BufferId delta_gates, state, columns, journal;
        gpu::BufferId output_gate;
        std::vector<Arena> arenas;
        std::vector<Arena> shared;  // one arena if the layer has a shared expert
        gpu::Binding input_norm, post_attention_norm, qk_norms, qkv_bias, o_bias, sinks,
            router_bias, correction_bias, delta_conv, delta_a_log, delta_dt_bias, delta_norm;
    };

    // The buffers that a batch keeps from one layer to the next. All other buffers of a step's
    // kernels are written and read within one layer, so the lanes share them.
    struct Lane {
        gpu::BufferId rows, page_table, x, addends;
        gpu::BufferId window_table;  // page_table of layers with a window; the same without slots
        gpu::BufferId runs;          // DeltaRun
        gpu::BufferId shared;  // the shared expert's rows, if the routed experts are elsewhere
    };

    using Created = std::function<void(Result<std::unique_ptr<DecoderMemory>>)>;
    // Makes all buffers and uploads all weights that `source` gives, layer by layer, as it prepares
    // them. An error names the size that does not fit this GPU. `model`, `sizes` and `source` are
    // used until `done` is called. A source that is destroyed before destroys the buffers.
    static void create(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes,
                       WeightSource& source, Created done);
    ~DecoderMemory();
    DecoderMemory(const DecoderMemory&) = delete;

    // Returns true if all weights of the layer are uploaded.
    bool holds_layer(std::uint32_t layer) const { return absent_[layer].empty(); }
    // Uploads the weights of the layer that `source` did not have at create().
    Status load_layer(std::uint32_t layer, WeightSource& source);

    // Returns the number of (row, page) slots for parts of attention: enough for `rows` rows of the
    // longest sequence, or as many pages as the binding size and a memory limit allow, but at least
    // enough for eight rows.
    static std::uint64_t part_slots_of(std::uint64_t binding_bytes, const DecoderModel& model,
                                       std::uint32_t rows, std::uint32_t row_pages);

    // Estimates the bytes that create() would allocate; the error is a few kilobytes.
    struct Needs {
        std::uint64_t weights = 0, kv = 0, states = 0, step = 0;
        std::uint64_t all() const { return weights + kv + states + step; }
    };
    static Needs needs_of(const DecoderModel& model, const DecoderSizes& sizes);
    // Returns the bytes of a page in one layer that has keys and values.
    static std::uint64_t kv_page_bytes(const DecoderModel& model, KvKind kind);
    // Returns the number of pages of a layer.
    static std::uint32_t pages_of(const DecoderModel& model, const DecoderSizes& sizes,
                                  std::uint32_t layer) {
        return has_slots(model, sizes, layer) ? sizes.window_slots : sizes.pages;
    }
    static bool has_slots(const DecoderModel& model, const DecoderSizes& sizes,
                          std::uint32_t layer) {
        return sizes.window_slots > 0 && !model.is_delta(layer) && model.window(layer) > 0;
    }
    // Return the bytes of a sequence's state, and of a journal, in one layer with a gated delta
    // rule: the matrices and the latest inputs of the convolution; and these inputs and the gates
    // of DeltaRun::journal_rows rows.
    static std::uint64_t state_bytes(const DecoderModel& model);
    static std::uint64_t journal_bytes(const DecoderModel& model);

    // Returns the bytes of what a layer of a span keeps of a step's rows, as f16: keys and values,
    // or the inputs of a gated delta rule and its gates b and a.
    static std::uint64_t span_kv_layer_bytes(const DecoderModel& model, std::uint32_t layer,
                                             std::uint64_t num_rows) {
        const std::uint64_t values = model.is_delta(layer)
                                         ? model.delta_channels() + 2 * model.delta_value_heads
                                         : 2 * model.kv_size();
        return num_rows * values * sizeof(std::uint16_t);
    }
    // Returns where a layer begins in `span_kv`, whose layers have room for `num_rows` rows.
    // span_kv_at(model, model.num_layers, num_rows) is the size of the buffer.
    static std::uint64_t span_kv_at(const DecoderModel& model, std::uint32_t layer,
                                    std::uint64_t num_rows);

    // Returns the number of candidate lists for a row at each level: one list per stretch of the
    // vocabulary, then the merged lists, down to a single one.
    static std::vector<std::uint32_t> likeliest_lists(std::uint32_t vocab_size);
    static std::uint64_t likeliest_bytes(const DecoderModel& model, const DecoderSizes& sizes);

    // Returns the largest number of tiles that group_pairs makes of `num_pairs` pairs.
    static std::uint32_t tiles_max(std::uint32_t num_pairs, std::uint32_t num_experts);

    std::vector<Layer> layers;
    // `head` has the buffers of `embeddings` if the head is tied.
    std::vector<Shard> embeddings, head;
    gpu::Binding final_norm, no_bias;
    std::vector<Lane> lanes;
    // In a span or for others' layers: keys and values of a step's rows as they are copied out of
    // the cache and into it, and inputs of gated delta rules. span_kv_at() says where each layer
    // begins.
    gpu::BufferId span_kv;
    // The rows of such copies for others' layers, and their page tables.
    gpu::BufferId copied_rows, copied_pages, copied_window_pages;
    gpu::BufferId ids, best, logits, y, y_transposed, qkv, q, parts, peaks, attended, likeliest,
        router_logits, routes, dense_routes, shared_routes, tiles, intermediate,
        shared_intermediate, cos_sin;
    // Of layers with a gated delta rule: inputs after the convolution, small gates, outputs. Of
    // attention: the projection of its gate.
    gpu::BufferId mixed, delta_gates, delta_values, output_gates;
    std::uint64_t weight_bytes = 0, kv_bytes = 0, state_bytes_all = 0;

  private:
    friend class MemoryBuilder;
    explicit DecoderMemory(gpu::Device& device) : device_(device) {}

    struct Build;

    // A part of the weights that is uploaded later, and its place.
    struct Absent {
        gpu::BufferId buffer;
        std::uint64_t at = 0, size_bytes = 0;
        WeightPart part;
    };
    Status upload(const Absent& place, WeightSource& source);

    gpu::Device& device_;
    std::vector<gpu::BufferId> owned_;
    std::vector<std::vector<Absent>> absent_;  // [num_layers]
};

}  // namespace moex
