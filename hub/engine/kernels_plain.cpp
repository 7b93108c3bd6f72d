#include "hub/engine/kernels_plain.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "protocol/half.h"
#include "protocol/tensor_format.h"

namespace moex::plain {

void matmul(RowsOut out, const WeightMatrix& weights, RowsIn x) {
    for (std::uint32_t r = 0; r < x.num_rows; ++r)
        for (std::uint32_t n = 0; n < weights.num_out; ++n) {
            double sum = 0;
            for (std::uint32_t k = 0; k < weights.num_in; ++k) {
                const std::size_t at = std::size_t{n} * weights.num_in + k;
                const float weight = weights.dtype == WeightDtype::bf16
                                         ? bfloat16_to_float(
                                               static_cast<const bfloat16*>(weights.data)[at])
                                         : static_cast<const float*>(weights.data)[at];
                sum += double{weight} * x.data[r * x.stride + k];
            }
            out.data[r * out.stride + n] = static_cast<float>(sum);
        }
}

void matmul_int4(RowsOut out, const Int4Matrix& weights, RowsIn x) {
    std::vector<float> row(weights.num_in);
    for (std::uint32_t n = 0; n < weights.num_out; ++n) {
        const std::uint32_t* const codes = weights.codes + std::size_t{n} * weights.num_in / 8;
        const std::size_t first_group = std::size_t{n} * weights.num_in / weights.group_size;
        if (weights.mxfp4_scales != nullptr)
            dequantize_mxfp4_row(codes, weights.mxfp4_scales + first_group, weights.num_in,
                                 row.data());
        else
            dequantize_int4_row(codes, weights.scale_zero + first_group, weights.num_in,
                                weights.group_size, row.data());
        for (std::uint32_t r = 0; r < x.num_rows; ++r) {
            double sum = 0;
            for (std::uint32_t k = 0; k < weights.num_in; ++k)
                sum += double{row[k]} * x.data[r * x.stride + k];
            out.data[r * out.stride + n] = static_cast<float>(sum);
        }
    }
}

void rms_norm(std::span<float> out, std::span<const float> x, std::span<const float> weight,
              float eps) {
    double squares = 0;
    for (const float v : x) squares += double{v} * v;
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
    for (std::size_t i = 0; i < x.size(); ++i)
        out[i] = static_cast<float>(x[i] * factor * weight[i]);
}

void silu_mul(std::span<float> out, std::span<const float> gate, std::span<const float> up) {
    for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<float>(gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i]);
}

float log_sum_exp(std::span<const float> x) {
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float v : x) sum += std::exp(v - most);
    return static_cast<float>(most + std::log(sum));
}

void softmax(std::span<float> x) {
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float v : x) sum += std::exp(v - most);
    for (float& v : x) v = static_cast<float>(std::exp(v - most) / sum);
}

void attention(std::span<float> out, std::span<const float> q, const float* k, const float* v,
               std::size_t stride, std::uint32_t num_tokens, float scale, const float* sink) {
    std::vector<float> weights(num_tokens);
    for (std::uint32_t t = 0; t < num_tokens; ++t) {
        double dot = 0;
        for (std::size_t i = 0; i < q.size(); ++i) dot += double{q[i]} * k[t * stride + i];
        weights[t] = static_cast<float>(scale * dot);
    }
    if (sink != nullptr) weights.push_back(*sink);
    softmax(weights);
    for (std::size_t i = 0; i < q.size(); ++i) {
        double sum = 0;
        for (std::uint32_t t = 0; t < num_tokens; ++t)
            sum += double{weights[t]} * v[t * stride + i];
        out[i] = static_cast<float>(sum);
    }
}

namespace {

// Returns the expert with the largest value of `by` that is not in `taken`, the lowest of equals.
std::size_t best_of(std::span<const double> by, std::span<const std::size_t> taken) {
    std::size_t best = by.size();
    for (std::size_t i = 0; i < by.size(); ++i) {
        const bool is_taken = std::find(taken.begin(), taken.end(), i) != taken.end();
        if (!is_taken && (best == by.size() || by[i] > by[best])) best = i;
    }
    return best;
}

// Sets the scores of all experts outside the best groups to 0. The value of a group is the sum of
// its two best scores.
void keep_groups(std::vector<double>& scores, const RouterPlan& plan) {
    const std::size_t size = scores.size() / plan.num_groups;
    std::vector<double> values;
    for (std::size_t group = 0; group < plan.num_groups; ++group) {
        std::vector<double> sorted(
            scores.begin() + static_cast<std::ptrdiff_t>(group * size),
            scores.begin() + static_cast<std::ptrdiff_t>((group + 1) * size));
        std::sort(sorted.rbegin(), sorted.rend());
        values.push_back(sorted[0] + (size > 1 ? sorted[1] : 0));
    }
    std::vector<std::size_t> kept;
    while (kept.size() < plan.groups_kept) kept.push_back(best_of(values, kept));
    for (std::size_t i = 0; i < scores.size(); ++i)
        if (std::find(kept.begin(), kept.end(), i / size) == kept.end()) scores[i] = 0;
}

}  // namespace

void route(std::span<const float> router_logits, const RouterOptions& options,
           std::span<std::uint16_t> expert_ids, std::span<float> expert_weights) {
    const RouterPlan& plan = options.plan;
    std::vector<double> scores(router_logits.begin(), router_logits.end()), weights = scores;
    if (plan.score == RouterScore::sigmoid) {
        for (double& score : scores) score = 1 / (1 + std::exp(-score));
        weights = scores;
        for (std::size_t i = 0; i < options.correction_bias.size(); ++i)
            scores[i] += options.correction_bias[i];
        if (plan.num_groups > 1) keep_groups(scores, plan);
    }

    std::vector<std::size_t> chosen;
    while (chosen.size() < options.top_k) chosen.push_back(best_of(scores, chosen));
    double all = 0, sum = 0;
    if (plan.score != RouterScore::sigmoid) {
        for (std::size_t i = 0; i < weights.size(); ++i) {
            weights[i] = std::exp(weights[i]);
            const bool is_chosen = std::find(chosen.begin(), chosen.end(), i) != chosen.end();
            if (plan.score == RouterScore::softmax || is_chosen) all += weights[i];
        }
        for (double& weight : weights) weight /= all;
    }
    for (const std::size_t expert : chosen) sum += weights[expert];
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        const double weight = weights[chosen[i]] / (plan.is_normalised ? sum : 1);
        expert_ids[i] = static_cast<std::uint16_t>(chosen[i]);
        expert_weights[i] = static_cast<float>(weight * plan.scaling);
    }
}

}  // namespace moex::plain
