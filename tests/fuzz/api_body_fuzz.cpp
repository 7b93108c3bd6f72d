// Fuzzes the parser of request bodies. Any bytes must give either parameters within their bounds or
// a problem with a sentence. The first byte chooses a chat request or a completion request.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "hub/api/openai_request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace moex;
    if (size == 0) return 0;
    const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
    ParamLimits limits;
    limits.vocab_size = 8192;
    const bool is_chat = data[0] % 2 == 0;
    const auto parsed = is_chat ? parse_chat_params(body, limits)
                                : parse_completion_params(body, limits);
    if (!parsed.ok()) {
        const Refusal& refusal = parsed.refusal();
        if (refusal.message.empty() || refusal.status < 400 || refusal.status > 499) std::abort();
        return 0;
    }
    const CompletionParams& params = *parsed;
    if (params.n < 1 || params.n > limits.n_max || params.top_logprobs > 20 ||
        params.stop.size() > 4)
        std::abort();
    if (!(params.sampling.temperature >= 0 && params.sampling.temperature <= 2)) std::abort();
    if (is_chat && (!params.messages.is_array() || params.messages.empty())) std::abort();
    if (!is_chat && (params.prompts.empty() || params.prompts.size() * params.n > limits.n_max))
        std::abort();
    for (const auto& prompt : params.prompts)
        if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt))
            for (const TokenId id : *ids)
                if (id >= limits.vocab_size) std::abort();
    return 0;
}
