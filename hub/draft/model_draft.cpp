#include "hub/draft/model_draft.h"

#include <algorithm>

#include "hub/draft/draft_sampler.h"

namespace moex {

// The draft model's view of one sequence.
struct ModelDrafts::Follower : Draft {
    Follower(KvCache& cache, const GenerationRequest& request) : kv(cache), sampler(request) {}

    KvCache::Sequence kv;
    std::vector<TokenId> tokens;   // the tokens of the rows in `kv`
    std::uint32_t num_copied = 0;  // rows of `kv` that are copies of the target's
    DraftSampler sampler;

    // State of one call of propose().
    bool draws = false;               // the next step draws a token
    std::vector<TokenId> row_tokens;  // tokens that the next step computes
    bool is_done = false;
};

ModelDrafts::ModelDrafts(StepDevice& device, ExpertBackend& experts, ModelDraftOptions options)
    : device_(device),
      experts_(experts),
      options_(std::move(options)),
      cache_(device.config(), options_.kv) {}
ModelDrafts::~ModelDrafts() = default;

const char* ModelDrafts::name() const { return options_.name.c_str(); }

std::unique_ptr<Draft> ModelDrafts::begin(const GenerationRequest& request) {
    return std::make_unique<Follower>(cache_, request);
}

// Makes the rows of `follower` those of the sequence's tokens, as far as it has them. Returns false
// if the cache has no room, or the sequence is longer than the draft model's context.
bool ModelDrafts::follow(Follower& follower, const DraftCall& call) {
    const std::span<const TokenId> tokens = call.tokens;
    follower.sampler.follow(tokens);
    if (tokens.size() + call.tokens_max > device_.config().context_tokens) return false;

    const auto end = std::mismatch(follower.tokens.begin(), follower.tokens.end(), tokens.begin(),
                                   tokens.end() - 1)
                         .first;
    auto common = static_cast<std::uint32_t>(end - follower.tokens.begin());
    if (options_.copies_keys) {
        const std::uint32_t there = call.kv->num_tokens();
        const std::uint32_t first = std::min({follower.num_copied, common, there});
        follower.kv.roll_back(first);
        if (!follower.kv.reserve(there)) return false;
        follower.kv.copy_rows(*call.kv, first, there);
        follower.kv.commit(there - first);
        follower.num_copied = common = there;
    } else {
        follower.kv.roll_back(common);
    }
    follower.tokens.assign(tokens.begin(), tokens.begin() + common);
    return true;
}

void ModelDrafts::propose(std::span<DraftCall> calls) {
    std::uint32_t rows_left = options_.prompt_rows_max;
    for (DraftCall& call : calls) {
        auto& follower = static_cast<Follower&>(*call.draft);
        follower.is_done = !follow(follower, call);
        if (follower.is_done) continue;

        const auto missing = call.tokens.subspan(follower.tokens.size());
        const std::size_t rows = missing.size() == 1
                                     ? 1
                                     : std::min<std::size_t>(missing.size(), rows_left);
        if (missing.size() > 1) rows_left -= static_cast<std::uint32_t>(rows);
        follower.row_tokens.assign(missing.begin(), missing.begin() + rows);
        follower.is_done = rows == 0;
        follower.draws = rows == missing.size();
        if (follower.draws) follower.sampler.begin();
    }

    std::uint32_t steps = 0;
    for (const DraftCall& call : calls) steps = std::max(steps, call.tokens_max);
    for (; steps > 0; --steps) run(calls);
}

// Runs one step of the draft model, and draws one token for each call that wants more.
void ModelDrafts::run(std::span<DraftCall> calls) {
    std::vector<StepRows> batch;
    std::vector<DraftCall*> members;
    for (DraftCall& call : calls) {
        auto& follower = static_cast<Follower&>(*call.draft);
        if (follower.is_done || call.proposed.size() >= call.tokens_max) continue;
        batch.push_back(
            {.kv = &follower.kv, .tokens = follower.row_tokens, .no_logits = !follower.draws});
        members.push_back(&call);
    }
    if (batch.empty()) return;

    Result<StepResult> result = device_.run(batch, experts_, 1, {});
    std::size_t logits_at = 0;
    const std::size_t vocab_size = device_.config().vocab_size;
    for (DraftCall* call : members) {
        auto& follower = static_cast<Follower&>(*call->draft);
        follower.is_done = !result.ok() || !follower.draws;
        if (!result.ok()) continue;
        follower.tokens.insert(follower.tokens.end(), follower.row_tokens.begin(),
                               follower.row_tokens.end());
        if (!follower.draws) continue;  // a part of the prompt; the next step goes on with it

        const auto id = follower.sampler.draw(
            std::span<const float>(result->logits).subspan(logits_at, vocab_size));
        logits_at += vocab_size;
        follower.is_done = !id;
        if (!id) continue;
        call->proposed.push_back(*id);
        follower.row_tokens.assign(1, *id);
    }
    if (result.ok()) device_.recycle(*std::move(result));
}

}  // namespace moex
