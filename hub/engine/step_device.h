// Who computes the engine's steps: the hub's cores (hub/engine/decoder.h), or a device with memory
// of its own, such as a GPU (hub/commands/gpu). The engine cannot tell one from the other.
// Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <vector>

#include "hub/base/clock.h"
#include "hub/base/thread_pool.h"
#include "hub/engine/expert_backend.h"
#include "hub/engine/kv_cache.h"
#include "hub/engine/sampler.h"
#include "hub/model/config.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "protocol/result.h"

namespace moex {

class ExpertSpeculator;

// `tokens` continue the sequence at position
// kv->num_tokens(); after the step they are committed to it.
struct StepRows {
    KvCache::Sequence* kv = nullptr;
    std::span<const TokenId> tokens;
    bool all_logits = false;  // logits of every row; otherwise of the last one only
    bool no_logits = false;   // a prefill chunk that is not the last needs none
    bool hidden = false;      // every row as it is behind the final norm; with no_logits
    // So many of the last row's likeliest tokens instead of its logits; with neither of the above.
    std::uint32_t likeliest = 0;
    // Whose guesses these rows take for true (hub/engine/expert_speculator.h); null: exact. Such
    // rows stand behind all exact ones of the batch, those of one speculator together. Only with a
    // device that takes speculators.
    ExpertSpeculator* speculator = nullptr;
    // Of one row alone: an expert's answer that is not there after `late_wait` may be left out, so
    // many in the step. 0: all are waited for. A device may wait for all.
    Duration late_wait{};
    std::uint32_t late_pairs_max = 0;
};

struct StepResult {
    // [sum of asked rows, vocab_size], in the order of the batch
    std::vector<float> logits;
    std::vector<LikeliestTokens> likeliest;  // of the rows that asked, in the order of the batch
    std::vector<float> hidden;        // [sum of those rows, hidden_size], in the order of the batch
    std::vector<RowProvenance> rows;  // [num_rows], summed over layers
    std::vector<std::vector<std::uint64_t>> row_workers;  // [num_rows], each distinct and sorted
    Duration experts_waited{};                            // of each round, from its submit() on
    // Of the thread that runs the step: in the rounds' wait(), and for the logits; zero where the
    // device cannot tell these from the layers.
    Duration wait_time{}, head_time{};
};

class StepDevice {
  public:
    virtual ~StepDevice() = default;
    virtual const ModelConfig& config() const = 0;
    // On error no sequence was changed. A sequence appears once in a batch. `overloaded`: no room
    // in its KV cache; `cancelled`: `stop` was requested and seen before the end; what `experts`
    // may answer (hub/engine/expert_backend.h); `device_lost`: what the device kept of all
    // sequences is gone, and renew() comes next. A row's bits do not depend on its neighbours.
    // `micro_batches`, at most micro_batches_max(): into how many its rows are cut, each with a
    // round of its own on its way. They change no bit.
    virtual Result<StepResult> run(std::span<const StepRows> batch, ExpertBackend& experts,
                                   std::uint32_t micro_batches, std::stop_token stop) = 0;
    virtual std::uint32_t micro_batches_max() const { return 1; }
    // Takes back a result that was read: the next step puts its logits into the same memory.
    virtual void recycle(StepResult&& result) = 0;
    virtual ThreadPool& threads() const = 0;  // the hub's, for what is left to do beside a step
    virtual bool gives_hidden() const { return false; }  // whether StepRows::hidden may be asked
    virtual bool takes_speculators() const { return false; }  // whether StepRows may have one
    // The most that StepRows::likeliest may ask; 0: it gives logits alone.
    virtual std::uint32_t likeliest_max() const { return 0; }
    // Set where keys and values lie with the device, under the page numbers of the KvCache.
    virtual KvPageCopier page_copier() { return {}; }
    // After `device_lost`, when no sequence has a page any more: what computes from here on, whose
    // page_copier() may be another. It may take as long as a start did. An error: nobody computes
    // now, and the next step may ask again.
    virtual Status renew() { return Error{ErrorCode::internal, "this device cannot be lost"}; }
};

}  // namespace moex
