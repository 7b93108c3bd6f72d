// The options and the counters of the engine.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hub/base/clock.h"
#include "hub/engine/generation.h"
#include "hub/engine/kv_cache.h"
#include "hub/engine/kv_dtype.h"
#include "hub/engine/kv_page_store.h"
#include "hub/engine/step_cost.h"

namespace moex {

class DraftSource;

struct EngineOptions {
    std::uint32_t sequences_max = 16;  // most sequences that run at the same time
    // Most waiting requests. When the queue has this length, submit() returns overloaded.
    std::uint32_t queue_max = 64;
    std::uint32_t step_rows_max = 256;  // most rows of a step, prefill chunks included
    // memory of all texts: keys and values, recurrent states and copies of them (memory_plan.h)
    std::uint64_t kv_bytes_max = 512ull << 20;
    // Part of kv_bytes_max for copies of recurrent states; empty: a quarter.
    std::optional<std::uint64_t> state_bytes_max;
    std::uint32_t page_tokens = 16;
    KvDtype kv_dtype = KvDtype::f32;
    // A step with decode rows takes prompt rows until it lasts about this many times as long as it
    // would last without prompt rows. A step without decode rows takes as many prompt rows as fit.
    double step_stretch_max = 2.0;
    std::function<TimePoint()> clock = now_steady;  // clock that measures the duration of steps
    // For benches: called on the engine's thread after every step that was not stopped, with the
    // step's expected and measured duration.
    std::function<void(const StepShape&, Duration expected, Duration took)> on_step;
    // Number of micro-batches that a step is cut into. With 0 the engine chooses a number up to
    // micro_batches_max from measured step times (hub/engine/micro_batches.h).
    std::uint32_t micro_batches = 0, micro_batches_max = 2;
    // If true, pages of the KV cache outlive their sequence, and sequences with a common prefix
    // share the pages of that prefix.
    bool prefix_cache = true;
    // Keeps full pages outside of the cache; null: no store. Requires prefix_cache, and must
    // outlive the engine.
    KvPageStore* page_store = nullptr;
    // The sources of drafted tokens (hub/engine/draft_source.h), the cheapest first. They must
    // outlive the engine.
    std::vector<DraftSource*> draft_sources;
    // Number of tokens to draft in each step of a sequence, for requests that name none. Empty: the
    // number that is measured to give the most tokens a second, which may be 0.
    std::optional<std::uint32_t> draft_tokens;
    // For benches: only the last row of a prompt is computed; the keys and values before it are
    // noise, so the answers are meaningless. Not available with a device that keeps pages of its
    // own.
    bool noise_prompts = false;
    // Called on the engine's thread with the id of a sequence (KvCache::Sequence::id()) that ends.
    std::function<void(std::uint64_t id)> sequence_ended;
    // The same, if another one may take the id over; and when one does, which begins with its first
    // `num_tokens` tokens. Both are given, or none: then no id is taken over.
    std::function<void(std::uint64_t id)> sequence_kept;
    std::function<void(std::uint64_t id, std::uint32_t num_tokens)> sequence_resumed;
    // Called on the engine's thread once for each `rest_every` without work. Empty: nothing is.
    std::function<void()> rested;
    Duration rest_every = std::chrono::minutes(1);
};

// How the engine spent its time, over finished steps. A device that cannot separate its head from
// its layers reports no time for the head.
struct StepSplit {
    std::uint64_t steps = 0;
    Duration layers{};   // the remaining time of a step, which none of the fields below counts
    Duration waiting{};  // time until the experts had answered, or were computed on this machine
    Duration head{};     // time of the LM head: logits over the vocabulary
    Duration drawing{};  // time of drawing tokens, after the step
};

// Counters of the engine since its start. All are monotonic totals except `running`, `waiting` and
// the numbers of pages.
struct EngineCounters {
    std::uint64_t steps = 0, steps_multi_sequence = 0, rows = 0, prompt_tokens = 0,
                  generated_tokens = 0;
    // steps that were stopped for a cancel and restarted without the cancelled sequence
    std::uint64_t steps_stopped = 0;
    // sequences that temporarily lost their pages to an older sequence
    std::uint64_t preempted = 0;
    // drafts: steps of a sequence with drafted tokens; then all drafted and all accepted tokens
    std::uint64_t drafts = 0, drafted_tokens = 0, accepted_tokens = 0;
    // accepted tokens by position in their draft
    std::array<std::uint64_t, draft_tokens_max> accepted_at{};
    // number of prompt tokens taken from the cache instead of computed; and the number of these
    // tokens that were read from the page store
    std::uint64_t cached_tokens = 0, cached_tokens_disk = 0;
    // steps that were split into two or more micro-batches
    std::uint64_t steps_micro_batched = 0;
    std::uint32_t micro_batches = 0;  // number of micro-batches of the latest step; not a total
    // kv_pages_cached: published pages that no sequence holds at present
    std::uint32_t running = 0, waiting = 0, running_max = 0, kv_pages_used = 0, kv_pages = 0,
                  kv_pages_cached = 0;
    KvMemory memory, memory_max;  // bytes in memory at present, and at most; not totals
    std::uint64_t draft_bytes = 0, draft_bytes_max = 0;  // likewise, of sources of drafts
    std::uint64_t kv_tokens = 0;  // most tokens that one sequence may have in the KV cache
    // experts_waited: sum of the waiting times of all rounds, even if rounds overlap
    Duration step_time{}, experts_waited{};
    StepSplit split;
    PageStoreCounters page_store;
};

}  // namespace moex
