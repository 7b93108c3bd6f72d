// Draws the tokens of a proposal as the target draws its own: with the options of the request's
// sampler and the noise of the same positions. So two models whose probabilities are near each
// other mostly draw the same token (hub/engine/draw.h).
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "hub/engine/generation.h"
#include "hub/engine/sampler.h"

namespace moex {

class DraftSampler {
  public:
    explicit DraftSampler(const GenerationRequest& request)
        : sampler_(options_of(request), request.prompt, request.max_tokens),
          num_accepted_(request.prompt.size()),
          stop_ids_(request.stop_ids) {}

    // Takes over the tokens that were added to the sequence; `tokens` are all of them.
    void follow(std::span<const TokenId> tokens) {
        for (; num_accepted_ < tokens.size(); ++num_accepted_)
            sampler_.accept(tokens[num_accepted_]);
    }
    void begin() { ahead_.emplace(sampler_); }  // begins a proposal after the sequence's tokens
    // Draws the proposal's next token from `logits`. Returns nullopt where the text would end.
    std::optional<TokenId> draw(std::span<const float> logits) {
        const TokenId id = ahead_->choose(logits);
        if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end())
            return std::nullopt;
        ahead_->accept(id);
        return id;
    }

  private:
    static SamplingOptions options_of(const GenerationRequest& request) {
        // The mask follows drawn tokens only, so drafts do without it.
        SamplingOptions options = request.sampling;
        options.mask = nullptr;
        return options;
    }
    Sampler sampler_;
    std::size_t num_accepted_;  // tokens of the sequence that sampler_ knows, the prompt included
    const std::vector<TokenId> stop_ids_;
    std::optional<Sampler> ahead_;  // the sampler after the tokens that were proposed so far
};

}  // namespace moex
