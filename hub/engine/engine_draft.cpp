#include <algorithm>
#include <cmath>
#include <utility>

#include "hub/base/trace.h"
#include "hub/engine/engine_state.h"

namespace moex {
namespace {

// A source that costs time is used only if no free source proposes tokens of which the first is
// accepted at least this often.
constexpr double good_enough = 0.7;

}  // namespace

// Creates the drafts of a generation that has none yet.
void EngineState::begin_drafts(Generation& generation) const {
    auto& sources = generation.drafts.sources;
    if (!sources.empty()) return;
    sources.resize(options.draft_sources.size());
    for (std::size_t i = 0; i < sources.size(); ++i)
        sources[i].draft = options.draft_sources[i]->begin(generation.request);
}

// Frees the memory of drafts of a generation that returns to the queue, as far as it is made of
// rows that are computed again.
void EngineState::drop_rows(Generation& generation) const {
    auto& sources = generation.drafts.sources;
    for (std::size_t i = 0; i < sources.size(); ++i)
        if (sources[i].draft && options.draft_sources[i]->reads_rows())
            sources[i].draft = options.draft_sources[i]->begin(generation.request);
}

// Returns true if a source reads the rows of `generation` after the final norm.
bool EngineState::shows_rows(Generation& generation) const {
    if (!reads_rows || generation.request.hidden_mean || drafts_allowed(generation) == 0)
        return false;
    begin_drafts(generation);
    return true;
}

// Shows the newest `num_rows` rows of a generation to the sources that read rows.
void EngineState::show_rows(Generation& generation, std::uint32_t num_rows) const {
    SequenceDrafts& drafts = generation.drafts;
    const std::span<const float> rows = std::exchange(drafts.hidden, {});
    // A recurrent state that could not be rolled back has left the sequence empty.
    if (rows.empty() || num_rows == 0 || generation.kv->num_tokens() < num_rows) return;
    const std::size_t floats = std::size_t{num_rows} * device.config().hidden_size;
    for (std::size_t i = 0; i < drafts.sources.size(); ++i)
        if (drafts.sources[i].draft && options.draft_sources[i]->reads_rows())
            options.draft_sources[i]->see(*drafts.sources[i].draft,
                                          generation.kv->num_tokens() - num_rows,
                                          rows.first(floats));
}

namespace {

// What the sources of drafts keep of a text.
struct KeptDrafts : SnapshotCompanion {
    std::vector<CompanionPtr> by_source;  // [EngineOptions::draft_sources]

    std::uint64_t size_bytes() const override {
        std::uint64_t bytes = 0;
        for (const CompanionPtr& one : by_source) bytes += one ? one->size_bytes() : 0;
        return bytes;
    }
};

}  // namespace

// Returns what the drafts of later generations need that begin with the first `num_tokens` tokens
// of this one.
CompanionPtr EngineState::keep_drafts(const Generation& generation,
                                      std::uint32_t num_tokens) const {
    const auto& sources = generation.drafts.sources;
    const auto kept = std::make_shared<KeptDrafts>();
    bool is_empty = true;
    for (std::size_t i = 0; i < sources.size(); ++i) {
        CompanionPtr one = sources[i].draft
                               ? options.draft_sources[i]->keep(*sources[i].draft, num_tokens)
                               : nullptr;
        is_empty &= one == nullptr;
        kept->by_source.push_back(std::move(one));
    }
    return is_empty ? nullptr : kept;
}

// Gives the drafts of a generation what was kept of the prefix that it has taken over.
void EngineState::resume_drafts(Generation& generation, const CompanionPtr& companion) const {
    const auto* const kept = dynamic_cast<const KeptDrafts*>(companion.get());
    if (!kept || !shows_rows(generation)) return;
    auto& sources = generation.drafts.sources;
    for (std::size_t i = 0; i < sources.size(); ++i)
        if (sources[i].draft && kept->by_source[i])
            options.draft_sources[i]->resume(*sources[i].draft, generation.kv->num_tokens(),
                                             kept->by_source[i]);
}

// Returns how many tokens may be drafted for `generation` in the next step; 0: none. The last row
// of a step always draws one more token.
std::uint32_t EngineState::drafts_allowed(const Generation& generation) const {
    if (options.draft_sources.empty() || generation.is_lossy()) return 0;
    const GenerationRequest& request = generation.request;
    const std::uint32_t left = request.max_tokens -
                               std::min(request.max_tokens, generation.stats.completion_tokens);
    // A recurrent state can be rolled back by this number of rows.
    const std::uint32_t most = device.config().has_delta_net() ? delta_append_max - 1
                                                               : draft_tokens_max;
    return std::min({wanted_drafts(generation).value_or(most), most, left > 0 ? left - 1 : 0});
}

// Returns the number of drafted tokens that the request or the operator asks for; empty: as many as
// pay.
std::optional<std::uint32_t> EngineState::wanted_drafts(const Generation& generation) const {
    const auto& own = generation.request.draft_tokens;
    return own ? own : options.draft_tokens;
}

// Takes over a proposal for a sequence if its first token is more likely to be accepted than that
// of the proposal from an earlier source. `count`: tokens of the proposal.
bool EngineState::prefer(SequenceDrafts& drafts, std::size_t source, std::uint32_t proposal_class,
                         std::size_t count) const {
    const DraftRates &own = drafts.sources[source].rates, &all = engine_drafts.rates[source];
    const double first = own.rate(proposal_class, 0, all);
    if (count == 0 || (!drafts.gains.empty() && first <= drafts.gains.front())) return false;
    drafts.source = source;
    drafts.proposal_class = proposal_class;
    drafts.gains.assign(1, first);
    for (std::uint32_t i = 1; i < count; ++i)
        drafts.gains.push_back(drafts.gains.back() * own.rate(proposal_class, i, all));
    return true;
}

// Asks one source for proposals, for the given sequences.
std::vector<DraftCall> EngineState::ask(std::size_t source, std::span<Generation* const> asked,
                                        const std::function<std::uint32_t(Generation&)>& most) {
    std::vector<DraftCall> calls;
    for (Generation* one : asked)
        calls.push_back({.draft = one->drafts.sources[source].draft.get(),
                         .tokens = one->tokens,
                         .kv = one->kv.get(),
                         .tokens_max = most(*one)});
    if (!calls.empty()) options.draft_sources[source]->propose(calls);
    for (DraftCall& call : calls)
        call.proposed.resize(std::min<std::size_t>(call.proposed.size(), call.tokens_max));
    return calls;
}

// Gets the proposals of the sources that cost no time, and for the others what they are expected to
// propose: gains without tokens.
void EngineState::propose(std::span<Generation* const> decoding) {
    for (std::size_t i = 0; i < options.draft_sources.size(); ++i) {
        DraftSource& source = *options.draft_sources[i];
        std::vector<Generation*> asked;
        for (Generation* one : decoding) {
            SequenceDrafts& drafts = one->drafts;
            const std::uint32_t most = drafts_allowed(*one);
            if (most == 0) continue;
            begin_drafts(*one);
            SequenceDrafts::Source& own = drafts.sources[i];
            if (!own.draft || (!drafts.gains.empty() && drafts.gains.front() >= good_enough))
                continue;
            if (!source.costs_time())
                asked.push_back(one);
            else if (prefer(drafts, i, 0, std::min(most, source.tokens_max())))
                drafts.proposed.clear();
        }
        const auto most = [&](Generation& one) { return drafts_allowed(one); };
        std::vector<DraftCall> calls = ask(i, asked, most);
        for (std::size_t call = 0; call < calls.size(); ++call)
            if (prefer(asked[call]->drafts, i, calls[call].proposal_class,
                       calls[call].proposed.size()))
                asked[call]->drafts.proposed = std::move(calls[call].proposed);
    }
}

// Chooses how many of the proposed tokens get a row, at most `rows_left` in all. Returns how many
// rows the budget chose, beside those that were asked for.
std::uint32_t EngineState::choose_drafted_rows(std::span<Generation* const> decoding,
                                               std::uint32_t rows_left) {
    std::vector<double> gains;
    for (Generation* one : decoding) {
        SequenceDrafts& drafts = one->drafts;
        if (!wanted_drafts(*one)) {
            gains.insert(gains.end(), drafts.gains.begin(), drafts.gains.end());
            continue;
        }
        // a number of drafted tokens that was asked for is used whatever it costs
        drafts.num_rows = std::min(static_cast<std::uint32_t>(drafts.gains.size()), rows_left);
        rows_left -= drafts.num_rows;
    }
    std::sort(gains.begin(), gains.end(), std::greater<>());
    gains.resize(std::min<std::size_t>(gains.size(), rows_left));
    const std::uint32_t chosen = engine_drafts.budget.choose(
        static_cast<std::uint32_t>(decoding.size()), gains);

    // The gains of one sequence descend, so the chosen rows of a sequence are its first ones.
    const double least = chosen > 0 ? gains[chosen - 1] : 0;
    std::uint32_t left = chosen;
    for (Generation* one : decoding) {
        SequenceDrafts& drafts = one->drafts;
        if (wanted_drafts(*one)) continue;
        for (; drafts.num_rows < drafts.gains.size() && left > 0; --left) {
            if (drafts.gains[drafts.num_rows] < least) break;
            ++drafts.num_rows;
        }
    }
    return chosen;
}

// Adds drafted rows to the step's sequences that decode, at most `rows_left` in all. Returns the
// number of rows added.
std::uint32_t EngineState::share_drafted_rows(std::uint32_t rows_left) {
    engine_drafts.drafting = {};
    std::vector<Generation*> decoding;
    for (auto& generation : running) {
        generation->drafts.proposed.clear();
        generation->drafts.gains.clear();
        generation->drafts.num_rows = 0;
        if (generation->missing() == 1 && generation->step_tokens == 1)
            decoding.push_back(generation.get());
    }
    if (decoding.empty() || options.draft_sources.empty()) return 0;

    const TraceSpan span(Trace::Row::engine, "draft", {"sequences", decoding.size()});
    const TimePoint started = options.clock();
    propose(decoding);
    const std::uint32_t chosen = choose_drafted_rows(decoding, rows_left);

    for (std::size_t i = 0; i < options.draft_sources.size(); ++i) {
        if (!options.draft_sources[i]->costs_time()) continue;
        std::vector<Generation*> asked;
        for (Generation* one : decoding)
            if (one->drafts.num_rows > 0 && one->drafts.source == i) asked.push_back(one);
        std::vector<DraftCall> calls = ask(i, asked,
                                           [](Generation& one) { return one.drafts.num_rows; });
        for (std::size_t call = 0; call < calls.size(); ++call) {
            SequenceDrafts& drafts = asked[call]->drafts;
            drafts.proposed = std::move(calls[call].proposed);
            drafts.num_rows = static_cast<std::uint32_t>(drafts.proposed.size());
        }
    }

    std::uint32_t added = 0;
    if (chosen > 0 && std::all_of(decoding.begin(), decoding.end(),
                                  [](const Generation* one) { return one->drafts.num_rows == 0; }))
        engine_drafts.budget.try_again(static_cast<std::uint32_t>(decoding.size()));
    for (Generation* one : decoding) {
        one->step_tokens += one->drafts.num_rows;
        added += one->drafts.num_rows;
    }
    engine_drafts.drafting = options.clock() - started;
    return added;
}

// Takes back the drafted rows of a generation whose rows do not fit into the cache.
void EngineState::drop_drafted_rows(Generation& generation) {
    generation.step_tokens -= generation.drafts.num_rows;
    generation.drafts.num_rows = 0;
}

// Records which drafted tokens were accepted in a step, and counts the tokens drawn.
void EngineState::record_drafts(Generation& generation, std::span<const TokenId> drawn) {
    SequenceDrafts& drafts = generation.drafts;
    DraftStats& stats = generation.stats.drafts;
    ++stats.steps;
    if (drafts.proposed.empty()) return;

    const std::size_t source = drafts.source;
    drafts.sources[source].rates.record(drafts.proposal_class, drafts.proposed, drawn);
    engine_drafts.rates[source].record(drafts.proposal_class, drafts.proposed, drawn);
    if (drafts.num_rows == 0) return;

    std::uint32_t accepted = 0;
    while (accepted < drafts.num_rows && accepted < drawn.size() &&
           drafts.proposed[accepted] == drawn[accepted])
        ++accepted;
    ++stats.drafts;
    stats.drafted_tokens += drafts.num_rows;
    stats.accepted_tokens += accepted;
    ++stats.accepted_histogram[accepted];
    stats.kind = options.draft_sources[source]->name();

    const std::lock_guard lock(mutex);
    ++counters.drafts;
    counters.drafted_tokens += drafts.num_rows;
    counters.accepted_tokens += accepted;
    for (std::uint32_t i = 0; i < accepted; ++i) ++counters.accepted_at[i];
}

}  // namespace moex
