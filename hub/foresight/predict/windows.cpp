#include "hub/foresight/predict/windows.h"

#include <algorithm>

namespace moex {

Result<std::uint32_t> count_windows(const ModelConfig& config, std::size_t num_tokens,
                                    const WindowOptions& options) {
    if (options.window_tokens < 2 || options.window_tokens > config.context_tokens)
        return Error{ErrorCode::invalid_argument,
                     text("a window of ", options.window_tokens, " tokens, wanted 2 ... ",
                          config.context_tokens, " (the context)")};

    const auto whole = static_cast<std::uint32_t>(num_tokens / options.window_tokens);
    const std::uint32_t wanted = options.num_windows == 0 ? whole : options.num_windows;
    if (wanted == 0 || wanted > whole)
        return Error{ErrorCode::invalid_argument,
                     text("the text has ", num_tokens, " tokens: ", whole, " whole windows of ",
                          options.window_tokens, ", requested ", std::max(wanted, 1u))};
    return wanted;
}

Status walk_windows(Decoder& decoder, ExpertBackend& experts, std::span<const TokenId> tokens,
                    const WindowOptions& options, const RouteWatch& watch,
                    const std::function<void(std::uint32_t, std::uint32_t)>& ended) {
    const ModelConfig& config = decoder.config();
    MOEX_ASSIGN(num_windows, count_windows(config, tokens.size(), options));

    constexpr std::uint32_t page_tokens = 16;
    KvCache cache(config, {page_tokens, (options.window_tokens + page_tokens - 1) / page_tokens,
                           options.kv_dtype});

    for (std::uint32_t window = 0; window < num_windows; ++window) {
        const auto ids = tokens.subspan(std::size_t{window} * options.window_tokens,
                                        options.window_tokens);
        KvCache::Sequence sequence(cache);
        for (std::size_t first = 0; first < ids.size(); first += options.chunk_tokens) {
            const std::size_t count = std::min<std::size_t>(options.chunk_tokens,
                                                            ids.size() - first);
            const StepRows rows{
                .kv = &sequence, .tokens = ids.subspan(first, count), .no_logits = true};
            MOEX_TRY(decoder.step({&rows, 1}, experts, watch));
        }
        if (ended) ended(window + 1, num_windows);
    }
    return {};
}

}  // namespace moex
