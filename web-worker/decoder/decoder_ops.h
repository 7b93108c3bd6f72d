// The kernels of a step, each with its constants and buffers, and the commands of a step for a
// given number of rows.
//
// A layer is add_norm, matvec (q, k and v), rope_store, attend_page, attend_merge, matvec (o),
// add_norm, then matvec (router), route, expert_gate_up, expert_down; a dense layer ends with
// expert_gate_up and matvec. With several rows, group_pairs runs before the experts. The next
// add_norm adds a block's output to the residual stream, so that experts may reside in several
// arenas.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "protocol/life_guard.h"
#include "web-worker/decoder/decoder_memory.h"

namespace moex {

inline std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }

// The compiled kernels of one lane, and the commands that run them.
class DecoderOps {
  public:
    // Serves the batches of lane `lane`, whose buffers are memory.lanes[lane].
    DecoderOps(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes,
               const DecoderMemory& memory, std::uint32_t lane);
    ~DecoderOps();
    DecoderOps(const DecoderOps&) = delete;

    // Compiles all kernels and binds their buffers; call it once.
    void create(std::function<void(Status)> done);

    // The functions that append layers take the number of runs, if the rows are those of several
    // sequences of a model with a gated delta rule (DeltaRun).
    //
    // Appends one pass over `num_rows` rows. The last row's position is in page `num_pages` - 1 or
    // an earlier one. Logits are computed for `num_logits` rows (0: none); the header word head_row
    // selects them.
    void append_pass(std::vector<gpu::Command>& commands, std::uint32_t num_rows,
                     std::uint32_t num_pages, std::uint32_t num_logits) const;
    // Append a pass in parts: the embeddings, one layer after the other, the head. A layer whose
    // experts are elsewhere ends with its routes, and the next layer adds the rows that were
    // written to `addends`. append_shared() computes the shared expert of such a layer.
    void append_embed(std::vector<gpu::Command>& commands, std::uint32_t num_rows) const;
    void append_shared(std::vector<gpu::Command>& commands, std::uint32_t index,
                       std::uint32_t num_rows) const;
    // With `is_whole` the rows have the output of the block before already.
    void append_layer(std::vector<gpu::Command>& commands, std::uint32_t index,
                      std::uint32_t num_rows, std::uint32_t num_pages, std::uint32_t num_runs = 1,
                      bool is_whole = false) const;
    void append_head(std::vector<gpu::Command>& commands, std::uint32_t num_logits,
                     bool is_normed = false) const;
    // Appends the final norm of all rows, to `y`, for a caller that reads them. The head then
    // follows with `is_normed`.
    void append_final_norm(std::vector<gpu::Command>& commands, std::uint32_t num_rows) const;
    // Append a layer with attention in three parts: up to the newest keys and values; attention
    // over the pages that the page table names; all that follows. The second part may be repeated
    // for other pages.
    void append_attention_begin(std::vector<gpu::Command>& commands, std::uint32_t index,
                                std::uint32_t num_rows, bool is_whole = false) const;
    void append_attend(std::vector<gpu::Command>& commands, std::uint32_t index,
                       std::uint32_t num_rows, std::uint32_t num_pages) const;
    void append_attention_end(std::vector<gpu::Command>& commands, std::uint32_t index,
                              std::uint32_t num_rows) const;
    // Appends the search for the likeliest tokens of the first `num_rows` rows with logits. Their
    // lists are stored one after the other from likeliest_at() on.
    void append_likeliest(std::vector<gpu::Command>& commands, std::uint32_t num_rows) const;
    std::uint64_t likeliest_at() const { return likeliest_at_; }
    // In a span: appends the last addition to the residual stream. Where others may compute layers
    // whole: appends the addition before layer `index`, unless the rows have it already.
    void append_end_of_span(std::vector<gpu::Command>& commands, std::uint32_t num_rows) const;
    // For a layer with a gated delta rule: what it keeps of the rows that it has just computed, to
    // `span_kv`; and its convolution and recurrence alone, whose inputs are in the buffers.
    void append_kept(std::vector<gpu::Command>& commands, std::uint32_t index,
                     std::uint32_t num_rows) const;
    void append_recurrence(std::vector<gpu::Command>& commands, std::uint32_t index,
                           std::uint32_t num_runs) const {
        append_recurrence(commands, layers_[index], num_runs);
    }
    void append_addition(std::vector<gpu::Command>& commands, std::uint32_t index,
                         std::uint32_t num_rows, bool is_whole) const;
    // Append the copies of keys and values of the layers [first_layer, end_layer) between the cache
    // and the buffer `span_kv`. In a span the rows are those of the pass; otherwise they are in
    // DecoderMemory::copied_rows.
    void append_kv_gather(std::vector<gpu::Command>& commands, std::uint32_t num_rows,
                          std::uint32_t first_layer, std::uint32_t end_layer) const;
    void append_kv_scatter(std::vector<gpu::Command>& commands, std::uint32_t num_rows,
                           std::uint32_t first_layer, std::uint32_t end_layer) const;
    // Appends the choice of the likeliest token, which becomes the input row of the next step.
    void append_choice(std::vector<gpu::Command>& commands) const;

  private:
    struct Op {
        std::string kernel;
        std::vector<gpu::KernelConstant> constants;
        std::vector<gpu::Binding> bindings;
        gpu::PipelineId pipeline;
        gpu::BindGroupId group;
    };
    // A matrix product for single rows and for tiles of several rows, with the workgroups per
    // row and per tile.
    struct Product {
        const Op *row = nullptr, *tile = nullptr;
        std::uint32_t row_groups = 0, tile_groups = 0;
    };
    struct Layer {
        // input_norm_whole: for rows that have the output of the block before already
        const Op *input_norm = nullptr, *input_norm_whole = nullptr, *rope = nullptr,
                 *attend_page = nullptr, *attend_merge = nullptr, *post_attention_norm = nullptr,
                 *route = nullptr, *group_pairs = nullptr, *shared_gate = nullptr,
                 *kv_gather = nullptr, *kv_scatter = nullptr, *gate_attended = nullptr;
        // of a gated delta rule, in place of rope and attention
        const Op *delta_conv = nullptr, *delta_rule = nullptr, *delta_gate = nullptr,
                 *delta_kept = nullptr;  // where rows pass between spans
        Product qkv, o, router, dense_down, output_gate, delta_gates;
        std::vector<Product> gate_up, down;  // one product per arena of experts
    };
    // What the kernels of the experts in one arena need.
    struct ArenaOps {
        const DecoderMemory::Arena& arena;
        ExpertShape shape;
        WeightKind kind;
        gpu::Binding routes;
        std::uint32_t routes_per_row = 1;
        gpu::BufferId intermediate;
        gpu::BufferId y;       // [num_rows * routes_per_row, hidden_size]
        bool has_down = true;  // false: a dense layer, which has a matrix product instead
    };
    struct MatrixRef {
        gpu::BufferId buffer;
        std::uint64_t codes_at = 0, scale_zero_at = 0;
        WeightKind kind = WeightKind::bf16;
        std::uint32_t num_out = 0, num_in = 0;
        const gpu::Binding* bias = nullptr;
    };

    const Op* add(std::string kernel, std::vector<gpu::KernelConstant> constants,
                  std::vector<gpu::Binding> bindings);
    // The rows that a block adds before the next norm: its addends, and those of a shared expert
    // that is computed apart.
    struct Addends {
        std::uint32_t count = 0;
        bool has_shared = false;
    };
    const Op* add_norm(const gpu::Binding& weight, Addends addends, bool for_head);
    Product add_product(const MatrixRef& matrix, gpu::Binding x, gpu::Binding y,
                        std::uint32_t y_stride);
    MatrixRef matrix(gpu::BufferId buffer, WeightKind kind, std::uint32_t num_out,
                     std::uint32_t num_in, const gpu::Binding* bias) const;
    gpu::Binding input_for(WeightKind kind) const;
    void add_layer(std::uint32_t index, Addends addends);
    void add_attention(std::uint32_t index, Layer& layer);
    void add_output_gate(const DecoderMemory::Layer& memory, Layer& layer);
    void add_delta_rule(std::uint32_t index, Layer& layer);
    void add_recurrence(std::uint32_t index, Layer& layer);
    void add_router(const DecoderMemory::Layer& memory, Layer& layer);
    void add_experts(const ArenaOps& arena, Layer& layer);
    void add_ffn(std::uint32_t index, Layer& layer);
    void add_shared(const DecoderMemory::Layer& memory, Layer& layer);
    void add_tables(Addends addends);
    void add_likeliest();
    void add_span(Addends addends);
    void add_kv_copies(gpu::BufferId rows, gpu::BufferId page_table, gpu::BufferId window_table);
    Addends addends_of(std::uint32_t layer) const;
    Status make_groups();

    static void append(std::vector<gpu::Command>& commands, const Op& op, std::uint32_t x,
                       std::uint32_t y, std::uint32_t z = 1, bool same_stage = false);
    static void append(std::vector<gpu::Command>& commands, const Product& product,
                       std::uint32_t num_rows, bool same_stage = false);
    void append_ffn(std::vector<gpu::Command>& commands, std::uint32_t index,
                    std::uint32_t num_rows) const;
    void append_input_norm(std::vector<gpu::Command>& commands, const Layer& layer,
                           std::uint32_t num_rows, bool is_whole) const;
    void append_recurrence(std::vector<gpu::Command>& commands, const Layer& layer,
                           std::uint32_t num_runs) const;
    void append_delta_rule(std::vector<gpu::Command>& commands, const Layer& layer,
                           std::uint32_t num_rows, std::uint32_t num_runs, bool is_whole) const;
    void append_kv_copies(std::vector<gpu::Command>& commands, const Op* Layer::*copy,
                          std::uint32_t num_rows, std::uint32_t first_layer,
                          std::uint32_t end_layer) const;
    void append_experts(std::vector<gpu::Command>& commands, const Layer& layer,
                        std::uint32_t num_rows, std::uint32_t routes_per_row,
                        std::uint32_t num_experts) const;

    gpu::Device& device_;
    const DecoderModel& model_;
    const DecoderSizes& sizes_;
    const DecoderMemory& memory_;
    const DecoderMemory::Lane& lane_;
    std::deque<Op> ops_;
    std::vector<Layer> layers_;
    std::vector<const Op*> embed_;
    std::vector<Product> head_;
    // The kernels that find the likeliest tokens, each with its workgroups per row.
    std::vector<std::pair<const Op*, std::uint32_t>> likeliest_;
    std::uint64_t likeliest_at_ = 0;  // byte offset in the buffer `likeliest`
    // The final norm of rows with logits; of all rows; and of rows with logits once more, behind
    // the one of all rows, which has added what the residual stream lacked.
    const Op *final_norm_ = nullptr, *final_norm_all_ = nullptr, *final_norm_again_ = nullptr;
    const Op *argmax_part_ = nullptr, *argmax_take_ = nullptr;
    LifeGuard life_;
};

}  // namespace moex
