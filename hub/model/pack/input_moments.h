// Second moments of the inputs of a matrix, measured on a calibration text: the sum of x·xᵀ over
// the rows that reach the matrix. They say how much an error of the weights costs: a row w of the
// matrix that becomes v changes its output by (w − v)·x, whose mean square is (w − v)ᵀ H (w − v).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moex {

class InputMoments {
  public:
    explicit InputMoments(std::uint32_t size);

    // Adds rows [factors.size(), size], each multiplied by its factor (the gate weight of the row).
    // The result depends on the order of the rows and on the sizes of the calls, not on the
    // machine.
    void add(std::span<const float> rows, std::span<const float> factors);

    std::uint32_t size() const { return size_; }
    // Returns the number of rows of equal weight that estimate the moments as well as these rows
    // with their factors: (Σ f²)² / Σ f⁴.
    double effective_rows() const {
        return fourth_powers_ > 0 ? squares_ * squares_ / fourth_powers_ : 0;
    }
    // [size, size], lower triangle: products()[i * size + j] for j <= i
    const std::vector<float>& products() const { return products_; }

  private:
    std::uint32_t size_;
    double squares_ = 0, fourth_powers_ = 0;  // sums over the factors
    std::vector<float> products_;
};

// out[r][i] = sum over j of rows[r][j] · moments[j][i]. `out` and `rows` are [any, size], `moments`
// is [size, size]. Each sum is in f32 and begins at j = 0, so that it is the same on every machine
// and does not depend on the other rows.
void multiply_by_moments(std::span<float> out, std::span<const float> rows,
                         std::span<const float> moments, std::size_t size);

}  // namespace moex
