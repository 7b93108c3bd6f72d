#include "hub/dispatch/round/round_sum.h"

#include <algorithm>

#include "hub/dispatch/round/row_math.h"
#include "protocol/check.h"

namespace moex {

std::uint32_t RoundSum::keep(std::vector<float> y) {
    kept_.answers.push_back(std::move(y));
    return static_cast<std::uint32_t>(kept_.answers.size() - 1);
}

void RoundSum::write(std::span<float> y) const {
    MOEX_CHECK(y.size() >= num_values(), text("room for ", y.size(), " values of ", num_values()));
    MOEX_CHECK(factors_.empty() || factors_.size() == rows_.size(), "some rows have no factor");
    std::fill_n(y.begin(), num_values(), 0.0f);
    for (const Part& part : parts_) {
        const float* value = kept_.answers[part.answer].data() +
                             std::size_t{part.first_row} * hidden_size_;
        for (std::uint32_t i = part.rows_begin; i < part.rows_end; ++i, value += hidden_size_) {
            float* const sum = y.data() + std::size_t{rows_[i]} * hidden_size_;
            if (factors_.empty())
                add_row(sum, value, hidden_size_);
            else
                add_scaled_row(sum, value, factors_[i], hidden_size_);
        }
    }
}

std::vector<float> RoundSum::values() const {
    std::vector<float> y(num_values());
    write(y);
    return y;
}

}  // namespace moex
