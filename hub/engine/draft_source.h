// The interface of drafts (speculative decoding). A draft proposes tokens that may follow a
// sequence. The engine computes the model's logits after all of them in one step, draws each token
// as it would without a draft, and keeps the drafted tokens up to the first one that differs from
// the drawn token. So a draft changes how many steps a text takes, and never the text.
// Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
// Decoding", 2023.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hub/engine/draft_rates.h"
#include "hub/engine/generation.h"
#include "hub/engine/kv_cache.h"

namespace moex {

// The state that a source keeps for one sequence. It must not depend on other clients' texts.
class Draft {
  public:
    virtual ~Draft() = default;
};

// One sequence in a call of propose(), with the proposal for it.
struct DraftCall {
    Draft* draft = nullptr;
    std::span<const TokenId> tokens;  // all tokens of the sequence: prompt and answer
    // The keys and values of all tokens but the last one. Not to be written.
    const KvCache::Sequence* kv = nullptr;
    std::uint32_t tokens_max = 0;      // most tokens to propose, at least 1
    std::vector<TokenId> proposed;     // written by propose(); may be empty
    std::uint32_t proposal_class = 0;  // written by propose(), below draft_classes
};

// The memory that a source of drafts takes of the engine's (memory_plan.h).
struct DraftMemory {
    std::uint64_t sequence_bytes = 0;  // most bytes of a running sequence, whatever its length
    std::uint64_t token_bytes = 0;     // and of each of its tokens
};

// Used on the engine's thread only.
class DraftSource {
  public:
    virtual ~DraftSource() = default;
    virtual const char* name() const = 0;  // "ngram"
    // Returns true if the time of a proposal matters next to that of a step. Such a source is asked
    // only after it was decided how many of its tokens the step uses.
    virtual bool costs_time() const { return false; }
    // Most tokens that this source proposes at once.
    virtual std::uint32_t tokens_max() const { return 8; }
    // Returns true if the source reads the model's rows after the final norm, which see() gives it.
    virtual bool reads_rows() const { return false; }
    // Creates the state for a sequence. Returns null if this source has no drafts for `request`.
    virtual std::unique_ptr<Draft> begin(const GenerationRequest& request) = 0;
    // Gives the rows after the final norm of the positions from `first` on, [n, hidden_size], as
    // they were computed. Positions may be missing that other sequences have computed, and after a
    // preemption positions are given again. Rows of drafted tokens that were not drawn are left
    // out.
    virtual void see(Draft& draft, std::uint32_t first, std::span<const float> rows) {
        static_cast<void>(draft), static_cast<void>(first), static_cast<void>(rows);
    }
    // Most memory of this source, and what it has now. A source that is not counted returns zeros.
    virtual DraftMemory memory_max() const { return {}; }
    virtual std::uint64_t used_bytes() const { return 0; }
    // Most bytes of what keep() returns; 0: this source keeps nothing.
    virtual std::uint64_t kept_bytes_max() const { return 0; }
    // Returns what a later sequence needs that begins with the first `num_tokens` tokens of this
    // one and whose rows of them are not computed; null if there is nothing. It is kept beside a
    // copy of the recurrent state (recurrent_snapshots.h).
    virtual CompanionPtr keep(const Draft& draft, std::uint32_t num_tokens) const {
        static_cast<void>(draft), static_cast<void>(num_tokens);
        return nullptr;
    }
    // Gives the draft of such a later sequence what keep() of this source has returned.
    virtual void resume(Draft& draft, std::uint32_t num_tokens, const CompanionPtr& kept) {
        static_cast<void>(draft), static_cast<void>(num_tokens), static_cast<void>(kept);
    }
    // Writes a proposal into each call. Between two calls for the same draft, tokens are only added
    // to the sequence.
    virtual void propose(std::span<DraftCall> calls) = 0;
};

}  // namespace moex
