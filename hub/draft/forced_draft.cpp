#include "hub/draft/forced_draft.h"

#include <algorithm>

namespace moex {
namespace {

struct MaskedAnswer : Draft {
    std::shared_ptr<TokenMask> mask;
    std::size_t prompt_tokens = 0;
};

}  // namespace

std::unique_ptr<Draft> ForcedDrafts::begin(const GenerationRequest& request) {
    if (!request.sampling.mask) return nullptr;
    auto draft = std::make_unique<MaskedAnswer>();
    draft->mask = request.sampling.mask;
    draft->prompt_tokens = request.prompt.size();
    return draft;
}

void ForcedDrafts::propose(std::span<DraftCall> calls) {
    for (DraftCall& call : calls) {
        const auto& draft = static_cast<const MaskedAnswer&>(*call.draft);
        const auto answer = call.tokens.subspan(std::min(draft.prompt_tokens, call.tokens.size()));
        call.proposed = draft.mask->forced(answer, call.tokens_max);
    }
}

}  // namespace moex
