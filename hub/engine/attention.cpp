#include "hub/engine/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hub/engine/kernels.h"

namespace moex {

void attend(std::span<float> out, std::span<const float> q, const KvCache::Sequence& kv,
            std::uint32_t layer, std::uint32_t kv_head, std::uint32_t position,
            const AttentionShape& shape) {
    const std::uint32_t heads = shape.num_heads / shape.num_kv_heads, num_tokens = position + 1;
    const std::size_t stride = std::size_t{shape.num_kv_heads} * shape.head_dim,
                      kv_offset = std::size_t{kv_head} * shape.head_dim;
    const std::uint32_t page_tokens = kv.page_tokens();
    thread_local std::vector<float> weights;
    weights.resize(std::size_t{heads} * num_tokens);

    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    for (std::uint32_t first = 0; first < num_tokens; first += page_tokens)
        attention_scores({weights.data() + first, num_tokens}, {q.data(), shape.head_dim, heads},
                         kv.k(layer, first).data() + kv_offset, stride,
                         std::min(page_tokens, num_tokens - first), shape.head_dim, scale);
    for (std::uint32_t head = 0; head < heads; ++head)
        softmax(std::span(weights).subspan(std::size_t{head} * num_tokens, num_tokens));
    std::fill(out.begin(), out.end(), 0.0f);
    for (std::uint32_t first = 0; first < num_tokens; first += page_tokens)
        attention_mix({out.data(), shape.head_dim}, {weights.data() + first, num_tokens, heads},
                      kv.v(layer, first).data() + kv_offset, stride,
                      std::min(page_tokens, num_tokens - first), shape.head_dim);
}

}  // namespace moex
