// Slow reference versions of the functions in kernels.h, as simple loops, which compute in double
// where possible. The tests compare the fast versions with them.
#pragma once

#include "hub/engine/kernels.h"
#include "hub/engine/router.h"

namespace moex::plain {

void matmul(RowsOut out, const WeightMatrix& weights, RowsIn x);
// This version reads the rows x directly, without int4_prepare().
void matmul_int4(RowsOut out, const Int4Matrix& weights, RowsIn x);
void rms_norm(std::span<float> out, std::span<const float> x, std::span<const float> weight,
              float eps);
void silu_mul(std::span<float> out, std::span<const float> gate, std::span<const float> up);
void softmax(std::span<float> x);
float log_sum_exp(std::span<const float> x);
// Computes the attention of one query head over keys and values. The rows of position t are stored
// at k + t · stride and v + t · stride: out = sum over t of softmax(scale · q · k[t]) · v[t]. A
// sink is a further logit of the softmax, which has no value; null: none.
void attention(std::span<float> out, std::span<const float> q, const float* k, const float* v,
               std::size_t stride, std::uint32_t num_tokens, float scale,
               const float* sink = nullptr);
// Chooses experts as route() does.
void route(std::span<const float> router_logits, const RouterOptions& options,
           std::span<std::uint16_t> expert_ids, std::span<float> expert_weights);

}  // namespace moex::plain
