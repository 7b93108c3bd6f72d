// A pass of the model over a batch of rows: embeddings, attention over the paged KV cache,
// router, experts through ExpertBackend, LM head.
// A step serves rows of many sequences, and may have several rows of the same sequence (prefill
// now, verification of drafts later). The arithmetic of a row does not depend on which other rows
// are in the batch. Owner: the engine's thread.
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
    // The arithmetic of the hub's matrices, except the router's. Attention, norms and sums stay
    // f32. Within one arithmetic the bits of a row depend neither on the batch, nor on the chunk,
    // nor on the threads.
    Arithmetic arithmetic = Arithmetic::exact;
    // The dtype that int8 arithmetic packs the matrices to (see load_decoder_weights()). A package
    // whose matrices have 4 bits keeps these 4 bits.
    std::optional<PackedDtype> hub_dtype;
};

class ExpertForesight;

class Decoder : public StepDevice {
  public:
    // Maps the hub's tensors, or packs them for int8. An error names the tensor that is missing or
    // has another shape.
    static Result<std::unique_ptr<Decoder>> create(std::shared_ptr<const ModelPackage> package,
                                                   ThreadPool& threads,
                                                   DecoderOptions options = {});
    ~Decoder() override;
    // Returns another decoder on the same matrices, which are in memory only once. Its steps run
    // concurrently with this decoder's, on `threads`, for another owner; a trace lists them as the
    // shadow's.
    std::unique_ptr<Decoder> twin(ThreadPool& threads) const;
    const ModelConfig& config() const override;
    // Does the same as run(). `stop` is checked between layers and while the decoder waits for
    // experts. `watch` is called once per MoE layer and micro-batch, with the rows in the order of
    // the batch.
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
    // Sets the predictor that gives hints. The decoder asks it once per MoE layer and part if the
    // backend wants hints, while the layer's round is in flight. `foresight` outlives this decoder;
    // null: no hints.
    void foresee_with(ExpertForesight* foresight);
    ThreadPool& threads() const override;  // the threads that steps run on

  private:
    Decoder();
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
