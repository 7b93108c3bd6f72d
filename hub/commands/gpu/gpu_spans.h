// Spans in the steps of a GPU: what workers compute of a pass (hub/engine/span_steps.h). A pass
// stops at the borders of spans. There the rows of the residual stream are read back from the GPU
// and leave, or return to it, and the keys and values that a worker returned are written into the
// GPU's pages.
//   8 layers, span [2, 7): the GPU computes layers 0 and 1, one trip, the GPU computes layer 7
// A layer with a gated delta rule keeps states instead of keys and values. The inputs that a worker
// returns are copied to where the layer's projections would have stored them, and the convolution
// and the recurrence run alone: so the states move on by the kernels of a layer that is computed
// here, along the same slots and journals, and a failed step has changed nothing.
// The GPU computes rows without logits before the others, so that the rows of a sequence need not
// be neighbours there. A worker gets them sequence by sequence.
// Owner: the engine's thread.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "hub/engine/span_steps.h"
#include "web-worker/decoder/gpu_decoder.h"
#include "web-worker/gpu/vulkan/posted_loop.h"

namespace moex {

class GpuSpans : private SpanKvStore {
  public:
    // Both outlive this object.
    GpuSpans(const ModelConfig& config, gpu::PostedLoop& loop)
        : config_(config),
          loop_(loop),
          steps_(config, this) {}
    // `backend` outlives this object; null: no spans.
    void use(SpanBackend* backend) { steps_.use(backend); }
    // Sets the GPU that computes the next passes; null: none.
    void set_gpu(gpu::Device* device, GpuDecoder* decoder) {
        device_ = device;
        decoder_ = decoder;
    }

    // The rows of a micro-batch in the order of the GPU; and of a model with recurrent states, the
    // run of each sequence, in the order in which the rows name the sequences.
    struct Rows {
        std::span<const SequenceRow> rows;
        std::span<const DeltaRun> runs;
    };
    // Plans the spans of a pass. parts[i] are the rows of micro-batch i, which has lane i. With
    // `may_leave` false all layers are computed here.
    [[nodiscard]] Status begin(std::span<const Rows> parts, bool may_leave);
    // Called at the begin of a part's turn, with the layer that follows.
    void enter(std::uint32_t layer);
    // Returns the layer before which the pass of a part stops next; num_layers if it does not.
    std::uint32_t border(std::size_t part) const;
    // A part has stopped before `layer`. `index` are the indices of its rows in the step. Returns
    // true if its rows are at a worker now.
    Result<bool> cross(std::size_t part, std::uint32_t layer, std::span<const std::uint32_t> index,
                       StepResult& result, const std::stop_token& stop);
    // A part has computed `layer`, and its experts are not computed yet. A check needs what a gated
    // delta rule keeps of the rows.
    Status computed(std::size_t part, std::uint32_t layer);
    bool is_away(std::size_t part) const { return part < parts_.size() && parts_[part].end > 0; }
    // Takes the rows of a part back; the pass continues behind the span. If no worker answered,
    // returns the layers that the pass has to compute, with its rows unchanged.
    Result<std::optional<SpanSteps::Layers>> come_back(std::size_t part,
                                                       std::span<const std::uint32_t> index,
                                                       StepResult& result,
                                                       const std::stop_token& stop);
    bool checks_with_weights(std::uint32_t layer) const {
        return steps_.checks_with_weights(layer);
    }
    // Drops all rounds in flight, after a failed pass.
    void drop() { steps_.drop(); }

  private:
    struct Part {
        std::vector<SequenceRow> rows;     // sequence by sequence
        std::vector<std::uint32_t> order;  // for each of `rows`: its number in the pass of the part
        std::vector<float> x;              // their residual stream
        std::uint32_t from = 0;            // the next border is not before this layer
        std::uint32_t end = 0;             // of the span that the rows are in; 0: they are here
    };
    Status read(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                std::uint32_t end_layer, std::span<std::byte> out) override;
    Status write(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                 std::uint32_t end_layer, ByteView kv) override;
    Result<std::vector<float>> state_before_step(const SequenceRow& row,
                                                 std::uint32_t layer) override;
    Status take_kept(std::size_t part, std::span<const SequenceRow> rows, std::uint32_t layer,
                     ByteView kept) override;
    Status read_some(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                     std::uint32_t end_layer, const std::function<void(ByteView kv)>& take);
    void clear_unseen(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                      std::uint32_t end_layer, std::span<std::byte> out) const;
    DecoderBatch list_rows(std::span<const SequenceRow> rows);
    Status read_residual(std::size_t part);
    Result<std::optional<SpanSteps::Layers>> end_span(std::size_t part, std::uint32_t layer,
                                                      std::span<const std::uint32_t> index,
                                                      StepResult& result,
                                                      const std::stop_token& stop);
    std::size_t kv_row_bytes() const {
        return sizeof(half) * 2 * config_.num_kv_heads * config_.head_dim;
    }

    const ModelConfig& config_;
    gpu::PostedLoop& loop_;
    SpanSteps steps_;
    gpu::Device* device_ = nullptr;
    GpuDecoder* decoder_ = nullptr;
    std::vector<Part> parts_;  // empty in a pass without spans
    // The lane and the number of the first run of each sequence in the pass.
    std::map<const KvCache::Sequence*, std::pair<std::uint32_t, std::size_t>> first_runs_;
    std::uint32_t entered_ = 0;
    // the rows of a copy of keys and values, and their page tables
    std::vector<StepRow> step_rows_;
    std::vector<std::uint32_t> pages_, window_pages_;
};

}  // namespace moex
