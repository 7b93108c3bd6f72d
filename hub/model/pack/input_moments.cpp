#include "hub/model/pack/input_moments.h"

#include <algorithm>
#include <cstring>

#include "protocol/check.h"
#include "protocol/wide_loops.h"

namespace moex {
namespace {

// Number of rows that are added together, so that a sum is loaded and stored once for all of them.
constexpr std::size_t summed_rows = 8;

// sums[i][j] += sum over the rows r of x[r][i] · x[r][j], for j <= i.
MOEX_WIDE_LOOPS void add_products(float* sums, std::size_t size, const float* x) {
    for (std::size_t i = 0; i < size; ++i) {
        float c[summed_rows];
        for (std::size_t r = 0; r < summed_rows; ++r) c[r] = x[r * size + i];

        float* const sum = sums + i * size;
        for (std::size_t j = 0; j <= i; ++j)
            sum[j] += ((c[0] * x[j] + c[1] * x[size + j]) +
                       (c[2] * x[2 * size + j] + c[3] * x[3 * size + j])) +
                      ((c[4] * x[4 * size + j] + c[5] * x[5 * size + j]) +
                       (c[6] * x[6 * size + j] + c[7] * x[7 * size + j]));
    }
}

// A tile of outputs, [tile_rows, tile_size], stays in registers while the inputs are summed.
constexpr std::size_t tile_rows = 8, tile_size = 16;
using Floats = float __attribute__((vector_size(tile_size * sizeof(float))));

// Adds up one tile; `rows` and `moments` begin at the tile's first row and column.
MOEX_WIDE_LOOPS void multiply_tile(float* out, const float* rows, const float* moments,
                                   std::size_t size) {
    Floats sums[tile_rows] = {};
    for (std::size_t j = 0; j < size; ++j) {
        Floats column;
        std::memcpy(&column, moments + j * size, sizeof column);
        for (std::size_t r = 0; r < tile_rows; ++r) sums[r] += rows[r * size + j] * column;
    }
    for (std::size_t r = 0; r < tile_rows; ++r)
        std::memcpy(out + r * size, &sums[r], sizeof sums[r]);
}

}  // namespace

void multiply_by_moments(std::span<float> out, std::span<const float> rows,
                         std::span<const float> moments, std::size_t size) {
    const std::size_t num_rows = rows.size() / size, full_rows = num_rows - num_rows % tile_rows,
                      full_size = size - size % tile_size;
    for (std::size_t r = 0; r < full_rows; r += tile_rows)
        for (std::size_t i = 0; i < full_size; i += tile_size)
            multiply_tile(out.data() + r * size + i, rows.data() + r * size, moments.data() + i,
                          size);
    for (std::size_t r = 0; r < num_rows; ++r)
        for (std::size_t i = r < full_rows ? full_size : 0; i < size; ++i) {
            float sum = 0;
            for (std::size_t j = 0; j < size; ++j)
                sum += rows[r * size + j] * moments[j * size + i];
            out[r * size + i] = sum;
        }
}

InputMoments::InputMoments(std::uint32_t size) : size_(size), products_(std::size_t{size} * size) {}

void InputMoments::add(std::span<const float> rows, std::span<const float> factors) {
    const std::size_t num_rows = factors.size();
    MOEX_CHECK(rows.size() == num_rows * size_,
               text(num_rows, " rows of ", size_, ", got ", rows.size(), " values"));

    std::vector<float> scaled(summed_rows * size_);
    for (std::size_t first = 0; first < num_rows; first += summed_rows) {
        std::fill(scaled.begin(), scaled.end(), 0.0f);
        for (std::size_t r = 0; r < std::min(summed_rows, num_rows - first); ++r)
            for (std::size_t i = 0; i < size_; ++i)
                scaled[r * size_ + i] = factors[first + r] * rows[(first + r) * size_ + i];
        add_products(products_.data(), size_, scaled.data());
    }

    for (const float factor : factors) {
        const double square = double{factor} * factor;
        squares_ += square;
        fourth_powers_ += square * square;
    }
}

}  // namespace moex
