// The device that computes the engine's steps: the hub's cores (hub/engine/decoder.h), or a device
// with memory of its own, such as a GPU (hub/commands/gpu). The engine cannot distinguish them.
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

// The rows of a sequence in a step. `tokens` continue the sequence at position kv->num_tokens();
// after the step they are committed to it.
struct StepRows {
    KvCache::Sequence* kv = nullptr;
    std::span<const TokenId> tokens;
    bool all_logits = false;  // logits of every row; otherwise of the last one only
    bool no_logits = false;   // a prefill chunk that is not the last needs none
    bool hidden = false;      // every row after the final norm; with no_logits
    // Number of the last row's likeliest tokens to return instead of its logits; not with
    // all_logits or no_logits.
    std::uint32_t likeliest = 0;
    // The speculator whose guesses these rows take as true (hub/engine/expert_speculator.h); null:
    // exact. Such rows follow all exact rows of the batch, and the rows of a speculator are
    // together. Only with a device that takes speculators.
    ExpertSpeculator* speculator = nullptr;
    // Latency budget, for a single row only: an expert's answer that has not arrived after
    // `late_wait` may be left out, at most `late_pairs_max` times in the step. 0: the step waits
    // for all answers. A device may ignore this and wait for all answers.
    Duration late_wait{};
    std::uint32_t late_pairs_max = 0;
};

struct StepResult {
    // [sum of requested rows, vocab_size], in the order of the batch
    std::vector<float> logits;
    // of the rows that requested them, in the order of the batch
    std::vector<LikeliestTokens> likeliest;
    std::vector<float> hidden;        // [sum of those rows, hidden_size], in the order of the batch
    std::vector<RowProvenance> rows;  // [num_rows], summed over layers
    std::vector<std::vector<std::uint64_t>> row_workers;  // [num_rows], each distinct and sorted
    // summed over rounds, each from its submit() on
    Duration experts_waited{};
    // Time that the thread of the step spent in the rounds' wait(), and on the logits. Zero where
    // the device cannot separate these from the layers.
    Duration wait_time{}, head_time{};
};

class StepDevice {
  public:
    virtual ~StepDevice() = default;
    virtual const ModelConfig& config() const = 0;
    // Runs one step. On error no sequence was changed. A sequence appears once in a batch. The bits
    // of a row do not depend on its neighbours.
    // Errors: `overloaded`: no room in the KV cache of a sequence; `cancelled`: `stop` was
    // requested and seen before the end; all errors of `experts` (hub/engine/expert_backend.h);
    // `device_lost`: the device's data of all sequences is gone, and the caller must call renew()
    // next.
    // `micro_batches`, at most micro_batches_max(), is the number of parts that the rows are cut
    // into, each with its own round in flight. It changes no bit.
    virtual Result<StepResult> run(std::span<const StepRows> batch, ExpertBackend& experts,
                                   std::uint32_t micro_batches, std::stop_token stop) = 0;
    virtual std::uint32_t micro_batches_max() const { return 1; }
    // Takes back a result that was read: the next step writes its logits into the same memory.
    virtual void recycle(StepResult&& result) = 0;
    virtual ThreadPool& threads() const = 0;  // the hub's threads, for other work beside a step
    virtual bool gives_hidden() const { return false; }  // true if StepRows::hidden may be set
    // true if StepRows may have a speculator
    virtual bool takes_speculators() const { return false; }
    // The largest StepRows::likeliest; 0: the device gives only logits.
    virtual std::uint32_t likeliest_max() const { return 0; }
    // Set if the device stores keys and values, under the page numbers of the KvCache.
    virtual KvPageCopier page_copier() { return {}; }
    // Replaces a lost device after `device_lost`, when no sequence has a page any more. The new
    // device's page_copier() may differ. The call may take as long as a start did. After an error
    // no device is available now, and the next step may call this again.
    virtual Status renew() { return Error{ErrorCode::internal, "this device cannot be lost"}; }
};

}  // namespace moex
