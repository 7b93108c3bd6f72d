#include <algorithm>
#include <iterator>

#include "hub/engine/engine_state.h"

namespace moex {
namespace {

// Returns the length of the common prefix of `a` and `b` in tokens, rounded down to whole pages. At
// least one row of `a` is left to compute.
std::uint32_t common_tokens(const Generation& a, const Generation& b, std::uint32_t page_tokens) {
    if (a.scope() != b.scope()) return 0;
    const std::size_t most = std::min(a.tokens.size() - 1, b.tokens.size());
    const auto end = std::mismatch(a.tokens.begin(),
                                   a.tokens.begin() + static_cast<std::ptrdiff_t>(most),
                                   b.tokens.begin())
                         .first;
    const auto common = static_cast<std::uint32_t>(end - a.tokens.begin());
    return common / page_tokens * page_tokens;
}

}  // namespace

void add_workers(std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& more) {
    std::vector<std::uint64_t> all;
    std::set_union(to.begin(), to.end(), more.begin(), more.end(), std::back_inserter(all));
    to = std::move(all);
}

// Returns false for requests of prompt scores and of embeddings: they need every row of the prompt,
// so no row may be taken from the cache.
bool EngineState::may_share(const Generation& generation) const {
    return options.prefix_cache && !options.noise_prompts && !generation.request.prompt_logprobs &&
           !generation.request.hidden_mean;
}

// Pages that the store has read, or reads at present, may have rows of these workers: take_stored()
// leaves them out.
void EngineState::forget(std::span<const std::uint64_t> workers) {
    const bool are_pages_on_their_way = std::ranges::any_of(
        running, [](const auto& generation) { return generation->fetch != 0; });
    if (!are_pages_on_their_way) distrusted.clear();
    distrusted.insert(distrusted.end(), workers.begin(), workers.end());
    for (const std::uint64_t worker : workers) {
        cache->forget_worker(worker);
        for (auto& generation : running)
            for (const std::vector<std::uint64_t>& page : generation->page_workers)
                if (std::binary_search(page.begin(), page.end(), worker))
                    generation->offers_pages = false;
    }
}

void EngineState::return_to_queue(std::unique_ptr<Generation> generation) {
    generation->kv.reset();
    generation->step_tokens = 0;
    generation->drafts.num_rows = 0;
    drop_rows(*generation);
    ++counters.preempted;
    waiting.push_returned(std::move(generation));
}

// Returns the generations to the queue that have rows of this worker, the youngest first.
void EngineState::compute_again_without(std::uint64_t worker) {
    const auto has_worker = [&](const std::vector<std::uint64_t>& workers) {
        return std::binary_search(workers.begin(), workers.end(), worker);
    };
    for (auto one = running.rbegin(); one != running.rend(); ++one)
        if (has_worker((*one)->stats.workers) ||
            std::any_of((*one)->page_workers.begin(), (*one)->page_workers.end(), has_worker))
            return_to_queue(std::move(*one));
    std::erase(running, nullptr);
}

// Takes over published cache pages that match the first tokens of `generation`. The last token is
// always computed, because its logits are needed.
void EngineState::take_prefix(Generation& generation) {
    if (options.noise_prompts) {
        const auto all = static_cast<std::uint32_t>(generation.tokens.size());
        generation.offers_pages = false;
        if (all > 1 && generation.kv->num_tokens() == 0 && generation.kv->fill_with_noise(all - 1))
            generation.furthest = std::max(generation.furthest, all - 1);
        return;
    }
    if (!may_share(generation)) return;

    const CompanionPtr companion = generation.kv->adopt(
        std::span<const TokenId>(generation.tokens).first(generation.tokens.size() - 1),
        [&](const std::vector<std::uint64_t>& workers) {
            generation.page_workers.push_back(workers);
            add_workers(generation.stats.workers, workers);
        });
    resume_drafts(generation, companion);

    count_cached(generation);
}

// Counts the tokens of the prompt that were taken over and not computed. Returns their number.
std::uint32_t EngineState::count_cached(Generation& generation) {
    const std::uint32_t has = std::min(generation.kv->num_tokens(), generation.stats.prompt_tokens);
    if (has <= generation.furthest) return 0;
    const std::uint32_t taken = has - generation.furthest;
    generation.stats.cached_tokens += taken;
    generation.furthest = has;
    return taken;
}

// Chooses a leader for `generation`: a running generation, at an index below `before`, that
// computes a prefix which `generation` needs.
void EngineState::choose_leader(Generation& generation, std::size_t before) {
    generation.follows = 0;
    generation.follow_tokens = generation.kv->num_tokens();
    // A prefix of another generation is of use only where a copy of its recurrent state is kept.
    if (!may_share(generation) || device.config().has_delta_net()) return;

    for (std::size_t i = 0; i < before; ++i) {
        const Generation& other = *running[i];
        if (other.missing() <= 1) continue;
        const std::uint32_t common = common_tokens(generation, other, options.page_tokens);
        if (common <= generation.follow_tokens) continue;
        generation.follows = other.id;
        generation.follow_tokens = common;
    }
}

bool EngineState::waits_for_leader(std::size_t index) {
    Generation& generation = *running[index];
    if (generation.follows == 0) return false;

    const auto leader = std::find_if(running.begin(), running.end(), [&](const auto& one) {
        return one->id == generation.follows;
    });
    if (leader != running.end() && (*leader)->kv->num_tokens() < generation.follow_tokens)
        return true;

    // The leader has computed the prefix, or it has ended. If it ended early, the next follower
    // computes the rest of the prefix.
    const std::uint32_t cached = generation.stats.cached_tokens;
    take_prefix(generation);
    {
        const std::lock_guard lock(mutex);
        counters.cached_tokens += generation.stats.cached_tokens - cached;
    }
    choose_leader(generation, leader == running.end() ? index : 0);
    if (generation.follows == 0) ask_store(generation);
    return generation.follows != 0 || generation.fetch != 0;
}

// Keeps a copy of the recurrent state where a later text is likely to go on: at the end of a
// prompt and of an answer, and within a prompt from time to time.
void EngineState::keep_state(Generation& generation, bool is_ended) {
    constexpr std::uint32_t stretch = 512, least = 32;  // tokens between two copies
    if (!device.config().has_delta_net() || !may_share(generation) || !generation.offers_pages)
        return;
    const std::uint32_t end = generation.kv->num_tokens(), kept = generation.state_kept,
                        prompt = generation.stats.prompt_tokens;
    const bool is_due = is_ended || end == prompt || (end < prompt && end >= kept + stretch);
    if (!is_due || end < kept + least) return;
    generation.kv->keep_state(
        [&](std::uint32_t num_tokens) { return keep_drafts(generation, num_tokens); });
    generation.state_kept = end;
}

// Publishes the cache pages that this step filled, so that later generations can take them over.
void EngineState::offer_pages(Generation& generation, const StepResult& result,
                              std::size_t first_row, std::uint32_t num_rows) {
    if (!options.prefix_cache) return;
    const std::uint32_t end = generation.kv->num_tokens(), first = end - num_rows;
    generation.page_workers.resize(cache->pages_for(end));
    for (std::uint32_t position = first; position < end; ++position)
        add_workers(generation.page_workers[position / options.page_tokens],
                    result.row_workers[first_row + position - first]);

    // In a lossy generation only the rows of the prompt are exact, so no later pages are published.
    if (generation.is_lossy() && first >= generation.stats.prompt_tokens) return;

    if (generation.offers_pages && end / options.page_tokens > first / options.page_tokens)
        generation.kv->publish(std::span<const TokenId>(generation.tokens).first(end),
                               generation.page_workers);
}

}  // namespace moex
