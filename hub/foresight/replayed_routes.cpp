#include "hub/foresight/replayed_routes.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "hub/foresight/random.h"

namespace moex {
namespace {

using Experts = std::vector<std::uint16_t>;

class ReplayedRoutes : public ExpertPredictor {
  public:
    ReplayedRoutes(double recall, std::uint64_t seed) : recall_(recall), seed_(seed) {}
    std::string_view name() const override { return "replay"; }

    bool predict(const RouteView& seen, std::uint32_t layer, std::span<float> confidence) override {
        std::fill(confidence.begin(), confidence.end(), 0.0f);
        for (std::size_t row = 0; row < seen.num_tokens; ++row) {
            const auto known = routes_.find({layer, text_of(seen.rows[row])});
            if (known == routes_.end()) return false;

            const Experts guessed = guess(known->second, layer, seen.rows[row].position,
                                          seen.num_experts);
            for (std::size_t rank = 0; rank < guessed.size(); ++rank)
                confidence[row * seen.num_experts + guessed[rank]] = static_cast<float>(
                    guessed.size() - rank);
        }
        return true;
    }

    void observe(const RouteView& route) override {
        for (std::size_t row = 0; row < route.num_tokens; ++row) {
            const auto chosen = route.expert_ids.subspan(row * route.top_k, route.top_k);
            routes_[{route.layer, text_of(route.rows[row])}] = Experts(chosen.begin(),
                                                                       chosen.end());
        }
    }

  private:
    // A number for a sequence's tokens up to this row's, which come in their order. Those before
    // the first one that was seen (a shared prefix) count as none.
    std::uint64_t text_of(const SequenceRow& row) {
        std::vector<std::uint64_t>& texts = texts_[row.kv];
        texts.resize(std::size_t{row.position} + 1);
        const std::uint64_t before = row.position == 0 ? 0 : texts[row.position - 1];
        return texts.back() =
                   SplitMix64(before ^ (std::uint64_t{row.token} << 32 | row.position)).next();
    }

    // As many as were chosen, each once.
    Experts guess(const Experts& chosen, std::uint32_t layer, std::uint32_t position,
                  std::uint32_t num_experts) const {
        SplitMix64 random(seed_ ^ (std::uint64_t{layer} << 32 | position));
        Experts guessed = chosen;
        Experts others;
        for (std::uint32_t expert = 0; expert < num_experts; ++expert)
            if (std::count(chosen.begin(), chosen.end(), expert) == 0)
                others.push_back(static_cast<std::uint16_t>(expert));

        for (std::uint16_t& one : guessed) {
            const bool is_right = random.unit() < recall_;
            if (is_right || others.empty()) continue;
            const std::size_t at = random.below(others.size());
            one = std::exchange(others[at], others.back());
            others.pop_back();
        }
        return guessed;
    }

    const double recall_;
    const std::uint64_t seed_;
    std::map<std::pair<std::uint32_t, std::uint64_t>, Experts> routes_;  // by descending weight
    // By sequence and position. One that begins writes over what its address meant before.
    std::map<const KvCache::Sequence*, std::vector<std::uint64_t>> texts_;
};

}  // namespace

std::unique_ptr<ExpertPredictor> make_replay_predictor(double recall, std::uint64_t seed) {
    return std::make_unique<ReplayedRoutes>(recall, seed);
}

}  // namespace moex
