#include "hub/model/pack/input_moments.h"

#include <algorithm>

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

}  // namespace

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
