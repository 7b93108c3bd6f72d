// Continuous batching: the engine accepts generations from any thread, runs steps on its own
// thread, and passes tokens to the callers as they are drawn.
// A generation is admitted while the KV budget has room for its prompt. Its pages grow with the
// answer. When the pages run out, the youngest sequence is preempted: it returns to the queue and
// is computed again later. Prefill runs in chunks that share steps with decode rows. The chunks are
// cut so that the decode rows do not wait long (hub/engine/step_cost.h). The queue is bounded and
// serves its clients round-robin.
// A cancel frees its sequence within one step or about 50 ms, whichever is shorter: a longer step
// is stopped and begun again without the cancelled sequence. The cancel may take longer where
// cancels follow each other so fast that no step would ever end.
// The engine owns its thread, the KV cache and the sequences. It leaves texts, templates and
// sockets to others.
#pragma once

#include <cstdint>
#include <memory>

#include "hub/engine/engine_types.h"
#include "hub/engine/generation.h"
#include "hub/engine/step_device.h"

namespace moex {

struct EngineState;  // defined in engine_state.h, private to hub/engine

class Engine {
  public:
    // `device` and `experts` must outlive the engine. Throws std::runtime_error when the KV budget
    // is below one page.
    Engine(StepDevice& device, ExpertBackend& experts, EngineOptions options);
    ~Engine();  // stops the engine: running generations end with FinishReason::cancelled

    // Submits a generation; may be called from any thread. Errors: invalid_argument for an empty
    // prompt, a token out of range, or a prompt and max_tokens beyond the context (the message
    // gives both numbers); overloaded when the queue is full; unavailable while draining.
    // `max_tokens` is cut to what the context (or the whole KV budget) leaves.
    Result<GenerationId> submit(GenerationRequest request, GenerationSink sink);
    // Cancels a generation; may be called from any thread. The engine then calls on_end(cancelled),
    // unless the generation has already ended.
    void cancel(GenerationId id);
    EngineCounters counters() const;
    // Stops later generations from using cached pages that `worker` helped to compute; may be
    // called from any thread.
    void forget_worker(std::uint64_t worker);
    // The same, and running generations with such pages compute all of their rows again. They keep
    // their tokens.
    void compute_again_without(std::uint64_t worker);
    // Refuses new generations from now on (submit() returns unavailable); running generations
    // continue.
    void drain();
    bool idle() const;  // true if the on_end of every submitted generation has returned

  private:
    std::unique_ptr<EngineState> state_;
};

}  // namespace moex
