// Drafts by the head of the checkpoint that was trained for it (multi-token prediction,
// hub/model/package/draft_head.h). The head reads the row of the served model after its final norm
// and the token that was drawn from it, and gives the logits of the token after that. For a second
// token it reads its own row and the first token that it drew.
//
//   target   a b c d     d was drawn from the row of c; rows of a b c were seen
//   head     (a,b) (b,c) (c,d)       true rows, kept: draws e from the last one
//            (its own row, e)        taken back before the next call: draws f
//   proposal e f
//
// The head has keys and values of its own, for the sequence's rows that it has seen. It has not
// seen the beginning of a long prompt: it then knows less of the text, and is right less often. Its
// positions count from the first row that it knows, since only differences of positions matter to
// it.
//
// Rows that the prefix cache has are not computed, so no sequence sees them again. Therefore the
// latest rows of a text are kept beside each copy of its recurrent state, and the head computes its
// keys and values from them again, in its first proposal. Its keys and values would be a quarter of
// the bytes (for Qwen3.6-35B-A3B 2 kB a token, not 8). But most copies are made in or at the end of
// a prompt, before the head has computed any, and a copy of a state is 33 times as large as 256
// rows (hub/draft/README.md).
#pragma once

#include "hub/draft/draft_sampler.h"
#include "hub/engine/draft_source.h"
#include "hub/engine/expert_backend.h"
#include "hub/engine/kv_cache.h"
#include "hub/engine/step_device.h"

namespace moex {

struct HeadDraftOptions {
    KvCacheOptions kv;  // of the head's own keys and values
    // Most rows that are kept beside a copy of a state, and that a proposal computes for a sequence
    // before its first token: 4 · hidden_size bytes each, 2 MB for Qwen3.6-35B-A3B. A sequence has
    // a quarter more of them.
    std::uint32_t rows_kept_max = 256;
    std::uint32_t tokens_max = 4;  // most tokens of a proposal
};

class HeadDrafts : public DraftSource {
  public:
    // `device` computes the head (Decoder::draft_head()) and `experts` its experts. Both must
    // outlive this object, and no other thread may use `device`.
    HeadDrafts(StepDevice& device, ExpertBackend& experts, HeadDraftOptions options);
    ~HeadDrafts() override;  // requires that the drafts of all sequences are destroyed

    const char* name() const override { return "mtp"; }
    bool costs_time() const override { return true; }
    std::uint32_t tokens_max() const override { return options_.tokens_max; }
    bool reads_rows() const override { return true; }
    std::unique_ptr<Draft> begin(const GenerationRequest& request) override;
    void see(Draft& draft, std::uint32_t first, std::span<const float> rows) override;
    DraftMemory memory_max() const override;
    std::uint64_t used_bytes() const override { return cache_.used_bytes() + row_bytes_; }
    std::uint64_t kept_bytes_max() const override;
    CompanionPtr keep(const Draft& draft, std::uint32_t num_tokens) const override;
    void resume(Draft& draft, std::uint32_t num_tokens, const CompanionPtr& kept) override;
    // Runs one step of the head for each proposed token, with a row for each call.
    void propose(std::span<DraftCall> calls) override;

  private:
    struct Follower;
    struct KeptRows;
    bool follow(Follower& follower, const DraftCall& call);
    void run(std::span<DraftCall> calls);

    StepDevice& device_;
    ExpertBackend& experts_;
    const HeadDraftOptions options_;
    KvCache cache_;
    std::uint64_t row_bytes_ = 0;  // of all followers
};

}  // namespace moex
