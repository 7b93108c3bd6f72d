// Drafts by repetition: if the last tokens of a sequence occurred before in its prompt or answer,
// the tokens that followed them there are proposed (repetition.h). That pays for extraction, edits
// and code. The draft reads its own sequence only, so no text of another client can show in a
// proposal.
#pragma once

#include "hub/engine/draft_source.h"

namespace moex {

// Costs O(1) a token and step, and 12 bytes a token of the sequence.
class NgramDrafts : public DraftSource {
  public:
    const char* name() const override { return "ngram"; }
    std::unique_ptr<Draft> begin(const GenerationRequest& request) override;
    // The class of a proposal grows with the length of the repetition: 2, 3, 4, 6, 9, 14, 21 and 32
    // tokens or more.
    void propose(std::span<DraftCall> calls) override;
};

}  // namespace moex
