// A TokenChooser for the decoder that uses the hub's sampler.
#pragma once

#include <vector>

#include "hub/engine/sampler.h"
#include "web-worker/decoder/sampled_loop.h"

namespace moex {

class SamplerChooser : public TokenChooser {
  public:
    explicit SamplerChooser(Sampler sampler) : sampler_(std::move(sampler)) {}

    std::uint32_t num_likeliest() const override { return sampler_.num_likeliest(); }
    std::uint32_t choose(Candidates likeliest) override {
        std::vector<TokenLogit> tokens;
        for (const auto& one : likeliest) tokens.push_back({one.token, one.logit});
        return sampler_.choose(std::span<const TokenLogit>(tokens)).id;
    }
    std::uint32_t choose(std::span<const float> logits) override { return sampler_.choose(logits); }
    void accept(std::uint32_t token) override { sampler_.accept(token); }

  private:
    Sampler sampler_;
};

}  // namespace moex
