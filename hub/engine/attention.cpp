#include "hub/engine/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace moex {
namespace {

constexpr std::uint32_t queries_max = 32;  // most queries per task: 16 kB of q at a head_dim of 128
// With this many queries or more, a cached row is widened to f32 once for all queries. With fewer
// queries it is widened as it is read, once per four queries.
constexpr std::uint32_t widened_queries_min = 16;

// Buffers of one attention call. Each compute thread has and reuses one set of buffers.
struct Scratch {
    std::vector<float> q, weights, rows, part, merged;
};
Scratch& scratch() {
    thread_local Scratch mine;
    return mine;
}

// The result of one block of positions for all queries, where each query is a head of a row. `sums`
// are the sums of exp(score − max) · v, not yet divided by the sum of exp(score − max).
struct Part {
    std::span<float> sums;  // [num_queries, head_dim]
    // [num_queries]; a total of 0: the query sees no position of the block
    std::span<float> max, total;

    Part(std::span<float> floats, std::size_t num_queries)
        : sums(floats.first(floats.size() - 2 * num_queries)),
          max(floats.last(2 * num_queries).first(num_queries)),
          total(floats.last(num_queries)) {}
    std::span<float> sums_of(std::size_t query) const {
        const std::size_t head_dim = sums.size() / max.size();
        return sums.subspan(query * head_dim, head_dim);
    }
};

// Merges the result `next` of a later block into `into`, which then has the sums over the blocks of
// both.
void merge(const Part& into, const Part& next) {
    for (std::size_t query = 0; query < into.max.size(); ++query) {
        if (next.total[query] == 0) continue;
        // A row with a window may see nothing of the task's first blocks. Its result must be that
        // of a task that begins with a later block.
        if (into.total[query] == 0) {
            std::copy_n(next.sums_of(query).begin(), next.sums_of(query).size(),
                        into.sums_of(query).begin());
            into.max[query] = next.max[query];
            into.total[query] = next.total[query];
            continue;
        }
        const float max = std::max(into.max[query], next.max[query]),
                    factor = std::exp(into.max[query] - max),
                    next_factor = std::exp(next.max[query] - max);
        scale_by(into.sums_of(query), factor);
        add_scaled_to(into.sums_of(query), next.sums_of(query), next_factor);
        into.total[query] = into.total[query] * factor + next.total[query] * next_factor;
        into.max[query] = max;
    }
}

// Calls stretch(first, count) for each page's part of the positions [begin, end).
template <class Stretch>
void for_pages(std::uint32_t begin, std::uint32_t end, std::uint32_t page_tokens,
               const Stretch& stretch) {
    while (begin < end) {
        const std::uint32_t count = std::min(page_tokens - begin % page_tokens, end - begin);
        stretch(begin, count);
        begin += count;
    }
}

// Prefetches the cached rows from position `next` to the end of their page, or to `end`, while the
// rows before `next` are computed. Pages are not contiguous, so the hardware prefetcher does not
// predict the next page.
template <class RowsAt>
void fetch_next(const RowsAt& rows_at, std::uint32_t next, std::uint32_t end,
                std::uint32_t page_tokens) {
    if (next >= end) return;
    constexpr std::size_t line_bytes = 64;
    const KvRows rows = rows_at(next);
    const std::size_t bytes = std::min(page_tokens, end - next) * rows.stride_bytes;
    for (std::size_t at = 0; at < bytes; at += line_bytes) __builtin_prefetch(rows.data + at, 0, 2);
}

// Returns the cached rows as they are stored or, where many queries read them, widened to f32. The
// values are the same.
KvRows readable(const KvRows& rows, std::uint32_t count, std::uint32_t num_queries,
                std::uint32_t head_dim) {
    if (rows.dtype == KvDtype::f32 || num_queries < widened_queries_min) return rows;

    std::vector<float>& room = scratch().rows;
    room.resize(std::size_t{count} * head_dim);
    for (std::uint32_t i = 0; i < count; ++i)
        load_kv_head(std::span(room).subspan(std::size_t{i} * head_dim, head_dim), rows.dtype,
                     rows.data + i * rows.stride_bytes);
    return {KvDtype::f32, reinterpret_cast<const std::byte*>(room.data()),
            head_dim * sizeof(float)};
}

// Returns the factor that divides a query's sums by the sum of all exponentials, its head's sink
// included.
float share_of(const Part& part, std::size_t query, std::span<const float> sinks) {
    if (sinks.empty()) return 1.0f / part.total[query];
    const float sink = sinks[query % sinks.size()], max = std::max(part.max[query], sink),
                factor = std::exp(part.max[query] - max);
    return factor / (part.total[query] * factor + std::exp(sink - max));
}

void write_out(RowsOut out, const Part& part, const AttendTask& task, const AttentionShape& shape) {
    const std::size_t heads = shape.heads_per_kv();
    for (std::size_t query = 0; query < part.max.size(); ++query) {
        const std::span<float> sums = part.sums_of(query);
        scale_by(sums, share_of(part, query, task.sinks));
        std::copy(sums.begin(), sums.end(),
                  out.data + query / heads * out.stride + query % heads * shape.head_dim);
    }
}

// The block of the first position that a row of the task sees.
std::uint32_t first_block(const AttendTask& task) {
    return task.first_seen(task.first_position) / attend_block_tokens;
}

float scale_of(const AttendTask& task, const AttentionShape& shape) {
    return task.scale != 0 ? task.scale : 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

// The positions [first, stop) of a block [begin, end) that a row of the task sees.
struct Seen {
    std::uint32_t first = 0, stop = 0;
};
Seen seen_in(const AttendTask& task, std::uint32_t row, std::uint32_t begin, std::uint32_t end) {
    const std::uint32_t position = task.first_position + row;
    const Seen seen{std::max(begin, task.first_seen(position)), std::min(end, position + 1)};
    return seen.first < seen.stop ? seen : Seen{begin, begin};
}

}  // namespace

std::uint32_t attend_rows_max(const AttentionShape& shape) {
    return std::max(1u, queries_max / shape.heads_per_kv());
}

std::uint32_t attend_blocks(const AttendTask& task) {
    return (task.num_tokens() + attend_block_tokens - 1) / attend_block_tokens - first_block(task);
}

std::size_t attend_part_floats(std::uint32_t num_rows, const AttentionShape& shape) {
    return std::size_t{num_rows} * shape.heads_per_kv() * (shape.head_dim + 2);
}

void attend_block(std::span<float> floats, const AttendTask& task, std::uint32_t block,
                  const AttentionShape& shape) {
    const RowsIn& q = task.q;
    const KvCache::Sequence& kv = *task.kv;
    const std::uint32_t heads = shape.heads_per_kv(), num_queries = q.num_rows * heads,
                        block_begin = (first_block(task) + block) * attend_block_tokens,
                        begin = std::max(block_begin, task.first_seen(task.first_position)),
                        end = std::min(block_begin + attend_block_tokens, task.num_tokens());
    const std::size_t row_floats = std::size_t{heads} * shape.head_dim, num_tokens = end - begin;
    const Part part(floats, num_queries);

    Scratch& buffers = scratch();
    buffers.q.resize(q.num_rows * row_floats);
    buffers.weights.resize(num_queries * num_tokens);
    for (std::uint32_t r = 0; r < q.num_rows; ++r)
        std::copy_n(q.data + r * q.stride, row_floats, buffers.q.data() + r * row_floats);

    const auto k_rows_at = [&](std::uint32_t position) {
        return kv.k_rows(task.layer, task.kv_head, position);
    };
    const auto v_rows_at = [&](std::uint32_t position) {
        return kv.v_rows(task.layer, task.kv_head, position);
    };

    // The scores of positions that a row does not see are computed along with the others, but are
    // never read.
    const float scale = scale_of(task, shape);
    for_pages(begin, end, kv.page_tokens(), [&](std::uint32_t first, std::uint32_t count) {
        fetch_next(k_rows_at, first + count, end, kv.page_tokens());
        const KvRows k = readable(k_rows_at(first), count, num_queries, shape.head_dim);
        attention_scores({buffers.weights.data() + (first - begin), num_tokens},
                         {buffers.q.data(), shape.head_dim, num_queries}, k, count, shape.head_dim,
                         scale);
    });

    std::fill(part.sums.begin(), part.sums.end(), 0.0f);
    const auto seen_by = [&](std::uint32_t row) { return seen_in(task, row, begin, end); };
    for (std::uint32_t query = 0; query < num_queries; ++query) {
        const Seen seen = seen_by(query / heads);
        const auto weights = std::span(buffers.weights)
                                 .subspan(query * num_tokens + (seen.first - begin),
                                          seen.stop - seen.first);
        const ExpSum sum = weights.empty() ? ExpSum{} : exp_below_max(weights);
        part.max[query] = sum.max;
        part.total[query] = sum.sum;
    }

    for_pages(begin, end, kv.page_tokens(), [&](std::uint32_t first, std::uint32_t count) {
        fetch_next(v_rows_at, first + count, end, kv.page_tokens());
        const KvRows v = readable(v_rows_at(first), count, num_queries, shape.head_dim);
        // Adds the values of the positions [from, stop) to the results of some queries.
        const auto mix = [&](std::uint32_t query, std::uint32_t queries, std::uint32_t from,
                             std::uint32_t stop) {
            attention_mix(
                {part.sums_of(query).data(), shape.head_dim},
                {buffers.weights.data() + query * num_tokens + (from - begin), num_tokens, queries},
                {v.dtype, v.data + (from - first) * v.stride_bytes, v.stride_bytes}, stop - from,
                shape.head_dim);
        };

        const std::uint32_t stop = first + count;
        const bool all_see_all = stop <= task.first_position + 1 &&
                                 task.first_seen(task.num_tokens() - 1) <= first;
        if (all_see_all) return mix(0, num_queries, first, stop);
        for (std::uint32_t r = 0; r < q.num_rows; ++r) {
            const Seen seen = seen_by(r);
            const std::uint32_t from = std::max(first, seen.first), to = std::min(stop, seen.stop);
            if (from < to) mix(r * heads, heads, from, to);
        }
    });
}

void merge_parts(RowsOut out, std::span<float> parts, const AttendTask& task,
                 const AttentionShape& shape) {
    const std::size_t floats = attend_part_floats(task.q.num_rows, shape),
                      num_queries = std::size_t{task.q.num_rows} * shape.heads_per_kv();
    const Part merged(parts.first(floats), num_queries);
    for (std::size_t at = floats; at < parts.size(); at += floats)
        merge(merged, Part(parts.subspan(at, floats), num_queries));
    write_out(out, merged, task, shape);
}

void attend(RowsOut out, const AttendTask& task, const AttentionShape& shape) {
    const std::size_t floats = attend_part_floats(task.q.num_rows, shape),
                      num_queries = std::size_t{task.q.num_rows} * shape.heads_per_kv();
    Scratch& buffers = scratch();
    buffers.merged.resize(floats);
    buffers.part.resize(floats);

    attend_block(buffers.merged, task, 0, shape);
    const Part merged(buffers.merged, num_queries);
    for (std::uint32_t block = 1; block < attend_blocks(task); ++block) {
        attend_block(buffers.part, task, block, shape);
        merge(merged, Part(buffers.part, num_queries));
    }
    write_out(out, merged, task, shape);
}

}  // namespace moex
