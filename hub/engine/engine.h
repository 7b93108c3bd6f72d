// Continuous batching: takes generations from anyone, runs
// steps on its own thread, hands tokens back as they come.
// Admission while the KV budget has room for the prompt; pages grow with the answer,
// and when they run out the youngest sequence is preempted: it goes back into the queue and is
// computed again later. Prefill in chunks mixed with decode rows, cut so that these
// do not wait long (hub/engine/step_cost.h); a bounded queue, in which clients take turns.
// Cancel frees within a step or about 50 ms, whichever is shorter: a
// longer step is stopped and begun again without the cancelled one (later,
// where cancels follow each other so fast that no step would ever end).
// Owns the engine thread, the KV cache and the sequences;
// leaves texts, templates and sockets to others.
#pragma once

#include <cstdint>
#include <memory>

#include "hub/engine/engine_types.h"
#include "hub/engine/generation.h"
#include "hub/engine/step_device.h"

namespace moex {

struct EngineState;  // in engine_state.h, for this room alone

class Engine {
  public:
    // `device` and `experts` outlive the engine. Throws
    // std::runtime_error when the KV budget is below one page.
    Engine(StepDevice& device, ExpertBackend& experts, EngineOptions options);
    ~Engine();  // stops: what runs ends with FinishReason::cancelled

    // From any thread. invalid_argument: empty prompt, token out of range,
    // prompt and max_tokens beyond the context (both numbers named);
    // overloaded: the queue is full; unavailable: draining. `max_tokens`
    // is cut to what the context (or the whole KV budget) leaves.
    Result<GenerationId> submit(GenerationRequest request, GenerationSink sink);
    // from any thread; on_end(cancelled) follows, unless it ended before
    void cancel(GenerationId id);
    EngineCounters counters() const;
    // From any thread: what this worker computed is not used for later generations.
    void forget_worker(std::uint64_t worker);
    // refuse new submissions (unavailable); running ones go on
    void drain();
    bool idle() const;  // every on_end has returned

  private:
    std::unique_ptr<EngineState> state_;
};

}  // namespace moex
