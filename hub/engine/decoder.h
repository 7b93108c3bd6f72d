// One pass of the model over a batch of rows: embeddings, attention
// over the paged KV cache, router, experts by ExpertBackend, head.
// A step serves rows of many sequences and several rows of
// one sequence (prefill now, verification of drafts later).
// A row's arithmetic does not depend on which other
// rows are in the batch. Owner: the engine's thread.
// Source: transformers Qwen3MoeForCausalLM, Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM.
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
    // Of the hub's matrices, the router's excepted. Attention, norms and sums stay f32. Within an
    // arithmetic a row's bits depend on neither batch, chunk nor threads.
    Arithmetic arithmetic = Arithmetic::exact;
    // What int8 arithmetic packs them to (see load_decoder_weights()); a package whose matrices
    // have 4 bits keeps them.
    std::optional<PackedDtype> hub_dtype;
};

class ExpertForesight;

class Decoder : public StepDevice {
  public:
    // Maps the hub's tensors, or packs them for int8; an error names
    // the tensor that is missing or has another shape.
    static Result<std::unique_ptr<Decoder>> create(std::shared_ptr<const ModelPackage> package,
                                                   ThreadPool& threads,
                                                   DecoderOptions options = {});
    ~Decoder() override;
    // Another one on the same matrices, which take memory once: its steps run beside this one's,
    // on `threads`, for another owner; in a trace they are the shadow's.
    std::unique_ptr<Decoder> twin(ThreadPool& threads) const;
    const ModelConfig& config() const override;
    // As run(); `stop` is seen between layers and while experts are waited for.
    // `watch` is called once per MoE layer and micro-batch, rows in the order of the batch.
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
    // Asked once per MoE layer and part where the backend has a use for hints, while the layer's
    // round is on its way. It outlives this; null: nobody.
    void foresee_with(ExpertForesight* foresight);
    ThreadPool& threads() const override;  // those that steps run on

  private:
    Decoder();
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
