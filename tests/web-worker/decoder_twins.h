// Reference versions ("twins") of the decoder's kernels, in plain loops and doubles: one function
// for each formula.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "protocol/half.h"

namespace moex::test {

using Doubles = std::vector<double>;

// Adds `addends` [num_addends, size] to x in place, and returns RMSNorm(x) * weight.
inline Doubles add_norm(Doubles& x, std::span<const float> addends, std::span<const float> weight,
                        double epsilon) {
    for (std::size_t i = 0; i < addends.size(); ++i) x[i % x.size()] += double{addends[i]};
    double squares = 0;
    for (const double value : x) squares += value * value;
    Doubles y(x);
    for (std::size_t i = 0; i < y.size(); ++i)
        y[i] *= weight[i] / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
    return y;
}

// Returns the product of weights [num_out, x.size()] and x, plus the bias if there is one.
inline Doubles matvec(std::span<const float> weights, std::span<const float> x,
                      std::span<const float> bias) {
    Doubles y(weights.size() / x.size());
    for (std::size_t out = 0; out < y.size(); ++out) {
        for (std::size_t in = 0; in < x.size(); ++in)
            y[out] += double{weights[out * x.size() + in]} * double{x[in]};
        if (!bias.empty()) y[out] += double{bias[out]};
    }
    return y;
}

// Returns the vector of one attention head, normalised if `norm` has weights, and rotated by the
// angles of its position.
inline Doubles rope(std::span<const float> head, std::span<const float> norm, double epsilon,
                    std::uint32_t position, double theta) {
    Doubles out(head.begin(), head.end());
    if (!norm.empty()) out = add_norm(out, {}, norm, epsilon);
    const std::size_t half_size = out.size() / 2;
    for (std::size_t i = 0; i < half_size; ++i) {
        const double angle = position * std::pow(theta, -2.0 * static_cast<double>(i) /
                                                            static_cast<double>(out.size()));
        const double a = out[i], b = out[half_size + i];
        out[i] = a * std::cos(angle) - b * std::sin(angle);
        out[half_size + i] = b * std::cos(angle) + a * std::sin(angle);
    }
    return out;
}

// The vector of one attention head as u8 codes, and the values that the codes represent.
struct CodedHead {
    // Both rounded to f16: scale is a 255th of the range, zero the lowest value.
    double scale = 0, zero = 0;
    Doubles values;
};
inline CodedHead code_head(std::span<const double> head) {
    const auto [low, high] = std::minmax_element(head.begin(), head.end());
    CodedHead coded;
    coded.zero = half_to_float(float_to_half(static_cast<float>(*low)));
    const double range = std::max(0.0, *high - coded.zero);
    coded.scale = half_to_float(float_to_half(static_cast<float>(range / 255)));
    for (const double value : head) {
        const double steps = coded.scale > 0 ? (value - coded.zero) / coded.scale : 0;
        coded.values.push_back(coded.zero +
                               coded.scale * std::clamp(std::nearbyint(steps), 0.0, 255.0));
    }
    return coded;
}

// Returns softmax(q · kᵀ / sqrt(head_dim)) · v for one attention head; k and v are [num_tokens,
// head_dim].
inline Doubles attend(std::span<const float> q, std::span<const float> k,
                      std::span<const float> v) {
    const std::size_t head_dim = q.size(), num_tokens = k.size() / head_dim;
    Doubles weights(num_tokens);
    for (std::size_t token = 0; token < num_tokens; ++token)
        for (std::size_t d = 0; d < head_dim; ++d)
            weights[token] += double{q[d]} * double{k[token * head_dim + d]} /
                              std::sqrt(static_cast<double>(head_dim));
    const double peak = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - peak);
    Doubles out(head_dim);
    for (std::size_t token = 0; token < num_tokens; ++token)
        for (std::size_t d = 0; d < head_dim; ++d)
            out[d] += weights[token] / sum * double{v[token * head_dim + d]};
    return out;
}

// Returns the experts with the top_k largest logits as (expert, weight), sorted by expert. Of equal
// logits the lower id wins.
inline std::vector<std::pair<std::uint32_t, double>> route(std::span<const float> logits,
                                                           std::uint32_t top_k, bool normalised) {
    std::vector<std::uint32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return logits[a] > logits[b]; });
    double all = 0, chosen = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const double weight = std::exp(double{logits[order[i]]} - double{logits[order[0]]});
        all += weight;
        if (i < top_k) chosen += weight;
    }
    std::vector<std::pair<std::uint32_t, double>> out;
    for (std::uint32_t i = 0; i < top_k; ++i)
        out.emplace_back(order[i], std::exp(double{logits[order[i]]} - double{logits[order[0]]}) /
                                       (normalised ? chosen : all));
    std::sort(out.begin(), out.end());
    return out;
}

// Groups the pairs of `routes` (each an expert and a weight) into tiles. All pairs of a tile have
// the same expert; tiles are sorted by expert.
struct PairTile {
    std::uint32_t expert = 0;
    std::vector<std::uint32_t> pairs;
};
inline std::vector<PairTile> group_pairs(std::span<const std::uint32_t> routes,
                                         std::uint32_t num_experts, std::uint32_t tile_rows) {
    std::vector<PairTile> tiles;
    for (std::uint32_t expert = 0; expert < num_experts; ++expert) {
        bool open = false;
        for (std::uint32_t pair = 0; pair < routes.size() / 2; ++pair) {
            if (routes[2 * pair] != expert) continue;
            if (!open || tiles.back().pairs.size() == tile_rows) tiles.push_back({expert, {}});
            open = true;
            tiles.back().pairs.push_back(pair);
        }
    }
    return tiles;
}

// Returns the `kept` likeliest tokens. Of equal logits the lower token wins.
inline std::vector<std::uint32_t> likeliest(std::span<const float> logits, std::size_t kept) {
    std::vector<std::uint32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return logits[a] > logits[b]; });
    order.resize(std::min(kept, order.size()));
    return order;
}
inline double log_sum_exp(std::span<const float> logits) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    return std::log(sum);
}

// Returns the token with the largest logit; of equal logits the lower token.
inline std::uint32_t argmax(std::span<const float> logits) {
    return static_cast<std::uint32_t>(std::max_element(logits.begin(), logits.end()) -
                                      logits.begin());
}

// Returns the top_k experts by sigmoid(logit) + correction with their weights, experts ascending.
// Experts outside the `groups_kept` of `num_groups` groups with the largest sums of two scores are
// chosen by a score of 0. The weights are the sigmoids, scaled to the sum `scaling`.
inline std::vector<std::pair<std::uint32_t, double>> route_sigmoid(
    std::span<const float> logits, std::span<const float> correction, std::uint32_t top_k,
    std::uint32_t num_groups, std::uint32_t groups_kept, double scaling) {
    Doubles scores, choice;
    for (std::size_t e = 0; e < logits.size(); ++e) {
        scores.push_back(1 / (1 + std::exp(-double{logits[e]})));
        choice.push_back(scores[e] + double{correction[e]});
    }
    const auto best_first = [](const Doubles& by) {
        std::vector<std::uint32_t> order(by.size());
        std::iota(order.begin(), order.end(), 0u);
        std::stable_sort(order.begin(), order.end(),
                         [&](std::uint32_t a, std::uint32_t b) { return by[a] > by[b]; });
        return order;
    };
    const std::size_t group_size = logits.size() / num_groups;
    Doubles sums;
    for (std::uint32_t group = 0; group < num_groups; ++group) {
        Doubles sorted(choice.begin() + static_cast<std::ptrdiff_t>(group * group_size),
                       choice.begin() + static_cast<std::ptrdiff_t>((group + 1) * group_size));
        std::sort(sorted.rbegin(), sorted.rend());
        sums.push_back(sorted[0] + sorted[1]);
    }
    const auto groups = best_first(sums);
    for (std::uint32_t i = groups_kept; i < num_groups; ++i)
        for (std::size_t e = 0; e < group_size; ++e) choice[groups[i] * group_size + e] = 0;

    auto chosen = best_first(choice);
    chosen.resize(top_k);
    std::sort(chosen.begin(), chosen.end());
    double sum = 0;
    for (const std::uint32_t expert : chosen) sum += scores[expert];
    std::vector<std::pair<std::uint32_t, double>> routes;
    for (const std::uint32_t expert : chosen)
        routes.emplace_back(expert, scores[expert] / sum * scaling);
    return routes;
}

// Convolves `inputs` [num_rows, channels] over the latest positions of a text, and takes silu of
// the sums; `weights` are [channels, taps]. There is no input before the first row.
inline Doubles delta_conv(std::span<const float> inputs, std::span<const float> weights,
                          std::size_t channels) {
    const std::size_t taps = weights.size() / channels, num_rows = inputs.size() / channels;
    Doubles out(inputs.size());
    for (std::size_t row = 0; row < num_rows; ++row)
        for (std::size_t channel = 0; channel < channels; ++channel) {
            double sum = 0;
            for (std::size_t back = 0; back < std::min(taps, row + 1); ++back)
                sum += double{weights[channel * taps + taps - 1 - back]} *
                       double{inputs[(row - back) * channels + channel]};
            out[row * channels + channel] = sum / (1 + std::exp(-sum));
        }
    return out;
}

// One row of the gated delta rule for one value head. `s` is [key_dim, value_dim]. Returns the
// output; q and k are not normalised yet.
inline Doubles delta_rule(Doubles& s, std::span<const float> q, std::span<const float> k,
                          std::span<const float> v, double log_decay, double beta) {
    const auto length = [](std::span<const float> head) {
        double squares = 1e-6;
        for (const float one : head) squares += double{one} * double{one};
        return std::sqrt(squares);
    };
    const double of_q = length(q) * std::sqrt(static_cast<double>(q.size())), of_k = length(k);
    for (double& one : s) one *= std::exp(log_decay);
    Doubles out(v.size());
    for (std::size_t j = 0; j < v.size(); ++j) {
        double recalled = 0;
        for (std::size_t i = 0; i < k.size(); ++i) recalled += s[i * v.size() + j] * k[i] / of_k;
        for (std::size_t i = 0; i < k.size(); ++i) {
            s[i * v.size() + j] += k[i] / of_k * beta * (v[j] - recalled);
            out[j] += s[i * v.size() + j] * q[i] / of_q;
        }
    }
    return out;
}

// Normalises one head, and multiplies it by silu of its gate.
inline Doubles delta_gate(std::span<const float> head, std::span<const float> weight,
                          std::span<const float> z, double epsilon) {
    Doubles values(head.begin(), head.end());
    Doubles out = add_norm(values, {}, weight, epsilon);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] *= z[i] / (1 + std::exp(-double{z[i]}));
    return out;
}

}  // namespace moex::test
