#include "hub/draft/head_draft.h"

#include <algorithm>

namespace moex {

// The head's view of one sequence. `rows` are the model's latest rows, of the positions
// [first, end). The head has keys and values of some positions before `computed`; the rows from
// `computed` on are computed by the next proposal.
//   first 40, computed 97, end 99:  rows 40 to 98 are here, 97 and 98 have no keys yet
struct HeadDrafts::Follower : Draft {
    Follower(KvCache& cache, const GenerationRequest& request, std::uint64_t& all_bytes)
        : kv(cache),
          sampler(request),
          all_row_bytes(all_bytes) {}
    ~Follower() override { all_row_bytes -= row_bytes; }

    KvCache::Sequence kv;
    std::uint32_t num_true = 0;  // rows of `kv` with the model's rows; the later ones are drafted
    std::vector<float> rows;     // [end - first, hidden_size]
    std::uint32_t first = 0, computed = 0, end = 0;
    DraftSampler sampler;
    std::uint64_t& all_row_bytes;
    std::uint64_t row_bytes = 0;  // of `rows`, as counted in all_row_bytes

    void count_rows() {
        all_row_bytes -= row_bytes;
        row_bytes = rows.capacity() * sizeof(float);
        all_row_bytes += row_bytes;
    }

    // State of one call of propose().
    std::vector<TokenId> row_tokens;  // tokens of the next step
    std::vector<float> row;           // the head's own newest row, which the next token follows
    bool is_done = false;

    // Forgets all keys and values, because rows before `position` are not known.
    void begin_at(std::uint32_t position) {
        kv.roll_back(0);
        num_true = 0;
        first = computed = position;
    }
};

// The latest rows of a text, of the positions from `first` on.
struct HeadDrafts::KeptRows : SnapshotCompanion {
    std::uint32_t first = 0;
    std::vector<float> rows;

    std::uint64_t size_bytes() const override { return rows.size() * sizeof(float); }
};

HeadDrafts::HeadDrafts(StepDevice& device, ExpertBackend& experts, HeadDraftOptions options)
    : device_(device),
      experts_(experts),
      options_(std::move(options)),
      cache_(device.config(), options_.kv) {}
HeadDrafts::~HeadDrafts() = default;

std::unique_ptr<Draft> HeadDrafts::begin(const GenerationRequest& request) {
    return std::make_unique<Follower>(cache_, request, row_bytes_);
}

void HeadDrafts::see(Draft& draft, std::uint32_t first, std::span<const float> rows) {
    auto& follower = static_cast<Follower&>(draft);
    const std::size_t size = device_.config().hidden_size;
    const auto end = first + static_cast<std::uint32_t>(rows.size() / size);
    if (end <= follower.end) return;  // known from before a preemption
    if (first > follower.end) {
        follower.begin_at(first);
        follower.rows.clear();
    } else {
        rows = rows.subspan((follower.end - first) * size);
    }

    // Rows are dropped now and then only, because the others move.
    const std::uint32_t most = options_.rows_kept_max, room = most + most / 4;
    follower.rows.reserve(room * size);
    follower.end = end;
    if (end - follower.first > room) {
        const std::uint32_t new_first = end - most;
        const std::size_t dropped = (new_first - follower.first) * size,
                          of_old = std::min(dropped, follower.rows.size());
        follower.rows.erase(follower.rows.begin(),
                            follower.rows.begin() + static_cast<std::ptrdiff_t>(of_old));
        rows = rows.subspan(dropped - of_old);
        if (new_first > follower.computed) follower.begin_at(new_first);
        follower.first = new_first;
    }
    follower.rows.insert(follower.rows.end(), rows.begin(), rows.end());
    follower.count_rows();
}

DraftMemory HeadDrafts::memory_max() const {
    const std::uint64_t most = options_.rows_kept_max + options_.rows_kept_max / 4,
                        page_bytes = cache_.page_bytes();
    // the last page is not full, and tokens that are drafted may begin one more
    return {.sequence_bytes = most * device_.config().hidden_size * sizeof(float) + 2 * page_bytes,
            .token_bytes = page_bytes / options_.kv.page_tokens};
}

std::uint64_t HeadDrafts::kept_bytes_max() const {
    return std::uint64_t{options_.rows_kept_max} * device_.config().hidden_size * sizeof(float);
}

CompanionPtr HeadDrafts::keep(const Draft& draft, std::uint32_t num_tokens) const {
    const auto& follower = static_cast<const Follower&>(draft);
    if (num_tokens <= follower.first || num_tokens > follower.end) return nullptr;
    const std::size_t size = device_.config().hidden_size;
    const std::uint32_t first = std::max(follower.first,
                                         num_tokens - std::min(num_tokens, options_.rows_kept_max));
    const auto rows = std::span<const float>(follower.rows)
                          .subspan((first - follower.first) * size, (num_tokens - first) * size);
    const auto kept = std::make_shared<KeptRows>();
    kept->first = first;
    kept->rows.assign(rows.begin(), rows.end());
    return kept;
}

void HeadDrafts::resume(Draft& draft, std::uint32_t num_tokens, const CompanionPtr& kept) {
    auto& follower = static_cast<Follower&>(draft);
    const auto& known = static_cast<const KeptRows&>(*kept);
    if (num_tokens <= follower.end) return;  // known from before a preemption
    follower.begin_at(known.first);
    follower.rows = known.rows;
    follower.count_rows();
    follower.end = num_tokens;
}

// Prepares the rows that `follower` lacks. Returns false if it has no row to draft from, or if the
// sequence is longer than the context.
bool HeadDrafts::follow(Follower& follower, const DraftCall& call) {
    follower.kv.roll_back(follower.num_true);
    follower.sampler.follow(call.tokens);
    if (follower.computed == follower.end || follower.end + 1 != call.tokens.size()) return false;
    if (call.tokens.size() + call.tokens_max > device_.config().context_tokens) return false;
    const auto tokens = call.tokens.subspan(follower.computed + 1);
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
    const std::size_t vocab_size = device_.config().vocab_size,
                      hidden_size = device_.config().hidden_size;
    for (DraftCall& call : calls) {
        auto& follower = static_cast<Follower&>(*call.draft);
        if (follower.is_done || call.proposed.size() >= call.tokens_max) continue;
        const std::size_t pending = (follower.end - follower.computed) * hidden_size;
        const bool is_first = call.proposed.empty();
        batch.push_back({.kv = &follower.kv,
                         .tokens = follower.row_tokens,
                         .hidden = true,
                         .follows = is_first ? std::span<const float>(follower.rows).last(pending)
                                             : std::span<const float>(follower.row)});
        members.push_back(&call);
    }
    if (batch.empty()) return;

    Result<StepResult> result = device_.run(batch, experts_, 1, {});
    std::size_t logits_at = 0, rows_end = 0;
    for (DraftCall* call : members) {
        auto& follower = static_cast<Follower&>(*call->draft);
        follower.is_done = !result.ok();
        if (!result.ok()) continue;
        if (call->proposed.empty()) {
            follower.num_true = follower.kv.num_tokens();
            follower.computed = follower.end;
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
