// The interface of the device that computes the engine's steps: the hub's cores
// (hub/engine/decoder.h), or a device with memory of its own, such as a GPU (hub/commands/gpu). The
// engine cannot distinguish them. Owner: the engine's thread.
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

// The rows of one sequence in a step. `tokens` continue the sequence at position kv->num_tokens();
// the step commits them to `kv`.
struct StepRows {
    KvCache::Sequence* kv = nullptr;
    std::span<const TokenId> tokens;
    bool all_logits = false;  // return the logits of every row, not only of the last row
    bool no_logits = false;   // return no logits, for a prefill chunk that is not the prompt's last
    bool hidden = false;      // return every row after the final norm, beside the logits
    bool stays_here = false;  // the rows may not leave the hub in a span (span_backend.h)
    // For a draft head only (hub/model/package/draft_head.h), which requires it: the rows after the
    // final norm that the tokens follow, [tokens, hidden_size].
    std::span<const float> follows = {};
    // Number of likeliest tokens to return for each row that requests logits, instead of these
    // logits; 0: return logits; not with no_logits.
    std::uint32_t likeliest = 0;
    // The speculator that guesses experts for these rows (hub/engine/expert_speculator.h); null:
    // the rows are exact. Rows with a speculator follow all exact rows of the batch, and rows with
    // the same speculator are adjacent. Allowed only if takes_speculators() is true.
    ExpertSpeculator* speculator = nullptr;
    // Latency budget, for a single row only: an expert's answer that has not arrived after
    // `late_wait` may be left out, at most `late_pairs_max` times in the step. With a
    // `late_pairs_max` of 0 the step waits for all answers. A device may ignore the budget and wait
    // for all answers.
    Duration late_wait{};
    std::uint32_t late_pairs_max = 0;
};

struct StepResult {
    // [rows that requested logits, vocab_size], in the order of the batch
    std::vector<float> logits;
    // likeliest tokens of each row for which they were requested, in the order of the batch
    std::vector<LikeliestTokens> likeliest;
    // [rows requested by `hidden`, hidden_size], in the order of the batch
    std::vector<float> hidden;
    // [num_rows], how each row's answers were obtained, summed over layers
    std::vector<RowProvenance> rows;
    // [num_rows], ids of each row's workers, distinct and sorted
    std::vector<std::vector<std::uint64_t>> row_workers;
    // time from submit() to the answer, summed over rounds
    Duration experts_waited{};
    // Time that the engine's thread spent in the rounds' wait(), and on the logits. Both are zero
    // if the device cannot measure them apart from the layers.
    Duration wait_time{}, head_time{};
};

class StepDevice {
  public:
    virtual ~StepDevice() = default;
    virtual const ModelConfig& config() const = 0;
    // Runs one step. After an error all sequences are unchanged. A sequence may appear only once in
    // a batch. The bits of a row do not depend on the other rows.
    // Errors: `overloaded`: no room in the KV cache of a sequence; `cancelled`: `stop` was
    // requested and seen before the end; all errors of `experts` (hub/engine/expert_backend.h);
    // `device_lost`: the device's data of all sequences is gone, and the caller must call renew()
    // next.
    // `micro_batches`, at most micro_batches_max(), is the number of parts that the rows are cut
    // into, each with its own round in flight. The number changes no bit of a result.
    virtual Result<StepResult> run(std::span<const StepRows> batch, ExpertBackend& experts,
                                   std::uint32_t micro_batches, std::stop_token stop) = 0;
    virtual std::uint32_t micro_batches_max() const { return 1; }
    // Takes back a StepResult that the caller has read, so that the next step can write its logits
    // into the same memory.
    virtual void recycle(StepResult&& result) = 0;
    // the hub's compute threads, for other work between steps
    virtual ThreadPool& threads() const = 0;
    virtual bool gives_hidden() const { return false; }  // true if StepRows::hidden may be set
    // returns true if StepRows may have a speculator
    virtual bool takes_speculators() const { return false; }
    // Returns the largest value that StepRows::likeliest may have; 0: the device returns only
    // logits.
    virtual std::uint32_t likeliest_max() const { return 0; }
    // Returns the functions that move pages if the device itself stores keys and values, under the
    // page numbers of the KvCache; otherwise empty functions.
    virtual KvPageMover page_mover() { return {}; }
    // Returns the sizes of the recurrent states that the device stores (state_slots.h); none if
    // the sequences have theirs in the hub's memory. A device stores as many sequences as the
    // engine runs.
    virtual StateSlotSizes state_slots() const { return {}; }
    // Replaces a lost device after `device_lost`, when no sequence has a page any more. The new
    // device's page_mover() and state_slots() may differ. The call may take as long as the start of
    // the hub. If it returns an error, no device is available at present, and the caller may try
    // again at the next step.
    virtual Status renew() { return Error{ErrorCode::internal, "this device cannot be lost"}; }
};

}  // namespace moex
