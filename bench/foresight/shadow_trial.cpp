#include "bench/foresight/shadow_trial.h"

#include <algorithm>

#include "hub/base/clock.h"
#include "protocol/check.h"

namespace moex::bench {
namespace {

constexpr std::uint32_t page_tokens = 16;
// Tokens of a window per step, unless a period is shorter.
constexpr std::uint32_t step_tokens = 16;

TokenId greedy(std::span<const float> logits) {
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

ShadowTrial::ShadowTrial(Decoder& decoder, const ShadowTrialOptions& options)
    : decoder_(decoder),
      options_(options),
      index_of_layer_(decoder.config().num_layers),
      cache_(decoder.config(),
             {page_tokens,
              2 * options.windows_max * ((options.num_tokens + page_tokens - 1) / page_tokens),
              options.kv_dtype}) {
    for (std::uint32_t layer = 0; layer < decoder.config().num_layers; ++layer)
        if (decoder.config().is_moe(layer)) index_of_layer_[layer] = num_moe_layers_++;
}

double ShadowTrial::num_answered() const { return options_.num_tokens - options_.prompt_tokens; }

std::uint64_t ShadowTrial::kv_token_bytes() const { return cache_.page_bytes() / page_tokens; }

ShadowTrial::Window& ShadowTrial::window_of(const KvCache::Sequence* kv, bool is_shadow) {
    const auto found = std::find_if(windows_.begin(), windows_.end(), [&](const Window& window) {
        return (is_shadow ? &window.shadow : &window.served) == kv;
    });
    MOEX_CHECK(found != windows_.end(), "a row of no window");
    return *found;
}

Status ShadowTrial::serve(std::span<const std::span<const TokenId>> windows,
                          ExpertBackend& experts) {
    MOEX_CHECK(windows.size() <= options_.windows_max, "more windows than were asked for");
    const ModelConfig& config = decoder_.config();
    const std::size_t routes = std::size_t{options_.num_tokens} * num_moe_layers_;
    const std::uint32_t given = options_.prompt_tokens > 0 ? options_.prompt_tokens
                                                           : options_.num_tokens;
    windows_.clear();
    for (const auto& text : windows)
        windows_.push_back({.served = KvCache::Sequence(cache_),
                            .shadow = KvCache::Sequence(cache_),
                            .tokens = {text.begin(), text.begin() + given},
                            .asked = std::vector<std::uint16_t>(routes * config.top_k),
                            .said = std::vector<float>(routes * config.num_experts)});

    const auto watch = [&](const RouteView& route) {
        for (std::uint32_t row = 0; row < route.num_tokens; ++row) {
            Window& window = window_of(route.rows[row].kv, false);
            const auto asked = route.expert_ids.subspan(std::size_t{row} * route.top_k,
                                                        route.top_k);
            const std::size_t at = std::size_t{route.rows[row].position} * num_moe_layers_ +
                                   index_of_layer_[route.layer];
            std::copy(asked.begin(), asked.end(),
                      window.asked.begin() + static_cast<std::ptrdiff_t>(at * route.top_k));
        }
    };
    for (std::uint32_t first = 0; options_.prompt_tokens == 0 && first < given;
         first += step_tokens) {
        std::vector<StepRows> rows;
        for (Window& window : windows_)
            rows.push_back(
                {.kv = &window.served,
                 .tokens =
                     std::span(window.tokens).subspan(first, std::min(step_tokens, given - first)),
                 .no_logits = true});
        MOEX_TRY(decoder_.step(rows, experts, watch));
    }
    return options_.prompt_tokens > 0 ? generate(experts, watch) : Status();
}

Status ShadowTrial::generate(ExpertBackend& experts, const RouteWatch& watch) {
    const std::uint32_t vocab = decoder_.config().vocab_size;
    times_ = {};
    TimePoint begun = now_steady();
    while (windows_[0].served.num_tokens() < options_.num_tokens) {
        std::vector<StepRows> rows;
        for (Window& window : windows_)
            rows.push_back(
                {.kv = &window.served,
                 .tokens = std::span(window.tokens).subspan(window.served.num_tokens())});
        const bool is_prompt = windows_[0].served.num_tokens() == 0;
        MOEX_ASSIGN(result, decoder_.step(rows, experts, watch));
        if (is_prompt) begun = now_steady();

        if (windows_[0].tokens.size() == options_.num_tokens) break;
        for (std::size_t i = 0; i < windows_.size(); ++i)
            windows_[i].tokens.push_back(
                greedy(std::span(result.logits).subspan(i * vocab, vocab)));
    }
    times_.served_ms = to_ms(now_steady() - begun) / num_answered();
    return {};
}

void ShadowTrial::align_kv(std::uint32_t from, std::uint32_t to) {
    for (Window& window : windows_)
        for (std::uint32_t layer = 0; layer < decoder_.config().num_layers; ++layer)
            for (std::uint32_t position = from; position < to; ++position)
                window.shadow.store(layer, position, window.served.k(layer, position),
                                    window.served.v(layer, position));
}

Status ShadowTrial::step_shadow(std::uint32_t position, std::uint32_t count, bool own_token,
                                bool logits, ExpertBackend& shadow) {
    std::vector<StepRows> rows;
    for (Window& window : windows_)
        rows.push_back({.kv = &window.shadow,
                        .tokens = own_token ? std::span<const TokenId>(&window.shadow_token, 1)
                                            : std::span(window.tokens).subspan(position, count),
                        .no_logits = !logits});

    MOEX_ASSIGN(result, decoder_.step(rows, shadow, [&](const RouteView& route) {
        for (std::uint32_t row = 0; row < route.num_tokens; ++row) {
            const auto said = route.router_logits.subspan(std::size_t{row} * route.num_experts,
                                                          route.num_experts);
            const std::size_t at = std::size_t{route.rows[row].position} * num_moe_layers_ +
                                   index_of_layer_[route.layer];
            std::copy(said.begin(), said.end(),
                      window_of(route.rows[row].kv, true).said.begin() +
                          static_cast<std::ptrdiff_t>(at * route.num_experts));
        }
    }));
    const std::uint32_t vocab = decoder_.config().vocab_size;
    for (std::size_t i = 0; logits && i < windows_.size(); ++i)
        windows_[i].shadow_token = greedy(std::span(result.logits).subspan(i * vocab, vocab));
    return {};
}

Status ShadowTrial::follow(ShadowAlignment alignment, ExpertBackend& shadow,
                           std::span<RecallMeter* const> meters) {
    const std::uint32_t first = options_.prompt_tokens, end = options_.num_tokens;
    MOEX_CHECK(first > 0 || alignment.token_period == 1,
               "a shadow without a prompt has no token to begin with");
    for (Window& window : windows_) window.shadow = KvCache::Sequence(cache_);
    if (first > 0) MOEX_TRY(step_shadow(0, first, false, true, shadow));

    const auto due = [](std::uint32_t token, std::uint32_t period) {
        return period > 0 && token % period == 0;
    };
    const bool all_given = alignment.token_period == 1;
    const std::uint32_t stride = !all_given                ? 1
                                 : alignment.kv_period > 0 ? alignment.kv_period
                                                           : step_tokens;
    const TimePoint begun = now_steady();
    Duration aligning{};
    for (std::uint32_t position = first, aligned = 0; position < end;) {
        const std::uint32_t token = position - first, count = std::min(stride, end - position);
        if (due(token, alignment.kv_period)) {
            const TimePoint from = now_steady();
            align_kv(aligned, position);
            aligning += now_steady() - from;
            aligned = position;
        }
        MOEX_TRY(step_shadow(position, count, !due(token, alignment.token_period) && !all_given,
                             !all_given, shadow));
        position += count;
    }
    if (first > 0) {
        times_.align_ms = to_ms(aligning) / num_answered();
        times_.shadow_ms = to_ms(now_steady() - begun) / num_answered() - times_.align_ms;
    }
    tell(meters);
    return {};
}

void ShadowTrial::tell(std::span<RecallMeter* const> meters) const {
    const std::size_t top_k = decoder_.config().top_k, experts = decoder_.config().num_experts;
    for (const Window& window : windows_) {
        for (std::uint32_t position = options_.prompt_tokens; position < options_.num_tokens;
             ++position)
            for (std::uint32_t layer = 0; layer < num_moe_layers_; ++layer) {
                const std::size_t at = std::size_t{position} * num_moe_layers_ + layer;
                const auto said = std::span(window.said).subspan(at * experts, experts);
                const auto asked = std::span(window.asked).subspan(at * top_k, top_k);
                for (RecallMeter* meter : meters)
                    meter->record(layer, position - options_.prompt_tokens, said, asked);
            }
        for (RecallMeter* meter : meters) meter->end_window();
    }
}

}  // namespace moex::bench
