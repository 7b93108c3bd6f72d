#include "hub/engine/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace moex {
namespace {

constexpr std::uint32_t queries_max = 32;  // 16 kB of q at a head_dim of 128

// Buffers of one call; a compute thread keeps its own.
struct Scratch {
    std::vector<float> q, weights, out;
};

}  // namespace

std::uint32_t attend_rows_max(const AttentionShape& shape) {
    return std::max(1u, queries_max / shape.heads_per_kv());
}

void attend(RowsOut out, RowsIn q, const KvCache::Sequence& kv, std::uint32_t layer,
            std::uint32_t kv_head, std::uint32_t first_position, const AttentionShape& shape) {
    const std::uint32_t heads = shape.heads_per_kv(), num_queries = q.num_rows * heads,
                        num_tokens = first_position + q.num_rows, page_tokens = kv.page_tokens();
    const std::size_t stride = std::size_t{shape.num_kv_heads} * shape.head_dim,
                      kv_offset = std::size_t{kv_head} * shape.head_dim,
                      row_floats = std::size_t{heads} * shape.head_dim;

    thread_local Scratch scratch;
    scratch.q.resize(q.num_rows * row_floats);
    scratch.out.assign(q.num_rows * row_floats, 0.0f);
    scratch.weights.resize(std::size_t{num_queries} * num_tokens);
    for (std::uint32_t r = 0; r < q.num_rows; ++r)
        std::copy_n(q.data + r * q.stride, row_floats, scratch.q.data() + r * row_floats);

    // A row's scores of tokens behind it are computed with the others' and never looked at.
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    for (std::uint32_t first = 0; first < num_tokens; first += page_tokens)
        attention_scores({scratch.weights.data() + first, num_tokens},
                         {scratch.q.data(), shape.head_dim, num_queries},
                         kv.k(layer, first).data() + kv_offset, stride,
                         std::min(page_tokens, num_tokens - first), shape.head_dim, scale);
    for (std::uint32_t query = 0; query < num_queries; ++query)
        softmax(std::span(scratch.weights)
                    .subspan(std::size_t{query} * num_tokens, first_position + query / heads + 1));

    for (std::uint32_t first = 0; first < num_tokens; first += page_tokens) {
        const float* v = kv.v(layer, first).data() + kv_offset;
        const std::uint32_t count = std::min(page_tokens, num_tokens - first);
        const auto mix = [&](std::uint32_t query, std::uint32_t queries, std::uint32_t tokens) {
            attention_mix(
                {scratch.out.data() + std::size_t{query} * shape.head_dim, shape.head_dim},
                {scratch.weights.data() + std::size_t{query} * num_tokens + first, num_tokens,
                 queries},
                v, stride, tokens, shape.head_dim);
        };

        if (first + count <= first_position + 1) {
            mix(0, num_queries, count);
            continue;
        }
        // On the diagonal a row ends where it stands.
        for (std::uint32_t r = 0; r < q.num_rows; ++r)
            if (first_position + r >= first)
                mix(r * heads, heads, std::min(count, first_position + r + 1 - first));
    }

    for (std::uint32_t r = 0; r < q.num_rows; ++r)
        std::copy_n(scratch.out.data() + r * row_floats, row_floats, out.data + r * out.stride);
}

}  // namespace moex
