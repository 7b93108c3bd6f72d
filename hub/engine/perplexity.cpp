#include "hub/engine/perplexity.h"

#include <algorithm>
#include <cmath>

#include "hub/engine/kernels.h"

namespace moex {

Result<Perplexity> measure_perplexity(
    Decoder& decoder, ExpertBackend& experts, std::span<const TokenId> tokens,
    const PerplexityOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t, double)>& progress) {
    const ModelConfig& config = decoder.config();

    if (options.window_tokens < 2 || options.window_tokens > config.context_tokens)
        return Error{ErrorCode::invalid_argument,
                     text("a window of ", options.window_tokens, " tokens, wanted 2 ... ",
                          config.context_tokens, " (the context)")};

    const auto whole = static_cast<std::uint32_t>(tokens.size() / options.window_tokens);
    const std::uint32_t num_windows = options.num_windows == 0 ? whole : options.num_windows;
    if (num_windows == 0 || num_windows > whole)
        return Error{ErrorCode::invalid_argument,
                     text("the text has ", tokens.size(), " tokens: ", whole, " whole windows of ",
                          options.window_tokens, ", asked for ", std::max(num_windows, 1u))};

    constexpr std::uint32_t page_tokens = 16;
    KvCache cache(config, {page_tokens, (options.window_tokens + page_tokens - 1) / page_tokens,
                           options.kv_dtype});
    constexpr std::size_t chunk_tokens = 128;  // tokens per step; limits the memory of the logits

    Perplexity out;
    double sum = 0;
    for (std::uint32_t window = 0; window < num_windows; ++window) {
        const auto ids = tokens.subspan(std::size_t{window} * options.window_tokens,
                                        options.window_tokens);

        KvCache::Sequence sequence(cache);
        for (std::size_t first = 0; first + 1 < ids.size(); first += chunk_tokens) {
            const std::size_t count = std::min(chunk_tokens, ids.size() - 1 - first);
            const StepRows rows{.kv = &sequence,
                                .tokens = ids.subspan(first, count),
                                .all_logits = true,
                                .speculator = options.speculator};
            MOEX_ASSIGN(step, decoder.step({&rows, 1}, experts));

            for (std::size_t i = 0; i < count; ++i) {
                const auto logits = std::span<const float>(step.logits)
                                        .subspan(i * config.vocab_size, config.vocab_size);
                sum += double{log_sum_exp(logits)} - logits[ids[first + i + 1]];
            }
            out.num_predictions += count;
        }

        out.num_windows = window + 1;
        out.mean_nll = sum / static_cast<double>(out.num_predictions);
        out.perplexity = std::exp(out.mean_nll);

        if (progress) progress(window + 1, num_windows, out.perplexity);
    }
    return out;
}

}  // namespace moex
