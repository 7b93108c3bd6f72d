// What an engine is told, and what it counts.
#pragma once

#include <cstdint>
#include <functional>

#include "hub/base/clock.h"
#include "hub/engine/kv_dtype.h"
#include "hub/engine/step_cost.h"

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
    // For benches: every whole step, on the engine's thread, as it was expected to last and did.
    std::function<void(const StepShape&, Duration expected, Duration took)> on_step;
    // Into how many micro-batches a step is cut. 0: up to micro_batches_max, as steps go
    // (hub/engine/micro_batches.h).
    std::uint32_t micro_batches = 0, micro_batches_max = 2;
    // Pages of the KV cache outlive their sequence, and those of a common beginning are shared.
    bool prefix_cache = true;
    // For benches: of a prompt the last row alone is computed, the keys and values before it are
    // noise. Answers say nothing then. Not with a device of its own pages.
    bool noise_prompts = false;
};

// Where the engine's time went, of steps that were finished. A device that cannot tell its head
// from its layers says no time of it.
struct StepSplit {
    std::uint64_t steps = 0;
    Duration layers{};   // what is none of the others
    Duration waiting{};  // until experts had answered, or were computed here
    Duration head{};     // the vocabulary's logits
    Duration drawing{};  // of tokens, behind the step
};

struct EngineCounters {  // all monotonic but running, waiting and the pages
    std::uint64_t steps = 0, steps_multi_sequence = 0, rows = 0, prompt_tokens = 0,
                  generated_tokens = 0;
    // by a cancel, to be begun again without the cancelled one
    std::uint64_t steps_stopped = 0;
    // sequences that lost their pages to an older one, for a while
    std::uint64_t preempted = 0;
    std::uint64_t cached_tokens = 0;        // of prompts, taken over instead of computed
    std::uint64_t steps_micro_batched = 0;  // cut into two micro-batches or more
    std::uint32_t micro_batches = 0;        // of the last step, no total either
    // kv_pages_cached: kept for their beginning of a text, and held by no sequence
    std::uint32_t running = 0, waiting = 0, running_max = 0, kv_pages_used = 0, kv_pages = 0,
                  kv_pages_cached = 0;
    Duration step_time{}, experts_waited{};  // experts_waited: of each round, side by side or not
    StepSplit split;
};

}  // namespace moex
