#include "hub/foresight/predict/replayed_routes.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "hub/foresight/predict/random.h"

namespace moex {
namespace {

using Experts = std::vector<std::uint16_t>;

class ReplayedRoutes : public ExpertPredictor {
  public:
    ReplayedRoutes(double recall, std::uint64_t seed, bool is_token_ahead)
        : recall_(recall),
          seed_(seed),
          is_token_ahead_(is_token_ahead) {}
    std::string_view name() const override { return "replay"; }

    bool predict(const RouteView& seen, std::uint32_t layer, std::span<float> confidence) override {
        std::fill(confidence.begin(), confidence.end(), 0.0f);
        for (std::size_t row = 0; row < seen.num_tokens; ++row)
            if (!predict_row(seen, row, text_of(seen.rows[row]), 0, layer, confidence))
                return false;
        return true;
    }

    bool predict_next_token(const RouteView& seen, std::uint32_t layer,
                            std::span<float> confidence) override {
        if (!is_token_ahead_) return false;
        std::fill(confidence.begin(), confidence.end(), 0.0f);
        for (std::size_t row = 0; row < seen.num_tokens; ++row) {
            const auto next = next_.find(text_of(seen.rows[row]));
            if (next == next_.end() || !predict_row(seen, row, next->second, 1, layer, confidence))
                return false;
        }
        return true;
    }

    void observe(const RouteView& route) override {
        for (std::size_t row = 0; row < route.num_tokens; ++row) {
            const auto chosen = route.expert_ids.subspan(row * route.top_k, route.top_k);
            const std::uint64_t text = text_of(route.rows[row]);
            routes_[{route.layer, text}] = Experts(chosen.begin(), chosen.end());
            const std::uint32_t position = route.rows[row].position;
            if (is_token_ahead_ && position > 0)
                next_[texts_[route.rows[row].kv][position - 1]] = text;
        }
    }

  private:
    // Predicts the experts of the token that is `behind` positions after the row's token. `text` is
    // the hash of the tokens up to that token.
    bool predict_row(const RouteView& seen, std::size_t row, std::uint64_t text,
                     std::uint32_t behind, std::uint32_t layer, std::span<float> confidence) const {
        const auto known = routes_.find({layer, text});
        if (known == routes_.end()) return false;

        const Experts guessed = guess(known->second, layer, seen.rows[row].position + behind,
                                      seen.num_experts);
        for (std::size_t rank = 0; rank < guessed.size(); ++rank)
            confidence[row * seen.num_experts + guessed[rank]] = static_cast<float>(guessed.size() -
                                                                                    rank);
        return true;
    }

    // Returns a hash of the sequence's tokens up to this row. Rows arrive in the order of
    // positions. Tokens before the first row that was seen (a shared prefix) are not part of the
    // hash.
    std::uint64_t text_of(const SequenceRow& row) {
        std::vector<std::uint64_t>& texts = texts_[row.kv];
        texts.resize(std::size_t{row.position} + 1);
        const std::uint64_t before = row.position == 0 ? 0 : texts[row.position - 1];
        return texts.back() =
                   SplitMix64(before ^ (std::uint64_t{row.token} << 32 | row.position)).next();
    }

    // Returns a guess with the chosen recall: each expert of `chosen` is kept with probability
    // `recall` or replaced by another, distinct expert.
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
    const bool is_token_ahead_;
    std::map<std::pair<std::uint32_t, std::uint64_t>, Experts> routes_;  // by descending weight
    // hash of a text -> hash of this text with the token that followed last
    std::map<std::uint64_t, std::uint64_t> next_;
    // For each sequence, the hash of its text up to each position. A new sequence at the same
    // address overwrites the hashes.
    std::map<const KvCache::Sequence*, std::vector<std::uint64_t>> texts_;
};

}  // namespace

std::unique_ptr<ExpertPredictor> make_replay_predictor(double recall, std::uint64_t seed,
                                                       bool is_token_ahead) {
    return std::make_unique<ReplayedRoutes>(recall, seed, is_token_ahead);
}

}  // namespace moex
