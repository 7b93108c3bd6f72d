#include "hub/draft/head_draft.h"

#include <algorithm>

namespace moex {

// The head's view of one sequence.
struct HeadDrafts::Follower : Draft {
    Follower(KvCache& cache, const GenerationRequest& request) : kv(cache), sampler(request) {}

    KvCache::Sequence kv;
    std::uint32_t num_true = 0;  // rows of `kv` with the model's rows; the later ones are drafted
    // Rows of the model that have no row in `kv` yet, of the positions from `first_kept` on.
    std::vector<float> kept;
    std::uint32_t first_kept = 0, num_kept = 0;
    DraftSampler sampler;

    // State of one call of propose().
    std::vector<TokenId> row_tokens;  // tokens of the next step
    std::vector<float> row;           // the head's own newest row, which the next token follows
    bool is_done = false;

    // Forgets all rows, because those before `position` are not known.
    void begin_at(std::uint32_t position) {
        kv.roll_back(0);
        num_true = num_kept = 0;
        first_kept = position;
        kept.clear();
    }
};

HeadDrafts::HeadDrafts(StepDevice& device, ExpertBackend& experts, HeadDraftOptions options)
    : device_(device),
      experts_(experts),
      options_(std::move(options)),
      cache_(device.config(), options_.kv) {}
HeadDrafts::~HeadDrafts() = default;

std::unique_ptr<Draft> HeadDrafts::begin(const GenerationRequest& request) {
    return std::make_unique<Follower>(cache_, request);
}

void HeadDrafts::see(Draft& draft, std::uint32_t first, std::span<const float> rows) {
    auto& follower = static_cast<Follower&>(draft);
    const std::size_t size = device_.config().hidden_size;
    const std::uint32_t expected = follower.first_kept + follower.num_kept;
    auto count = static_cast<std::uint32_t>(rows.size() / size);
    if (first + count <= expected) return;  // known from before a preemption
    if (first > expected) follower.begin_at(first);
    if (first < expected) {
        rows = rows.subspan((expected - first) * size);
        count -= expected - first;
    }
    follower.kept.insert(follower.kept.end(), rows.begin(), rows.end());
    follower.num_kept += count;

    // Rows are dropped now and then only, because the others move.
    const std::uint32_t most = options_.rows_kept_max, num_kept = follower.num_kept;
    if (num_kept <= most + most / 4) return;
    const std::uint32_t dropped = num_kept - most;
    std::vector<float> newest(follower.kept.begin() + static_cast<std::ptrdiff_t>(dropped * size),
                              follower.kept.end());
    follower.begin_at(follower.first_kept + dropped);
    follower.kept = std::move(newest);
    follower.num_kept = most;
}

// Prepares the rows that `follower` lacks. Returns false if it has no row to draft from, no room in
// the cache, or the sequence is longer than the context.
bool HeadDrafts::follow(Follower& follower, const DraftCall& call) {
    follower.kv.roll_back(follower.num_true);
    follower.sampler.follow(call.tokens);
    const std::uint32_t end = follower.first_kept + follower.num_kept;
    if (follower.num_kept == 0 || end + 1 != call.tokens.size()) return false;
    if (call.tokens.size() + call.tokens_max > device_.config().context_tokens) return false;
    const auto tokens = call.tokens.subspan(follower.first_kept + 1);
    follower.row_tokens.assign(tokens.begin(), tokens.end());
    follower.sampler.begin();
    return true;
}

void HeadDrafts::propose(std::span<DraftCall> calls) {
    std::uint32_t steps = 0;
    for (DraftCall& call : calls) {
        auto& follower = static_cast<Follower&>(*call.draft);
        follower.is_done = !follow(follower, call);
        call.tokens_max = std::min(call.tokens_max, options_.tokens_max);
        steps = std::max(steps, call.tokens_max);
    }
    for (; steps > 0; --steps) run(calls);
}

// Runs one step of the head, and draws one token for each call that wants more.
void HeadDrafts::run(std::span<DraftCall> calls) {
    std::vector<StepRows> batch;
    std::vector<DraftCall*> members;
    for (DraftCall& call : calls) {
        auto& follower = static_cast<Follower&>(*call.draft);
        if (follower.is_done || call.proposed.size() >= call.tokens_max) continue;
        const bool is_first = call.proposed.empty();
        batch.push_back({.kv = &follower.kv,
                         .tokens = follower.row_tokens,
                         .hidden = true,
                         .follows = is_first ? std::span<const float>(follower.kept)
                                             : std::span<const float>(follower.row)});
        members.push_back(&call);
    }
    if (batch.empty()) return;

    Result<StepResult> result = device_.run(batch, experts_, 1, {});
    const std::size_t vocab_size = device_.config().vocab_size,
                      hidden_size = device_.config().hidden_size;
    std::size_t logits_at = 0, rows_end = 0;
    for (DraftCall* call : members) {
        auto& follower = static_cast<Follower&>(*call->draft);
        follower.is_done = !result.ok();
        if (!result.ok()) continue;
        if (call->proposed.empty()) {
            follower.num_true = follower.kv.num_tokens();
            follower.first_kept += follower.num_kept;
            follower.num_kept = 0;
            follower.kept.clear();
        }
        rows_end += follower.row_tokens.size() * hidden_size;
        const auto row =
            std::span<const float>(result->hidden).subspan(rows_end - hidden_size, hidden_size);
        const auto logits = std::span<const float>(result->logits).subspan(logits_at, vocab_size);
        logits_at += vocab_size;

        const auto id = follower.sampler.draw(logits);
        follower.is_done = !id;
        if (!id) continue;
        call->proposed.push_back(*id);
        follower.row_tokens.assign(1, *id);
        follower.row.assign(row.begin(), row.end());
    }
    if (result.ok()) device_.recycle(*std::move(result));
}

}  // namespace moex
