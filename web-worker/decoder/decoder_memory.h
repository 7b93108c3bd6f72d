// What a decoder keeps on the GPU: weights, the cache of keys and values, and the buffers that a
// step's kernels hand on. Made once; a step creates nothing.
// Matrices have buffers of their own, a table (embeddings, head) and a layer's experts as many as
// one binding's size asks for. All f32 vectors lie in one buffer.
#pragma once

#include <memory>
#include <vector>

#include "web-worker/decoder/decoder_model.h"
#include "web-worker/gpu/device.h"

namespace moex {

// How much a step may take.
struct DecoderSizes {
    std::uint32_t lanes = 1;          // batches that may be under way at once
    std::uint32_t rows = 0;           // of a step, a multiple of 8
    std::uint32_t logit_rows = 0;     // 1, or a multiple of 8
    std::uint32_t pages = 0;          // of keys and values, for all sequences
    std::uint32_t row_pages = 0;      // the most that one sequence has
    std::uint32_t table_entries = 0;  // of a step's page tables
    std::uint64_t part_slots = 0;     // (row, page) pairs that a step's attention has room for
    KvKind kv_kind = KvKind::f32;
    bool spread = false;                    // GpuDecoderOptions
    bool likeliest = false;                 // of rows with logits may be asked
    std::uint32_t ring_ids = 0;             // chosen tokens that the host has not read yet
    std::uint64_t binding_bytes = 0;        // the most that a kernel can bind
    std::uint64_t weight_buffer_bytes = 0;  // of a part of a table, or of a layer's experts
};

class DecoderMemory {
  public:
    struct Shard {  // rows [first_row, first_row + num_rows) of a table
        gpu::BufferId buffer;
        std::uint32_t first_row = 0, num_rows = 0;
        gpu::Binding place;  // TableShard
    };
    struct Arena {  // of a layer's blobs
        gpu::BufferId buffer;
        std::uint32_t first_expert = 0, num_experts = 0;
        gpu::Binding place;  // ArenaPlace
    };
    struct Layer {
        gpu::BufferId qkv, o, router, kv;
        std::vector<Arena> arenas;
        gpu::Binding input_norm, post_attention_norm, qk_norms, qkv_bias, o_bias;
    };

    // What a batch keeps from one layer to the next. All else that a step's kernels hand on is read
    // again within the layer that wrote it.
    struct Lane {
        gpu::BufferId rows, page_table, x, addends;
    };

    // Uploads everything that `source` has to give. An error names what does not fit this GPU.
    static Result<std::unique_ptr<DecoderMemory>> create(gpu::Device& device,
                                                         const DecoderModel& model,
                                                         const DecoderSizes& sizes,
                                                         WeightSource& source);
    ~DecoderMemory();
    DecoderMemory(const DecoderMemory&) = delete;

    // Room for parts of attention: for `rows` rows of the longest sequence, or of as many pages as
    // a binding and the memory that they are worth allow; eight rows at least.
    static std::uint64_t part_slots_of(std::uint64_t binding_bytes, const DecoderModel& model,
                                       std::uint32_t rows, std::uint32_t row_pages);

    // What create() would allocate, but for a few kilobytes.
    struct Needs {
        std::uint64_t weights = 0, kv = 0, step = 0;
        std::uint64_t all() const { return weights + kv + step; }
    };
    static Needs needs_of(const DecoderModel& model, const DecoderSizes& sizes);
    static std::uint64_t kv_page_bytes(const DecoderModel& model, KvKind kind);  // of a layer

    // Lists of candidates of a row: of each stretch of the vocabulary, then what is merged of them,
    // down to one.
    static std::vector<std::uint32_t> likeliest_lists(std::uint32_t vocab_size);
    static std::uint64_t likeliest_bytes(const DecoderModel& model, const DecoderSizes& sizes);

    // The most tiles that group_pairs makes of so many pairs.
    static std::uint32_t tiles_max(std::uint32_t num_pairs, std::uint32_t num_experts);

    std::vector<Layer> layers;
    std::vector<Shard> embeddings, head;  // the same buffers where the head is tied
    gpu::Binding final_norm, no_bias;
    std::vector<Lane> lanes;
    gpu::BufferId ids, best, logits, y, y_transposed, qkv, q, parts, peaks, attended, likeliest,
        router_logits, routes, dense_routes, tiles, intermediate, cos_sin;
    std::uint64_t weight_bytes = 0, kv_bytes = 0;

  private:
    friend class MemoryBuilder;
    explicit DecoderMemory(gpu::Device& device) : device_(device) {}

    gpu::Device& device_;
    std::vector<gpu::BufferId> owned_;
};

}  // namespace moex
