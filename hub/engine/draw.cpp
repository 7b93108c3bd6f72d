#include "hub/engine/draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace moex {
namespace {

constexpr int weight_bits = 39;
static_assert((std::uint64_t{token_id_max} + 1) << weight_bits <= std::uint64_t{1} << 63,
              "the weights of the largest vocabulary add up to no more than 64 bits hold");
constexpr std::uint32_t steps_never = draw_steps_max + draw_steps_per_octave;

// A bucket of the histogram covers 1/32 of an octave of probability, so that few tokens are in the
// bucket that contains a cut (top-k or top-p).
constexpr int bucket_shift = 15;
constexpr std::uint32_t bucket_never = steps_never >> bucket_shift;
constexpr std::size_t block_tokens = 256;
using Histogram = std::array<std::uint64_t, bucket_never + 1>;

// Tables of 2^-(i / 2^10) and 2^-(i / 2^20) as fixed-point numbers with 31 fraction bits. The
// product of one entry of each table gives 2^-f for any fraction f of an octave.
struct PowerTables {
    static constexpr int bits = 10, fraction_bits = 31;
    std::array<std::uint32_t, 1u << bits> coarse, fine;

    PowerTables() {
        for (std::uint32_t i = 0; i < coarse.size(); ++i) {
            const double one = double{1u << fraction_bits};
            coarse[i] = static_cast<std::uint32_t>(std::lround(one * std::exp2(i * -0x1p-10)));
            fine[i] = static_cast<std::uint32_t>(std::lround(one * std::exp2(i * -0x1p-20)));
        }
    }
};
const PowerTables powers;

std::uint64_t weight_of(std::uint32_t steps) {
    constexpr std::uint32_t mask = (1u << PowerTables::bits) - 1;
    constexpr int shift = 2 * PowerTables::fraction_bits - weight_bits;
    const std::uint64_t fraction = std::uint64_t{powers.coarse[steps >> PowerTables::bits & mask]} *
                                   powers.fine[steps & mask];
    return fraction >> (shift + static_cast<int>(steps / draw_steps_per_octave));
}
// The largest weight of a token in each bucket.
const std::array<double, bucket_never> bucket_weights = [] {
    std::array<double, bucket_never> weights{};
    for (std::uint32_t bucket = 0; bucket < bucket_never; ++bucket)
        weights[bucket] = static_cast<double>(weight_of(bucket << bucket_shift));
    return weights;
}();
static_assert(2 * PowerTables::fraction_bits - weight_bits + steps_never / draw_steps_per_octave <
                  64,
              "a shift of 64 has no meaning");

// Converts a logit to its distance below the likeliest token's, in steps of 2^-20 octaves.
class Steps {
  public:
    Steps(float most, const DrawOptions& options) : most_(most) {
        const double scale = draw_steps_per_octave / (options.temperature * std::log(2.0));
        scale_ = static_cast<float>(std::min(scale, 1e30));
        if (options.min_p > 0)
            limit_ = static_cast<float>(std::clamp(
                -std::log2(options.min_p) * draw_steps_per_octave, 0.0, double{draw_steps_max}));
    }
    // Returns the distance of a token with this logit in steps; returns steps_never if the token
    // cannot be drawn or the logit is NaN.
    std::uint32_t operator()(float logit) const {
        const float steps = (most_ - logit) * scale_;
        return static_cast<std::uint32_t>(
            static_cast<std::int32_t>(steps <= limit_ ? steps : float{steps_never}));
    }

  private:
    float most_, scale_ = 0, limit_ = float{draw_steps_max};
};

// A token in the race of a draw (see draw.h). The token's clock rings at `time` / `weight`; the
// first clock wins.
struct Runner {
    TokenId index = 0;
    std::uint64_t time = 0, weight = 0;

    // Compares the times of two tokens' clocks without a division; the lower id wins a tie.
    bool beats(const Runner& other) const {
        __extension__ using Wide = unsigned __int128;
        const Wide mine = Wide{time} * other.weight, its = Wide{other.time} * weight;
        return weight > 0 && (mine < its || (mine == its && index < other.index));
    }
    double rate() const { return static_cast<double>(time) / static_cast<double>(weight); }
};

// A random draw in progress: the histogram of probabilities, and the position of the last token
// that the cuts keep.
class Draw {
  public:
    Draw(std::span<const float> logits, TokenId likeliest, const DrawOptions& options)
        : logits_(logits),
          steps_(logits[likeliest], options) {
        const bool cuts_count = options.top_k != 0 && options.top_k < logits.size();
        const bool cuts_share = options.top_p < 1.0;
        fill(cuts_count || cuts_share);
        if (cuts_count) keep_count(options.top_k);
        if (cuts_share) keep_share(options.top_p);
    }

    // Runs the race of the tokens that the cuts keep and returns the winner's index; returns
    // `likeliest` if the logits are NaN.
    TokenId take(TokenId likeliest, const DrawPlace& place, std::span<const TokenId> ids) {
        const std::uint64_t most = weight_of(steps_(logits_[likeliest]));
        if (most == 0) return likeliest;
        const DrawNoise noise(place);
        const auto id_of = [&](TokenId index) { return ids.empty() ? index : ids[index]; };
        Runner best{.index = likeliest,
                    .time = exponential_time(noise.of(id_of(likeliest))),
                    .weight = most};
        set_limits(best);

        const auto enter = [&](TokenId index, std::uint32_t high) {
            const Runner other{
                .index = index,
                .time = exponential_time(std::uint64_t{high} << 32 | noise.low(id_of(index))),
                .weight = weight_of(steps_(logits_[index]))};
            if (!other.beats(best)) return;
            best = other;
            if (best.rate() < 0.5 * limits_rate_) set_limits(best);
        };

        // Most blocks end at the first test: none of their tokens is below the bound of the block's
        // likeliest token. Exact times are computed only for the few tokens below their own bound.
        std::uint32_t high[block_tokens];
        for (std::size_t first = 0, block = 0; first < logits_.size();
             first += block_tokens, ++block) {
            // top-k and top-p keep no token of this block
            if (block_bucket_[block] >= cut_) continue;
            const std::size_t count = std::min(block_tokens, logits_.size() - first);
            if (fill_noise(noise, first, count, ids, high) >= limits_[block_bucket_[block]])
                continue;
            for (std::size_t i = 0; i < count; ++i)
                if (high[i] < limits_[buckets_[first + i]])
                    enter(static_cast<TokenId>(first + i), high[i]);
        }
        for (const TokenId index : at_cut_)
            if (const std::uint32_t bits = noise.high(id_of(index)); bits < cut_limit_)
                enter(index, bits);
        return best.index;
    }

  private:
    // Finds the bucket of each token. The histogram is filled only for cuts that need it.
    void fill(bool needs_histogram) {
        thread_local std::vector<std::uint16_t> memory;
        memory.resize(logits_.size());
        buckets_ = memory;

        thread_local std::vector<std::uint16_t> block_memory;
        block_memory.assign((logits_.size() + block_tokens - 1) / block_tokens, bucket_never);
        block_bucket_ = block_memory;

        std::uint32_t steps[block_tokens];
        for (std::size_t first = 0, block = 0; first < logits_.size();
             first += block_tokens, ++block) {
            const std::size_t count = std::min(block_tokens, logits_.size() - first);
            const std::uint32_t least = fill_steps(first, count, steps);
            block_bucket_[block] = static_cast<std::uint16_t>(least >> bucket_shift);
            if (!needs_histogram) continue;
            for (std::size_t i = 0; i < count; ++i)
                histogram_[steps[i] >> bucket_shift] += weight_of(steps[i]);
        }

        for (std::uint32_t bucket = 0; bucket < cut_; ++bucket) total_ += histogram_[bucket];
    }

    // Fills `steps` and buckets_ for `count` tokens from index `first` on, and returns the least of
    // the steps. A whole block has its own call with a constant length, which the compiler
    // vectorises better.
    std::uint32_t fill_steps(std::size_t first, std::size_t count,
                             std::uint32_t (&steps)[block_tokens]) {
        return count == block_tokens ? fill_steps_of(first, block_tokens, steps)
                                     : fill_steps_of(first, count, steps);
    }
    [[gnu::always_inline]] std::uint32_t fill_steps_of(std::size_t first, std::size_t count,
                                                       std::uint32_t (&steps)[block_tokens]) {
        const float* const logits = logits_.data() + first;
        std::uint16_t* const buckets = buckets_.data() + first;
        for (std::size_t i = 0; i < count; ++i) steps[i] = steps_(logits[i]);
        for (std::size_t i = 0; i < count; ++i)
            buckets[i] = static_cast<std::uint16_t>(steps[i] >> bucket_shift);
        std::uint32_t least = steps_never;
        for (std::size_t i = 0; i < count; ++i) least = std::min(least, steps[i]);
        return least;
    }

    // Returns the tokens of a bucket that earlier cuts have kept, the likeliest first.
    std::vector<TokenId> sorted(std::uint32_t bucket) const {
        if (bucket == cut_) return at_cut_;
        std::vector<TokenId> ids;
        for (TokenId id = 0; id < logits_.size(); ++id)
            if (buckets_[id] == bucket) ids.push_back(id);
        std::stable_sort(ids.begin(), ids.end(),
                         [&](TokenId a, TokenId b) { return logits_[a] > logits_[b]; });
        return ids;
    }

    void keep_count(std::uint32_t count) {
        std::array<std::uint32_t, bucket_never + 1> counts{};
        for (const std::uint16_t bucket : buckets_) ++counts[bucket];

        std::uint64_t before = 0;
        for (std::uint32_t bucket = 0; bucket < cut_; before += histogram_[bucket++]) {
            if (counts[bucket] < count) {
                count -= counts[bucket];
                continue;
            }
            at_cut_ = sorted(bucket);
            at_cut_.resize(count);
            cut_ = bucket;
            total_ = before;
            for (const TokenId id : at_cut_) total_ += weight_of(steps_(logits_[id]));
            return;
        }
    }

    void keep_share(double share) {
        const double wanted = share * static_cast<double>(total_);

        // Keep whole buckets from the likeliest on. From the bucket in which `share` is reached,
        // keep only as many tokens as are needed.
        std::uint64_t reached = 0;
        std::uint32_t bucket = 0;
        for (; bucket < cut_; reached += histogram_[bucket++])
            if (static_cast<double>(reached + histogram_[bucket]) >= wanted) break;

        std::vector<TokenId> ids = sorted(bucket);
        std::size_t kept = 0;
        while (kept < ids.size() && (kept + bucket == 0 || static_cast<double>(reached) < wanted))
            reached += weight_of(steps_(logits_[ids[kept++]]));

        ids.resize(kept);
        at_cut_ = std::move(ids);
        cut_ = bucket;
    }

    // Fills `high` with the upper 32 bits of the noise of `count` tokens from index `first` on, and
    // returns the least of them. The loop over a whole block has a constant length, so that the
    // compiler vectorises it.
    static std::uint32_t fill_noise(const DrawNoise& noise, std::size_t first, std::size_t count,
                                    std::span<const TokenId> ids,
                                    std::uint32_t (&high)[block_tokens]) {
        if (count == block_tokens && ids.empty()) {
            const auto id = static_cast<TokenId>(first);
            for (std::size_t i = 0; i < block_tokens; ++i)
                high[i] = noise.high(id + static_cast<TokenId>(i));
        } else {
            for (std::size_t i = 0; i < count; ++i)
                high[i] = noise.high(ids.empty() ? static_cast<TokenId>(first + i)
                                                 : ids[first + i]);
        }
        std::uint32_t least = high[0];
        for (std::size_t i = 1; i < count; ++i) least = std::min(least, high[i]);
        return least;
    }

    // Sets, for each kept bucket, a bound of the upper 32 bits of the noise: if the noise of a
    // token reaches the bound, the token's clock rings after that of `best`, even with the bucket's
    // largest weight. A clock of weight w has rung before the time r / w with the probability
    // 1 - exp(-r * w); the bound uses r * w, which is never smaller and costs no exponential.
    void set_limits(const Runner& best) {
        limits_rate_ = best.rate();
        const double unit = 0x1p-57 * limits_rate_ * std::log(2.0) * (1 + 1e-9);
        const auto limit_of = [&](std::uint32_t bucket) {
            return static_cast<std::uint64_t>(std::min(unit * bucket_weights[bucket], 1.0) *
                                              0x1p32) +
                   2;
        };
        for (std::uint32_t bucket = 0; bucket < cut_; ++bucket) limits_[bucket] = limit_of(bucket);
        cut_limit_ = limit_of(std::min(cut_, bucket_never - 1));
    }

    std::span<const float> logits_;
    // the lowest bucket of any token in each block of tokens
    std::span<std::uint16_t> block_bucket_;
    std::span<std::uint16_t> buckets_;  // bucket of each token; in memory that the thread reuses
    Steps steps_;
    Histogram histogram_{};
    std::uint64_t total_ = 0;  // total weight of the kept tokens, before the cut by share
    // Buckets below cut_ are kept whole; of bucket cut_ itself only the tokens in at_cut_ are kept.
    std::uint32_t cut_ = bucket_never;
    std::vector<TokenId> at_cut_;
    // Exclusive bound of the noise's upper 32 bits for each bucket; 0 from bucket cut_ on.
    // cut_limit_ is the bound for the tokens in at_cut_.
    std::array<std::uint64_t, bucket_never + 1> limits_{};
    std::uint64_t cut_limit_ = 0;
    double limits_rate_ = 0;  // rate() of the runner from which set_limits() computed the bounds
};
}  // namespace

std::uint64_t draw_weight(std::uint32_t steps) {
    return steps > draw_steps_max ? 0 : weight_of(steps);
}

TokenId likeliest_token(std::span<const float> logits) {
    // Use 16 independent maxima, so that no comparison waits for the one before it.
    constexpr std::size_t lanes = 16;
    float most[lanes];
    std::fill_n(most, lanes, -std::numeric_limits<float>::infinity());
    std::size_t i = 0;
    for (; i + lanes <= logits.size(); i += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane)
            most[lane] = logits[i + lane] > most[lane] ? logits[i + lane] : most[lane];
    for (; i < logits.size(); ++i) most[0] = std::max(most[0], logits[i]);

    const float largest = *std::max_element(most, most + lanes);
    const auto found = std::find(logits.begin(), logits.end(), largest);
    return found == logits.end() ? 0 : static_cast<TokenId>(found - logits.begin());
}

TokenId draw_token(std::span<const float> logits, const DrawOptions& options,
                   const DrawPlace& place, std::span<const TokenId> ids) {
    const TokenId likeliest = likeliest_token(logits);
    return Draw(logits, likeliest, options).take(likeliest, place, ids);
}

TokenId draw_token_plain(std::span<const float> logits, const DrawOptions& options,
                         const DrawPlace& place) {
    const TokenId likeliest = likeliest_token(logits);
    const Steps steps(logits[likeliest], options);

    std::vector<TokenId> kept;
    for (TokenId id = 0; id < logits.size(); ++id)
        if (steps(logits[id]) <= draw_steps_max) kept.push_back(id);
    std::stable_sort(kept.begin(), kept.end(),
                     [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
    if (options.top_k != 0 && options.top_k < kept.size()) kept.resize(options.top_k);

    const auto weight = [&](TokenId id) { return weight_of(steps(logits[id])); };
    std::uint64_t sum = 0;
    for (const TokenId id : kept) sum += weight(id);

    if (options.top_p < 1.0) {
        const double wanted = options.top_p * static_cast<double>(sum);
        std::size_t count = 0;
        sum = 0;
        while (count < kept.size() && (count == 0 || static_cast<double>(sum) < wanted))
            sum += weight(kept[count++]);
        kept.resize(count);
    }

    const DrawNoise noise(place);
    Runner best{.index = likeliest};
    for (const TokenId id : kept) {
        const Runner runner{
            .index = id, .time = exponential_time(noise.of(id)), .weight = weight(id)};
        if (runner.weight > 0 && (best.weight == 0 || runner.beats(best))) best = runner;
    }
    return best.index;
}

}  // namespace moex
