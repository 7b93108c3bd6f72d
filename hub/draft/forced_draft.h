// Drafts by the form of an answer: where a grammar leaves one text only, e.g. the name of a
// required member of a JSON object, its tokens are proposed. The model may cut that text into other
// tokens than the proposal, so that these drafts are drawn like any others.
//   schema {"city": string, "country": string}, answer `{"city": "Oslo"`:
//   proposal `, "`, `country`, `": "`
#pragma once

#include "hub/engine/draft_source.h"

namespace moex {

// Costs a few steps of the grammar's state for each proposed token, and needs no mask.
class ForcedDrafts : public DraftSource {
  public:
    const char* name() const override { return "grammar"; }
    // Requests without a mask have no drafts.
    std::unique_ptr<Draft> begin(const GenerationRequest& request) override;
    void propose(std::span<DraftCall> calls) override;
};

}  // namespace moex
