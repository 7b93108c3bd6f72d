#include "hub/draft/ngram_draft.h"

#include "hub/draft/repetition.h"

namespace moex {
namespace {

struct NgramDraft : Draft {
    Repetitions repetitions;
};

}  // namespace

std::unique_ptr<Draft> NgramDrafts::begin(const GenerationRequest&) {
    return std::make_unique<NgramDraft>();
}

void NgramDrafts::propose(std::span<DraftCall> calls) {
    for (DraftCall& call : calls) {
        Repetitions& repetitions = static_cast<NgramDraft&>(*call.draft).repetitions;
        repetitions.read(call.tokens);
        call.proposed.clear();
        const std::uint32_t length = repetitions.propose(call.tokens, call.tokens_max,
                                                         call.proposed);
        if (length > 0) call.proposal_class = Repetitions::class_of(length);
    }
}

}  // namespace moex
