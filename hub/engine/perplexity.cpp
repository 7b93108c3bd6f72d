#include "hub/engine/perplexity.h"

#include <algorithm>
#include <cmath>

#include "hub/engine/kernels.h"

namespace moex {

Result<TextWindows> TextWindows::create(std::span<const TokenId> tokens, const ModelConfig& config,
                                        const PerplexityOptions& options) {
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
    TextWindows windows(tokens, options);
    windows.num_windows_ = num_windows;
    return windows;
}

KvCache TextWindows::make_cache(const ModelConfig& config, KvDtype dtype) const {
    constexpr std::uint32_t page_tokens = 16;
    return KvCache(config,
                   {page_tokens, (options_.window_tokens + page_tokens - 1) / page_tokens, dtype});
}

Status TextWindows::read(std::uint32_t window, Decoder& decoder, ExpertBackend& experts,
                         KvCache& cache,
                         const std::function<void(std::span<const float>, TokenId)>& take) const {
    constexpr std::size_t chunk_tokens = 128;  // tokens per step; limits the memory of the logits
    const auto ids = tokens_.subspan(std::size_t{window} * options_.window_tokens,
                                     options_.window_tokens);
    // The window's last token is not a row, since no prediction follows it.
    std::vector<TokenId> rows;
    if (options_.begin_token) rows.push_back(*options_.begin_token);
    rows.insert(rows.end(), ids.begin(), ids.end() - 1);
    const std::size_t num_begin = rows.size() + 1 - ids.size();

    KvCache::Sequence sequence(cache);
    const std::uint32_t vocab_size = decoder.config().vocab_size;
    for (std::size_t first = 0; first < rows.size(); first += chunk_tokens) {
        const std::size_t count = std::min(chunk_tokens, rows.size() - first);
        const StepRows chunk{.kv = &sequence,
                             .tokens = std::span(rows).subspan(first, count),
                             .all_logits = true,
                             .speculator = options_.speculator};
        MOEX_ASSIGN(step, decoder.step({&chunk, 1}, experts));
        for (std::size_t i = first; i < first + count; ++i)
            if (i >= num_begin)
                take(std::span<const float>(step.logits)
                         .subspan((i - first) * vocab_size, vocab_size),
                     ids[i - num_begin + 1]);
    }
    return {};
}

Result<Perplexity> measure_perplexity(
    Decoder& decoder, ExpertBackend& experts, std::span<const TokenId> tokens,
    const PerplexityOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t, double)>& progress) {
    MOEX_ASSIGN(windows, TextWindows::create(tokens, decoder.config(), options));
    KvCache cache = windows.make_cache(decoder.config(), options.kv_dtype);

    Perplexity out;
    double sum = 0;
    for (std::uint32_t window = 0; window < windows.size(); ++window) {
        MOEX_TRY(windows.read(window, decoder, experts, cache,
                              [&](std::span<const float> logits, TokenId next) {
                                  sum += double{log_sum_exp(logits)} - logits[next];
                                  ++out.num_predictions;
                              }));

        out.num_windows = window + 1;
        out.mean_nll = sum / static_cast<double>(out.num_predictions);
        out.perplexity = std::exp(out.mean_nll);

        if (progress) progress(window + 1, windows.size(), out.perplexity);
    }
    return out;
}

}  // namespace moex
