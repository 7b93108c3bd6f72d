// One submitted request as it goes through the engine. Owned by the
// queue, then by the engine thread alone; private to this room.
#pragma once

#include <memory>
#include <vector>

#include "hub/engine/engine.h"

namespace moex {

struct Generation {
    Generation(GenerationId number, GenerationRequest wanted, GenerationSink to)
        : id(number),
          request(std::move(wanted)),
          sink(std::move(to)),
          sampler(request.sampling, request.prompt),
          tokens(request.prompt),
          submitted(now_steady()) {
        stats.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    }
    // Tokens that the cache lacks: 1 while it decodes, more while its
    // prompt, or what it had before it stepped back, is computed.
    std::uint32_t missing() const {
        return static_cast<std::uint32_t>(tokens.size()) - kv->num_tokens();
    }
    std::uint32_t tokens_max() const { return stats.prompt_tokens + request.max_tokens; }
    bool scores_prompt() const {
        return request.prompt_logprobs && prompt_nll.size() + 1 < request.prompt.size();
    }

    GenerationId id;
    GenerationRequest request;
    GenerationSink sink;
    Sampler sampler;
    std::vector<TokenId> tokens;            // the prompt, then what was sampled
    std::unique_ptr<KvCache::Sequence> kv;  // while it runs
    std::uint32_t step_tokens = 0;          // its rows in the current step; 0: not in it
    std::uint32_t furthest =
        0;  // the most tokens its cache ever held: what lies before is not counted twice
    TimePoint submitted, admitted{}, first_token;
    GenerationStats stats;
    std::vector<float> prompt_nll;
};

}  // namespace moex
