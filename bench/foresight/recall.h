// Measures how often a prediction contains the requested experts. recall@m of a token and layer is
// the share of the token's top_k experts that are among the m experts that the predictor is surest
// of. Results are kept by layer, by the token's position in its window and by the rank of the
// requested expert, as mean and standard deviation over windows. Example: experts 2 and 0 are
// requested, and the prediction, surest first, is 0, 1, 2, 3: recall@2 = 0.5, recall@3 = 1.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace moex::bench {

// Computes mean and sample standard deviation of values with Welford's method. The deviation of
// fewer than two values is 0.
class Spread {
  public:
    void add(double value);
    std::uint64_t count() const { return count_; }
    double mean() const { return mean_; }
    double deviation() const;

  private:
    std::uint64_t count_ = 0;
    double mean_ = 0, squares_ = 0;
};

// Returns the `count` experts with the highest confidence, the highest first. Of equal ones the
// lower id is first, as the router chooses.
std::vector<std::uint16_t> surest_experts(std::span<const float> confidence, std::size_t count);

struct RecallOptions {
    std::uint32_t num_layers = 0;   // number of MoE layers, which are numbered from 0 here
    std::uint32_t first_layer = 0;  // the first layer that counts in means over layers
    std::uint32_t top_k = 0;
    std::vector<std::uint32_t> fetches;  // the values m of recall@m, ascending; the first is top_k
    // Number of positions of a window with a result of their own.
    std::uint32_t tokens_max = 256;
};

// Counts predicted experts that were requested (hits), by window, layer, token and rank.
class RecallMeter {
  public:
    explicit RecallMeter(RecallOptions options);

    // Records one prediction. `asked`: the requested experts [top_k], by descending weight;
    // `token_index` counts from the window's first token.
    void record(std::uint32_t layer, std::uint32_t token_index, std::span<const float> confidence,
                std::span<const std::uint16_t> asked);
    // Records a token for which there was no prediction; it has no hits.
    void record_none(std::uint32_t layer, std::uint32_t token_index);
    // Records the cosine between the expected and the true input of the router.
    void record_cosine(std::uint32_t layer, std::uint32_t token_index, double cosine);
    void end_window();

    const RecallOptions& options() const { return options_; }
    // Means over the layers from first_layer on; by index of `fetches`, by rank of the expert, or
    // by position of the token.
    const Spread& recall(std::size_t fetch) const { return recall_[fetch]; }
    const Spread& rank_hits(std::size_t rank) const { return ranks_[rank]; }
    const Spread& at_token(std::size_t index) const { return tokens_[index]; }
    const Spread& rank_at_token(std::size_t index, std::size_t rank) const {
        return token_ranks_[index * options_.top_k + rank];
    }
    const Spread& cosine_at_token(std::size_t index) const { return token_cosines_[index]; }
    // The results for one layer; count() is 0 if nothing was recorded for it.
    const Spread& layer_recall(std::uint32_t layer, std::size_t fetch) const {
        return layers_[layer * options_.fetches.size() + fetch];
    }
    const Spread& layer_cosine(std::uint32_t layer) const { return cosines_[layer]; }

  private:
    struct Sum {
        double hits = 0;
        std::uint64_t of = 0;
        void add(double hit, std::uint64_t asked) { hits += hit, of += asked; }
    };
    void add_rank(std::size_t rank, std::uint32_t token_index, double hit);
    static void close(std::vector<Sum>& sums, std::vector<Spread>& spreads);

    RecallOptions options_;
    std::vector<Spread> recall_, ranks_, tokens_, token_ranks_, token_cosines_, layers_, cosines_;
    // The sums of the current window, which end_window() adds to the results.
    std::vector<Sum> recall_now_, ranks_now_, tokens_now_, token_ranks_now_, token_cosines_now_,
        layers_now_, cosines_now_;
};

}  // namespace moex::bench
