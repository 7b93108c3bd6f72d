#include "hub/engine/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hub/engine/kernels.h"
#include "protocol/check.h"

namespace moex {
namespace {

// Rows since the border: a chunk, and the rows of a step that began in this chunk.
constexpr std::uint32_t rows_max = 2 * delta_chunk;
static_assert(delta_chunk - 1 + delta_append_max <= rows_max);

KvRows stored_rows(const float* first, std::size_t stride) {
    return {KvDtype::f32, reinterpret_cast<const std::byte*>(first), stride * sizeof(float)};
}

}  // namespace

// The part of a memory that belongs to one key head and its value heads.
class DeltaMemory::Head {
  public:
    Head(const DeltaShape& shape, std::span<float> floats, std::uint32_t key_head)
        : shape_(shape),
          key_head_(key_head),
          values_(shape.values_per_key()),
          key_stride_(std::size_t{shape.key_heads} * shape.key_dim),
          delta_stride_(std::size_t{shape.value_heads} * shape.value_dim),
          matrix_(std::size_t{shape.key_dim} * shape.value_dim) {
        float* at = floats.data();
        s_ = at + key_head * values_ * matrix_;
        at += shape.value_heads * matrix_;
        keys_ = at + std::size_t{key_head} * shape.key_dim;
        at += rows_max * key_stride_;
        deltas_ = at + std::size_t{key_head} * values_ * shape.value_dim;
        at += rows_max * delta_stride_;
        decays_ = at + std::size_t{key_head} * values_;
    }

    std::span<float> s() const { return {s_, values_ * matrix_}; }

    // Makes this the memory of an empty text.
    void clear() const { std::fill_n(s_, s().size(), 0.0f); }

    // Copies S and the first `num_rows` rows of another memory's head.
    void copy(const Head& from, std::uint32_t num_rows) const {
        std::copy_n(from.s_, from.s().size(), s_);
        for (std::uint32_t row = 0; row < num_rows; ++row) copy_row(from, row, row);
    }

    // Adds the first `count` rows of the chunk that begins at row `chunk` to `s`, [values_,
    // key_dim, value_dim].
    void fold(std::span<float> s, std::uint32_t chunk, std::uint32_t count = delta_chunk) const {
        static thread_local std::vector<float> weights;
        weights.resize(std::size_t{shape_.key_dim} * delta_chunk);
        for (std::uint32_t value = 0; value < values_; ++value) {
            float since = 0;  // sum of the log decays of the chunk's rows behind `row`
            for (std::uint32_t row = count; row-- > 0;) {
                const float factor = std::exp(since);
                const float* const k = key(chunk + row);
                for (std::uint32_t i = 0; i < shape_.key_dim; ++i)
                    weights[i * delta_chunk + row] = factor * k[i];
                since += decay(chunk + row, value);
            }
            const auto matrix = s.subspan(value * matrix_, matrix_);
            const float kept = std::exp(since);
            for (float& one : matrix) one *= kept;
            attention_mix({matrix.data(), shape_.value_dim},
                          {weights.data(), delta_chunk, shape_.key_dim},
                          stored_rows(delta(chunk, value), delta_stride_), count, shape_.value_dim);
        }
    }

    // Drops the first chunk, so that `num_rows` rows are left.
    void shift(std::uint32_t num_rows) const {
        for (std::uint32_t row = 0; row < num_rows; ++row) copy_row(*this, row + delta_chunk, row);
    }

    // Computes `count` rows of a step, from its row `first` on, and stores them from row `row` on.
    // `s` is S at the border before row `chunk`.
    void compute(std::span<const float> s, std::uint32_t chunk, std::uint32_t row,
                 const DeltaRows& rows, std::uint32_t first, std::uint32_t count) const {
        const std::uint32_t dim = shape_.key_dim, known = row - chunk + count;
        // the keys of the rows and then their queries, so that S is read once for both
        static thread_local std::vector<float> heads, dots, read;
        heads.resize(std::size_t{2} * count * dim);
        dots.resize(std::size_t{2} * count * delta_chunk);
        for (std::uint32_t i = 0; i < count; ++i) {
            const float* const k = head_at(rows.k, first + i, dim);
            std::copy_n(k, dim, key(row + i));
            std::copy_n(k, dim, &heads[i * dim]);
            std::copy_n(head_at(rows.q, first + i, dim), dim, &heads[(count + i) * dim]);
        }
        const RowsIn both{heads.data(), dim, 2 * count};
        attention_scores({dots.data(), delta_chunk}, both, stored_rows(key(chunk), key_stride_),
                         known, dim, 1.0f);

        for (std::uint32_t value = 0; value < values_; ++value) {
            read.assign(std::size_t{2} * count * shape_.value_dim, 0.0f);
            attention_mix({read.data(), shape_.value_dim}, both,
                          stored_rows(s.data() + value * matrix_, shape_.value_dim), dim,
                          shape_.value_dim);
            for (std::uint32_t i = 0; i < count; ++i)
                compute_row(chunk, row + i, value, rows, first + i,
                            {&read[i * shape_.value_dim], shape_.value_dim},
                            {&read[(count + i) * shape_.value_dim], shape_.value_dim},
                            &dots[i * delta_chunk], &dots[(count + i) * delta_chunk]);
        }
    }

  private:
    // Computes δ and the output of one row and value head. `by_key` and `by_query` are Sᵀ k and
    // Sᵀ q, and are overwritten; `key_dots` and `query_dots` are the products of k and q with the
    // keys of the chunk.
    void compute_row(std::uint32_t chunk, std::uint32_t row, std::uint32_t value,
                     const DeltaRows& rows, std::uint32_t from, std::span<float> by_key,
                     std::span<float> by_query, const float* key_dots,
                     const float* query_dots) const {
        const std::uint32_t head = key_head_ * values_ + value, dim = shape_.value_dim,
                            before = row - chunk;
        const float beta = rows.beta.data[from * rows.beta.stride + head];
        decay(row, value) = rows.log_decay.data[from * rows.log_decay.stride + head];
        // for each row of the chunk up to this one, the share of its δ that is left
        float left[delta_chunk], since = 0;
        for (std::uint32_t i = before + 1; i-- > 0;) {
            left[i] = std::exp(since);
            since += decay(chunk + i, value);
        }
        const float kept = std::exp(since);

        const KvRows deltas = stored_rows(delta(chunk, value), delta_stride_);
        float weights[delta_chunk];
        const RowsIn weight_row{weights, delta_chunk, 1};
        const float* const v = rows.v.data + from * rows.v.stride + std::size_t{head} * dim;
        for (std::uint32_t i = 0; i < dim; ++i) by_key[i] = v[i] - kept * by_key[i];
        for (std::uint32_t i = 0; i < before; ++i) weights[i] = -left[i] * key_dots[i];
        attention_mix({by_key.data(), dim}, weight_row, deltas, before, dim);
        float* const delta_now = delta(row, value);
        for (std::uint32_t i = 0; i < dim; ++i) delta_now[i] = beta * by_key[i];

        for (float& one : by_query) one *= kept;
        for (std::uint32_t i = 0; i <= before; ++i) weights[i] = left[i] * query_dots[i];
        attention_mix({by_query.data(), dim}, weight_row, deltas, before + 1, dim);
        std::copy(by_query.begin(), by_query.end(),
                  rows.out.data + from * rows.out.stride + std::size_t{head} * dim);
    }

    void copy_row(const Head& from, std::uint32_t from_row, std::uint32_t to_row) const {
        std::copy_n(from.key(from_row), shape_.key_dim, key(to_row));
        std::copy_n(from.delta(from_row, 0), std::size_t{values_} * shape_.value_dim,
                    delta(to_row, 0));
        std::copy_n(&from.decay(from_row, 0), values_, &decay(to_row, 0));
    }

    const float* head_at(const RowsIn& rows, std::uint32_t row, std::uint32_t dim) const {
        return rows.data + row * rows.stride + std::size_t{key_head_} * dim;
    }
    float* key(std::uint32_t row) const { return keys_ + row * key_stride_; }
    float* delta(std::uint32_t row, std::uint32_t value) const {
        return deltas_ + row * delta_stride_ + std::size_t{value} * shape_.value_dim;
    }
    float& decay(std::uint32_t row, std::uint32_t value) const {
        return decays_[std::size_t{row} * shape_.value_heads + value];
    }

    const DeltaShape& shape_;
    const std::uint32_t key_head_, values_;
    const std::size_t key_stride_, delta_stride_, matrix_;
    float *s_ = nullptr, *keys_ = nullptr, *deltas_ = nullptr, *decays_ = nullptr;
};

std::size_t DeltaMemory::num_matrix_floats(const DeltaShape& shape) {
    return std::size_t{shape.value_heads} * shape.value_dim * shape.key_dim;
}

std::size_t DeltaMemory::num_floats(const DeltaShape& shape) {
    const std::size_t value_heads = shape.value_heads, value_dim = shape.value_dim;
    return num_matrix_floats(shape) + rows_max * (std::size_t{shape.key_heads} * shape.key_dim +
                                                  value_heads * value_dim + value_heads);
}

DeltaMemory::DeltaMemory(const DeltaShape& shape, std::span<float> floats, std::uint32_t& border)
    : shape_(shape),
      floats_(floats),
      border_(&border) {
    MOEX_CHECK(floats.size() == num_floats(shape), "the floats of a memory of the delta rule");
}

std::vector<float> DeltaMemory::matrices_before(std::uint32_t position) const {
    MOEX_CHECK(position >= *border_ && position - *border_ <= rows_max,
               "a position of a memory of the delta rule");
    std::vector<float> all(
        floats_.begin(), floats_.begin() + static_cast<std::ptrdiff_t>(num_matrix_floats(shape_)));
    const std::size_t floats_of_head = all.size() / shape_.key_heads;
    for (std::uint32_t key_head = 0; key_head < shape_.key_heads; ++key_head) {
        const Head head(shape_, floats_, key_head);
        const auto s = std::span(all).subspan(key_head * floats_of_head, floats_of_head);
        for (std::uint32_t row = 0; row < position - *border_; row += delta_chunk)
            head.fold(s, row, std::min(delta_chunk, position - *border_ - row));
    }
    return all;
}

void DeltaMemory::append(const DeltaRows& rows, std::uint32_t key_head) {
    const Head head(shape_, floats_, key_head);
    const std::uint32_t border = rows.settled_position == 0 ? 0 : *border_;
    MOEX_CHECK(rows.settled_position >= border && rows.first_position >= rows.settled_position &&
                   rows.settled_position - border <= rows_max &&
                   rows.end_position() - rows.settled_position <= delta_append_max,
               "rows that follow a memory of the delta rule");
    if (rows.first_position == 0) head.clear();

    // Settled rows of complete chunks enter S.
    std::uint32_t row = rows.first_position - border;
    for (std::uint32_t settled = rows.settled_position - border; settled >= delta_chunk;
         settled -= delta_chunk, row -= delta_chunk) {
        head.fold(head.s(), 0);
        head.shift(row - delta_chunk);
    }

    // S at a border behind the settled position is temporary.
    static thread_local std::vector<float> temporary;
    std::span<const float> s = head.s();
    std::uint32_t chunk = 0;
    for (std::uint32_t done = 0; done < rows.q.num_rows;) {
        if (row >= chunk + delta_chunk) {
            temporary.assign(s.begin(), s.end());
            head.fold(temporary, chunk);
            s = temporary;
            chunk += delta_chunk;
        }
        const std::uint32_t count = std::min(rows.q.num_rows - done, chunk + delta_chunk - row);
        head.compute(s, chunk, row, rows, done, count);
        row += count;
        done += count;
    }
}

void DeltaMemory::finish_append(const DeltaRows& rows) {
    *border_ = rows.settled_position / delta_chunk * delta_chunk;
}

void DeltaMemory::extend(const DeltaMemory& from, const DeltaRows& rows, std::uint32_t key_head) {
    const Head head(shape_, floats_, key_head);
    const std::uint32_t border = rows.first_position == 0 ? 0 : *from.border_;
    MOEX_CHECK(rows.first_position >= border && rows.first_position - border <= rows_max,
               "rows that follow a memory of the delta rule");
    std::uint32_t row = rows.first_position - border;
    if (rows.first_position == 0)
        head.clear();
    else if (from.floats_.data() != floats_.data())
        head.copy(Head(from.shape_, from.floats_, key_head), row);

    for (std::uint32_t done = 0; done < rows.q.num_rows;) {
        for (; row >= delta_chunk; row -= delta_chunk) {
            head.fold(head.s(), 0);
            head.shift(row - delta_chunk);
        }
        const std::uint32_t count = std::min(rows.q.num_rows - done, delta_chunk - row);
        head.compute(head.s(), 0, row, rows, done, count);
        row += count;
        done += count;
    }
}

void DeltaMemory::finish_extend(const DeltaRows& rows) {
    // The last chunk stays apart from S, even if it is complete.
    *border_ = (rows.end_position() - 1) / delta_chunk * delta_chunk;
}

}  // namespace moex
