// A fixture with a tiny model and everything that lossy modes read: routers, default vectors and an
// estimator.
#pragma once

#include "hub/foresight/predict/speculation_sources.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex::test {

class LossyFixture : public testing::Test {
  protected:
    LossyFixture()
        : package_(tiny_package()),
          experts_(package_, compute_threads(), {}, Arithmetic::int8),
          tokens_(random_tokens(96, package_->config().vocab_size, 3)),
          cache_(package_->config(), {16, 64, KvDtype::f32}) {
        const ModelConfig& config = package_->config();
        auto decoder = Decoder::create(package_, compute_threads());
        auto gates = RouterGates::load(package_, compute_threads());
        if (!decoder.ok() || !gates.ok()) throw std::runtime_error("the tiny model does not load");
        decoder_ = std::move(decoder).value();
        sources_.gates = std::make_shared<const RouterGates>(*std::move(gates));
        auto profile = calibrate_experts(*decoder_, experts_, experts_, tokens_,
                                         {.window_tokens = 32}, {});
        if (!profile.ok()) throw std::runtime_error(profile.error().message);
        sources_.profile = std::make_shared<const ExpertProfile>(*std::move(profile));
        sources_.estimator = std::make_shared<const Estimator>(
            EstimatorShape{.hidden_size = config.hidden_size,
                           .num_experts = config.num_experts,
                           .num_targets = 2,
                           .width = 8,
                           .inner = 8},
            5);
    }

    // Runs the tokens [first, first + count) of the text as a new sequence, `chunk` tokens at a
    // time, and returns the logits after each token.
    std::vector<float> read(ExpertSpeculator* with, std::uint32_t first, std::uint32_t count,
                            std::uint32_t chunk, ExpertBackend* by = nullptr,
                            std::uint32_t parts = 1) {
        KvCache::Sequence kv(cache_);
        std::vector<float> logits;
        for (std::uint32_t at = 0; at < count; at += chunk) {
            const StepRows rows{
                .kv = &kv,
                .tokens = std::span(tokens_).subspan(first + at, std::min(chunk, count - at)),
                .all_logits = true,
                .speculator = with};
            const auto step = decoder_->step({&rows, 1}, by ? *by : experts_, {}, {}, parts);
            if (!step.ok()) throw std::runtime_error(step.error().message);
            logits.insert(logits.end(), step->logits.begin(), step->logits.end());
        }
        return logits;
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts experts_;
    std::vector<TokenId> tokens_;
    KvCache cache_;
    std::unique_ptr<Decoder> decoder_;
    SpeculationSources sources_;
};

}  // namespace moex::test
