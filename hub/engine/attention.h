// Grouped-query attention of single rows over their own sequence's cached keys and values.
// A row's result depends on its query and its sequence alone. Source: Ainslie et al., "GQA", 2023.
#pragma once

#include <cstdint>
#include <span>

#include "hub/engine/kv_cache.h"

namespace moex {

struct AttentionShape {
    std::uint32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
};

// The query heads that share `kv_head`: q and out [num_heads /
// num_kv_heads, head_dim]. The row sees positions 0 ... `position`.
void attend(std::span<float> out, std::span<const float> q, const KvCache::Sequence& kv,
            std::uint32_t layer, std::uint32_t kv_head, std::uint32_t position,
            const AttentionShape& shape);

}  // namespace moex
