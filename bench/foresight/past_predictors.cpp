#include "bench/foresight/past_predictors.h"

#include <algorithm>
#include <unordered_map>

#include "hub/foresight/predict/random.h"

namespace moex::bench {
namespace {

class Random : public ExpertPredictor {
  public:
    explicit Random(std::uint64_t seed) : random_(seed) {}
    std::string_view name() const override { return "random"; }
    bool predict(const RouteView&, std::uint32_t, std::span<float> confidence) override {
        for (float& one : confidence) one = random_.unit();
        return true;
    }

  private:
    SplitMix64 random_;
};

// Holds a value (such as a count) for each (layer, expert), of all sequences together or of a
// single sequence.
class UnitValues {
  public:
    explicit UnitValues(const ModelConfig& config)
        : num_experts_(config.num_experts),
          values_(std::size_t{config.num_layers} * config.num_experts) {}
    std::span<double> of(std::uint32_t layer) {
        return std::span(values_).subspan(std::size_t{layer} * num_experts_, num_experts_);
    }

  private:
    std::uint32_t num_experts_;
    std::vector<double> values_;
};

// Holds the values of each sequence, keyed by its address. The values of a sequence stay until
// another sequence begins at the same address.
class SequenceValues {
  public:
    explicit SequenceValues(const ModelConfig& config) : config_(config) {}
    // Returns the values of a layer as they are before `row`. A row at position 0 resets all values
    // of its sequence.
    std::span<double> of(const SequenceRow& row, std::uint32_t layer) {
        if (values_.size() >= sequences_max && !values_.contains(row.kv)) values_.clear();
        const auto [found, is_new] = values_.try_emplace(row.kv, config_);
        const auto values = found->second.of(layer);
        if (row.position == 0) std::fill(values.begin(), values.end(), 0.0);
        return values;
    }

  private:
    // The most sequence addresses that are kept, since a long run uses many.
    static constexpr std::size_t sequences_max = 256;
    ModelConfig config_;
    std::unordered_map<const KvCache::Sequence*, UnitValues> values_;
};

void copy_values(std::span<float> out, std::span<const double> values) {
    std::transform(values.begin(), values.end(), out.begin(),
                   [](double value) { return static_cast<float>(value); });
}
std::span<float> row_of(std::span<float> confidence, std::size_t row, std::uint32_t num_experts) {
    return confidence.subspan(row * num_experts, num_experts);
}

class PreviousToken : public ExpertPredictor {
  public:
    explicit PreviousToken(const ModelConfig& config)
        : num_experts_(config.num_experts),
          weights_(config) {}
    std::string_view name() const override { return "previous-token"; }
    bool predict(const RouteView& seen, std::uint32_t layer, std::span<float> confidence) override {
        for (std::size_t row = 0; row < seen.num_tokens; ++row)
            copy_values(row_of(confidence, row, num_experts_), weights_.of(seen.rows[row], layer));
        return true;
    }
    void observe(const RouteView& route) override {
        // Small: all weights of an earlier token stay below those of a later token.
        constexpr double fading = 0x1p-10;
        for (std::size_t row = 0; row < route.num_tokens; ++row) {
            const auto weights = weights_.of(route.rows[row], route.layer);
            for (double& weight : weights) weight *= fading;
            for (std::size_t i = row * route.top_k; i < (row + 1) * route.top_k; ++i)
                weights[route.expert_ids[i]] += double{route.expert_weights[i]};
        }
    }

  private:
    std::uint32_t num_experts_;
    SequenceValues weights_;
};

// Predicts from the past of all sequences, which is kept as one value for each (layer, expert).
class SharedPast : public ExpertPredictor {
  public:
    explicit SharedPast(const ModelConfig& config)
        : num_experts_(config.num_experts),
          values_(config) {}
    bool predict(const RouteView& seen, std::uint32_t layer, std::span<float> confidence) override {
        for (std::size_t row = 0; row < seen.num_tokens; ++row)
            copy_values(row_of(confidence, row, num_experts_), values_.of(layer));
        return true;
    }

  protected:
    std::uint32_t num_experts_;
    UnitValues values_;
};

class Lru : public SharedPast {
  public:
    explicit Lru(const ModelConfig& config) : SharedPast(config), base_(config.num_layers) {}
    std::string_view name() const override { return "lru"; }
    bool predict(const RouteView& seen, std::uint32_t layer, std::span<float> confidence) override {
        // The confidence is the negative age of the last use, not its time: f32 can resolve ages
        // after any number of tokens.
        for (std::size_t i = 0; i < confidence.size(); ++i) {
            const double used = values_.of(layer)[i % num_experts_];
            confidence[i] = used == 0 ? -1e30f : static_cast<float>(used - base_[layer]);
        }
        return seen.num_tokens > 0;
    }
    void observe(const RouteView& route) override {
        for (std::size_t row = 0; row < route.num_tokens; ++row)
            for (std::size_t i = (row + 1) * route.top_k; i-- > row * route.top_k;)
                values_.of(route.layer)[route.expert_ids[i]] = base_[route.layer] += 1;
    }

  private:
    std::vector<double> base_;  // a layer's clock
};

class Lfu : public SharedPast {
  public:
    using SharedPast::SharedPast;
    std::string_view name() const override { return "lfu"; }
    void observe(const RouteView& route) override {
        for (const std::uint16_t expert : route.expert_ids) values_.of(route.layer)[expert] += 1;
    }
};

class Popularity : public ExpertPredictor {
  public:
    explicit Popularity(std::shared_ptr<const ExpertProfile> profile)
        : profile_(std::move(profile)) {}
    std::string_view name() const override { return "popularity"; }
    bool predict(const RouteView&, std::uint32_t layer, std::span<float> confidence) override {
        const auto uses = profile_->uses_of(layer);
        for (std::size_t i = 0; i < confidence.size(); ++i)
            confidence[i] = static_cast<float>(uses[i % uses.size()]);
        return true;
    }

  private:
    std::shared_ptr<const ExpertProfile> profile_;
};

class RequestPopularity : public ExpertPredictor {
  public:
    RequestPopularity(const ModelConfig& config, std::shared_ptr<const ExpertProfile> profile)
        : num_experts_(config.num_experts),
          profile_(std::move(profile)),
          uses_(config) {}
    std::string_view name() const override { return "request-popularity"; }
    bool predict(const RouteView& seen, std::uint32_t layer, std::span<float> confidence) override {
        for (std::size_t row = 0; row < seen.num_tokens; ++row) {
            const auto out = row_of(confidence, row, num_experts_);
            copy_values(out, uses_.of(seen.rows[row], layer));
            if (!profile_) continue;

            // Add each expert's share of all calibration tokens, which is less than one use.
            const double whole = static_cast<double>(profile_->num_tokens) + 1;
            for (std::size_t i = 0; i < out.size(); ++i)
                out[i] += static_cast<float>(static_cast<double>(profile_->uses_of(layer)[i]) /
                                             whole);
        }
        return true;
    }
    void observe(const RouteView& route) override {
        for (std::size_t row = 0; row < route.num_tokens; ++row) {
            const auto uses = uses_.of(route.rows[row], route.layer);
            for (std::size_t i = row * route.top_k; i < (row + 1) * route.top_k; ++i)
                uses[route.expert_ids[i]] += 1;
        }
    }

  private:
    std::uint32_t num_experts_;
    std::shared_ptr<const ExpertProfile> profile_;
    SequenceValues uses_;
};

}  // namespace

std::unique_ptr<ExpertPredictor> make_random_predictor(std::uint64_t seed) {
    return std::make_unique<Random>(seed);
}
std::unique_ptr<ExpertPredictor> make_previous_token_predictor(const ModelConfig& config) {
    return std::make_unique<PreviousToken>(config);
}
std::unique_ptr<ExpertPredictor> make_lru_predictor(const ModelConfig& config) {
    return std::make_unique<Lru>(config);
}
std::unique_ptr<ExpertPredictor> make_lfu_predictor(const ModelConfig& config) {
    return std::make_unique<Lfu>(config);
}
std::unique_ptr<ExpertPredictor> make_popularity_predictor(
    std::shared_ptr<const ExpertProfile> profile) {
    return std::make_unique<Popularity>(std::move(profile));
}
std::unique_ptr<ExpertPredictor> make_request_popularity_predictor(
    const ModelConfig& config, std::shared_ptr<const ExpertProfile> profile) {
    return std::make_unique<RequestPopularity>(config, std::move(profile));
}

}  // namespace moex::bench
