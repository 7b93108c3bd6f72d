// Drafts by a cheaper model with the same vocabulary: a small package, or a shadow of the served
// model (the same attention, routers and head, and experts of fewer bits). The draft model draws
// its tokens with the options and the noise of the target's sampler, at the same positions. So two
// models whose probabilities are near each other mostly draw the same token
// (hub/engine/draw.h).
//
//   target   a b c d            d is the last drawn token; keys of a b c are in the cache
//   draft    a b c d            computes d (and what it lacks before), draws e
//                    e          computes e, draws f
//   proposal e f
#pragma once

#include <memory>
#include <string>

#include "hub/engine/draft_source.h"
#include "hub/engine/expert_backend.h"
#include "hub/engine/kv_cache.h"
#include "hub/engine/step_device.h"

namespace moex {

struct ModelDraftOptions {
    std::string name;   // the draft's name in replies: "shadow", or the package's name
    KvCacheOptions kv;  // options of the draft model's own KV cache
    // The draft model is a shadow: the target's keys and values replace the shadow's own, and no
    // prompt is computed. Requires the target's cache to have the shape and dtype of `kv`, and its
    // rows to be in this process's memory.
    bool copies_keys = false;
    // A draft model computes at most this many rows of prompts in one step, so that the target's
    // step is not delayed long. Until it has all of them, it proposes nothing.
    std::uint32_t prompt_rows_max = 512;
};

class ModelDrafts : public DraftSource {
  public:
    // `device` and `experts` are the draft model; they must outlive this object, and no other
    // thread may use `device`.
    ModelDrafts(StepDevice& device, ExpertBackend& experts, ModelDraftOptions options);
    ~ModelDrafts() override;  // requires that the drafts of all sequences are destroyed

    const char* name() const override;
    bool costs_time() const override { return true; }
    std::unique_ptr<Draft> begin(const GenerationRequest& request) override;
    // Runs one step of the draft model for each proposed token, with a row for each call.
    void propose(std::span<DraftCall> calls) override;

  private:
    struct Follower;
    bool follow(Follower& follower, const DraftCall& call);
    void run(std::span<DraftCall> calls);

    StepDevice& device_;
    ExpertBackend& experts_;
    const ModelDraftOptions options_;
    KvCache cache_;
};

}  // namespace moex
