// A pass of the model over a batch of rows: embeddings, attention over the paged KV cache,
// router, experts through ExpertBackend, LM head.
// A step serves rows of many sequences, and may have several rows of the same sequence (prefill
// now, verification of drafts later). The arithmetic of a row does not depend on which other rows
// are in the batch. Owner: the engine's thread.
// What a layer computes is its LayerPlan (hub/model/layer_plan.h).
// Source: transformers' modeling files of the families in hub/model/families.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/arithmetic.h"
#include "hub/engine/expert_backend.h"
#include "hub/engine/expert_predictor.h"
#include "hub/engine/kernels/integer.h"
#include "hub/engine/micro_batches.h"
#include "hub/engine/step_device.h"
#include "hub/model/package/package.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

struct DecoderOptions {
    // The arithmetic of the products with the hub's matrices, except the router's. Attention, norms
    // and sums stay f32. With the same arithmetic the bits of a row depend neither on the batch,
    // nor on the prefill chunk, nor on the threads.
    Arithmetic arithmetic = Arithmetic::exact;
    // The dtype to which matrices are packed for int8 arithmetic (see load_decoder_weights()).
    // Matrices that have 4 bits in the package stay at 4 bits.
    std::optional<PackedDtype> hub_dtype;
};

struct DecoderWeights;
class ExpertForesight;
class SpanBackend;

class Decoder : public StepDevice {
  public:
    // Maps the hub's tensors, or packs them for int8 arithmetic. An error names the tensor that is
    // missing or has another shape.
    static Result<std::unique_ptr<Decoder>> create(std::shared_ptr<const ModelPackage> package,
                                                   ThreadPool& threads,
                                                   DecoderOptions options = {});
    ~Decoder() override;
    // Returns a second decoder that shares this decoder's matrices in memory. The second decoder
    // may belong to another thread. It runs its steps on `threads`, concurrently with this
    // decoder's steps. A trace lists these steps in the row of the shadow.
    std::unique_ptr<Decoder> twin(ThreadPool& threads) const;
    // Returns a decoder of the draft head in `head` (hub/model/package/draft_head.h), with
    // embeddings and LM head of this decoder. This decoder need not outlive it. The layer is number
    // 0. Errors are those of create().
    Result<std::unique_ptr<Decoder>> draft_head(std::shared_ptr<const ModelPackage> head,
                                                ThreadPool& threads) const;
    // Returns the same for a model whose layers are computed elsewhere, e.g. on a GPU: this
    // machine's cores hold its embeddings and LM head for the draft head only.
    static Result<std::unique_ptr<Decoder>> draft_head_of(std::shared_ptr<const ModelPackage> model,
                                                          std::shared_ptr<const ModelPackage> head,
                                                          ThreadPool& threads,
                                                          DecoderOptions options);
    const ModelConfig& config() const override;
    // Does the same as run(), and shows each layer to `watch`, which is called once per MoE layer
    // and micro-batch, with the rows in the order of the batch. `stop` is checked between layers
    // and while the decoder waits for experts.
    Result<StepResult> step(std::span<const StepRows> batch, ExpertBackend& experts,
                            const RouteWatch& watch = {}, std::stop_token stop = {},
                            std::uint32_t micro_batches = 1);
    Result<StepResult> run(std::span<const StepRows> batch, ExpertBackend& experts,
                           std::uint32_t micro_batches, std::stop_token stop) override {
        return step(batch, experts, {}, std::move(stop), micro_batches);
    }
    std::uint32_t micro_batches_max() const override { return MicroBatches::most_ever; }
    void recycle(StepResult&& result) override;
    bool gives_hidden() const override { return true; }
    bool takes_speculators() const override { return true; }
    // Sets the predictor that gives hints to the backend. The decoder calls it once per MoE layer
    // and micro-batch if the backend wants hints, while the layer's round is in flight. `foresight`
    // outlives this decoder; null: no hints.
    void foresee_with(ExpertForesight* foresight);
    // Sets the workers that compute consecutive layers whole (hub/engine/span_backend.h). `spans`
    // outlives this decoder; null: none.
    void use_spans(SpanBackend* spans);
    ThreadPool& threads() const override;  // the pool of threads on which the steps run

  private:
    Decoder();
    static Result<std::unique_ptr<Decoder>> draft_head_with(
        std::shared_ptr<const ModelPackage> model,
        std::shared_ptr<const DecoderWeights> model_weights,
        std::shared_ptr<const ModelPackage> head, ThreadPool& threads, DecoderOptions options);
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
