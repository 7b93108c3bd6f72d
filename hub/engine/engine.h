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
#include <functional>
#include <memory>

#include "hub/engine/generation.h"
#include "hub/engine/step_device.h"

namespace moex {

struct EngineOptions {
    std::uint32_t sequences_max = 16;   // running at once
    std::uint32_t queue_max = 64;       // waiting; beyond it submit() answers overloaded
    std::uint32_t step_rows_max = 256;  // rows of a step, prefill chunks included
    std::uint64_t kv_bytes_max = 512ull << 20;
    std::uint32_t page_tokens = 16;
    KvDtype kv_dtype = KvDtype::f32;
    // A step in which somebody decodes takes prompt rows until it lasts about this many times what
    // it would last without; prompts alone fill the step.
    double step_stretch_max = 2.0;
    std::function<TimePoint()> clock = now_steady;  // of that measurement
    // Pages of the KV cache outlive their sequence, and those of a common beginning are shared.
    bool prefix_cache = true;
    // Of generations that ask for it; outlives the engine. Null: they are refused. Only a Decoder
    // knows what to do with one.
    ExpertSpeculator* speculator = nullptr;
};

struct EngineCounters {  // all monotonic but running, waiting and the pages
    std::uint64_t steps = 0, steps_multi_sequence = 0, rows = 0, prompt_tokens = 0,
                  generated_tokens = 0;
    // by a cancel, to be begun again without the cancelled one
    std::uint64_t steps_stopped = 0;
    // sequences that lost their pages to an older one, for a while
    std::uint64_t preempted = 0;
    std::uint64_t cached_tokens = 0;  // of prompts, taken over instead of computed
    // kv_pages_cached: kept for their beginning of a text, and held by no sequence
    std::uint32_t running = 0, waiting = 0, running_max = 0, kv_pages_used = 0, kv_pages = 0,
                  kv_pages_cached = 0;
    Duration step_time{}, experts_waited{};
};

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
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
