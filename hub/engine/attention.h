// Grouped-query attention over the cached keys and values of a sequence. The result of a row
// depends on its query and its sequence alone. Source: Ainslie et al., "GQA", 2023.
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

// One attention task: q.num_rows neighbouring rows of a sequence, for the query heads that share
// `kv_head`. Row r is at position first_position + r. It sees the positions up to its own: all of
// them, or the last `window`. A row of q is [heads_per_kv, head_dim]. The rows' own keys and values
// are in the cache.
struct AttendTask {
    RowsIn q;
    const KvCache::Sequence* kv = nullptr;
    std::uint32_t layer = 0, kv_head = 0, first_position = 0;
    std::uint32_t window = 0;  // 0: all positions
    float scale = 0;           // factor of q · k; 0: 1 / sqrt(head_dim)
    // [heads_per_kv]: a further logit of each head in its softmax; its probability is dropped;
    // empty: none
    std::span<const float> sinks = {};

    std::uint32_t num_tokens() const { return first_position + q.num_rows; }
    // The first position that a row at `position` sees.
    std::uint32_t first_seen(std::uint32_t position) const {
        return window == 0 || position < window ? 0 : position + 1 - window;
    }
    // The number of positions that the task reads.
    std::uint32_t num_seen() const { return num_tokens() - first_seen(first_position); }
};

// The cache is read in blocks of positions, from the block of the first position that a row of the
// task sees. Each block gives sums relative to the block's own
// maximum score, and the sums are merged from the first block to the last, whichever thread
// computed them. So a row's result has the same bits whichever rows share its task and however many
// threads share its blocks.
// Source: Dao et al., "FlashAttention", 2022 (the online softmax), and Dao et al., "Flash-Decoding
// for long-context inference", 2023 (the split).
inline constexpr std::uint32_t attend_block_tokens = 512;
// Returns the number of blocks that the task reads; `block` below counts from the first of them.
std::uint32_t attend_blocks(const AttendTask& task);

// Computes the attention of a task and writes out [q.num_rows, heads_per_kv, head_dim]. Each key is
// loaded once for all rows of the task. A row has the same bits as in a task without the other
// rows.
void attend(RowsOut out, const AttendTask& task, const AttentionShape& shape);

// Computes the same as attend() in two steps: attend_block() for each block, then merge_parts(). A
// part has attend_part_floats() floats: the sums of one block for all rows.
std::size_t attend_part_floats(std::uint32_t num_rows, const AttentionShape& shape);
void attend_block(std::span<float> part, const AttendTask& task, std::uint32_t block,
                  const AttentionShape& shape);
// `parts` holds the parts of all blocks, in ascending order of blocks; it is overwritten.
void merge_parts(RowsOut out, std::span<float> parts, const AttendTask& task,
                 const AttentionShape& shape);

// Returns how many neighbouring rows a task should have, so that their queries fit into the L1
// cache.
std::uint32_t attend_rows_max(const AttentionShape& shape);

}  // namespace moex
