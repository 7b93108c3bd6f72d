// Grouped-query attention over a sequence's own cached keys and values.
// A row's result depends on its query and its sequence alone. Source: Ainslie et al., "GQA", 2023.
#pragma once

#include <cstdint>
#include <span>

#include "hub/engine/kernels.h"
#include "hub/engine/kv_cache.h"

namespace moex {

struct AttentionShape {
    std::uint32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;

    std::uint32_t heads_per_kv() const { return num_heads / num_kv_heads; }
};

// Neighbouring rows of one sequence, q.num_rows of them, for the query heads that share `kv_head`:
// row r stands at first_position + r and sees positions 0 ... first_position + r; a row of q and
// out is [heads_per_kv, head_dim]. The rows' own keys and values are in the cache. Rows walk the
// cache together, so that a key is loaded once for all; the bits are those of a row alone.
void attend(RowsOut out, RowsIn q, const KvCache::Sequence& kv, std::uint32_t layer,
            std::uint32_t kv_head, std::uint32_t first_position, const AttentionShape& shape);

// How many neighbouring rows attend() should be given: what the first cache holds of queries.
std::uint32_t attend_rows_max(const AttentionShape& shape);

}  // namespace moex
