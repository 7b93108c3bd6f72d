#include <algorithm>

#include "hub/engine/engine_state.h"

namespace moex {
namespace {

// Most pages of a sequence that are offered to the store after one step, so that the next step does
// not wait long. A step of a prompt fills at most half as many.
constexpr std::uint32_t stored_pages_per_step = 32;

// Returns how many bytes of stored pages the engine may copy into its cache between two steps.
// While other sequences decode, a tenth of a step at a slow memory's speed; otherwise enough that
// the reader of the disk is never idle long.
std::uint64_t bytes_between_steps(bool others_decode, Duration step) {
    constexpr std::uint64_t idle_bytes = 32u << 20, bytes_per_ms = 4u << 20;
    if (!others_decode) return idle_bytes;
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(step).count();
    return std::min<std::uint64_t>(idle_bytes,
                                   static_cast<std::uint64_t>(us) * bytes_per_ms / 10'000);
}

}  // namespace

// Asks the store for pages that continue `generation`. The generation has no rows in a step until
// they arrive. The last token of a text is always computed, because its logits are needed.
void EngineState::ask_store(Generation& generation) {
    generation.fetch = 0;
    if (!options.page_store || !may_share(generation)) return;
    const KvCache::Sequence& kv = *generation.kv;
    // A stored page can follow published pages only.
    if (kv.num_tokens() != kv.num_published() * options.page_tokens) return;
    if (generation.missing() <= options.page_tokens) return;

    const bool others_decode = std::any_of(running.begin(), running.end(), [](const auto& one) {
        return one->kv && one->missing() == 1;
    });
    const auto tokens = std::span<const TokenId>(generation.tokens);
    generation.fetch = options.page_store->fetch(
        {.client = generation.scope(),
         .tokens = tokens.first(tokens.size() - 1),
         .first_page = kv.num_published(),
         .bytes_max = bytes_between_steps(others_decode, cost.expected({.decode_rows = 1})),
         .done =
             [this](FetchedPages pages) {
                 {
                     const std::lock_guard lock(mutex);
                     fetched.push_back(std::move(pages));
                 }
                 wake.notify_all();
             },
         .memory = &generation.text_memory});
}

// Puts pages of the store into the cache and publishes them, then asks for the pages after them.
void EngineState::take_stored(FetchedPages& pages) {
    const auto found = std::find_if(running.begin(), running.end(),
                                    [&](const auto& one) { return one->fetch == pages.id; });
    if (found == running.end()) return;  // it has ended, or it was preempted

    Generation& generation = **found;
    generation.fetch = 0;
    const auto is_trusted = [&](const StoredPage& page) {
        return std::ranges::find_first_of(page.workers, distrusted) == page.workers.end();
    };
    bool all_fit = !pages.pages.empty();
    for (StoredPage& page : pages.pages) {
        all_fit = all_fit && is_trusted(page) &&
                  generation.kv->append_page(page.rows, page.window_rows).ok();
        if (!all_fit) break;
        add_workers(generation.stats.workers, page.workers);
        generation.page_workers.push_back(std::move(page.workers));
    }
    const std::uint32_t has = generation.kv->num_tokens();
    generation.kv->publish(std::span<const TokenId>(generation.tokens).first(has),
                           generation.page_workers);
    generation.kv->forget_unseen();
    if (all_fit) ask_store(generation);
    if (generation.fetch != 0) return;  // pages that follow are on their way

    // A page has left the store, or found no room, before all windows were whole.
    if (!generation.kv->can_go_on()) {
        generation.kv->roll_back(0);
        generation.page_workers.clear();
        return take_prefix(generation);
    }
    const std::uint32_t taken = count_cached(generation);
    generation.stats.cached_tokens_disk += taken;
    const std::lock_guard lock(mutex);
    counters.cached_tokens += taken;
    counters.cached_tokens_disk += taken;
}

// Offers the store the published pages of `generation` that it was not offered before; a page that
// the store has counts as used. If the writer's queue is full, the next step tries again.
void EngineState::store_pages(Generation& generation) const {
    if (!options.page_store || !generation.request.stores_pages || !generation.offers_pages) return;
    const KvCache::Sequence& kv = *generation.kv;
    const std::uint32_t end = std::min(kv.num_published(),
                                       generation.pages_stored + stored_pages_per_step);
    for (; generation.pages_stored < end; ++generation.pages_stored) {
        const std::uint32_t index = generation.pages_stored;
        const bool is_taken = options.page_store->keep(
            {.client = generation.scope(),
             .tokens = std::span<const TokenId>(generation.tokens)
                           .first(std::size_t{index + 1} * options.page_tokens),
             .workers = generation.page_workers[index],
             .memory = &generation.text_memory,
             .has_window_rows = cache->window_bytes() == 0 || kv.has_window_rows(index),
             .read = [&](std::span<std::byte> rows, std::span<std::byte> window_rows) {
                 return kv.read_page(index, rows, window_rows);
             }});
        if (!is_taken) return;
    }
}

// Copies the full pages of a prompt to a caller that asked for them.
void EngineState::give_pages(Generation& generation) const {
    if (!generation.request.pages_from) return;
    const KvCache::Sequence& kv = *generation.kv;
    const std::uint32_t end = kv.num_tokens() / options.page_tokens;
    for (; generation.pages_given < end; ++generation.pages_given) {
        PromptPage page{.index = generation.pages_given, .rows = Bytes(cache->page_bytes())};
        if (!kv.read_page(page.index, page.rows).ok()) return;  // the device is lost
        generation.sink.on_page(std::move(page));
    }
}

// Lets the rows of a generation go that its layers' windows have passed, except those that the
// store has not been offered yet.
void EngineState::forget_unseen(Generation& generation) const {
    const bool is_stored = options.page_store && generation.request.stores_pages &&
                           generation.offers_pages && options.prefix_cache;
    generation.kv->forget_unseen(is_stored ? generation.pages_stored : ~0u);
}

// Waits while all running generations wait for pages of the store.
void EngineState::wait_for_pages() {
    std::unique_lock lock(mutex);
    const std::size_t count = waiting.size();
    wake.wait(lock, [&] {
        return stopping || !fetched.empty() || !dropped.empty() || !cancelled.empty() ||
               waiting.size() != count;
    });
}

}  // namespace moex
