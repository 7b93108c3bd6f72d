#include "hub/engine/kernels/integer_row_trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "hub/base/clock.h"

namespace moex {
namespace {

// shape of the trial's matrix: about 200 kB in int6
constexpr std::uint32_t num_in = 1024, num_out = 256;
constexpr std::uint32_t rows_tried[] = {2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32};
// measurements per product; only the fastest counts, since other programs may disturb some
constexpr int repeats = 3;

}  // namespace

std::uint32_t rows_where_faster(std::span<const RowTrial> trials) {
    std::uint32_t rows = rows_never;
    for (std::size_t i = trials.size(); i-- > 0 && trials[i].many <= trials[i].few;)
        rows = trials[i].rows;
    return rows;
}

std::uint32_t rows_where_faster(IntegerProduct few, IntegerProduct many, std::uint32_t rows_min,
                                PackedDtype dtype, std::uint32_t group_size) {
    PackedMatrix weights{nullptr, dtype, num_out, num_in, group_size};
    const AlignedBuffer memory(weights.size_bytes());
    // Fill the matrix with a byte that gives ordinary codes and scales in every dtype.
    std::memset(memory.data(), 0x22, weights.size_bytes());
    weights.data = memory.data();

    const std::uint32_t most = *std::rbegin(rows_tried);
    std::vector<float> x(num_in), out(std::size_t{most} * num_out);
    for (std::uint32_t i = 0; i < num_in; ++i) x[i] = std::sin(static_cast<float>(i));
    QuantizedBuffer codes;
    codes.resize(most, num_in, group_size);
    for (std::uint32_t r = 0; r < most; ++r) codes.quantize_row(r, x);

    const auto time_of = [&](IntegerProduct product, std::uint32_t rows) {
        const TimePoint began = now_steady();
        product({out.data(), num_out}, weights, codes.rows().rows(0, rows), 0,
                weights.num_panels());
        return static_cast<double>((now_steady() - began).count());
    };
    std::vector<RowTrial> trials;
    for (const std::uint32_t rows : rows_tried) {
        if (rows < rows_min) continue;
        RowTrial trial{rows, time_of(few, rows), time_of(many, rows)};
        for (int repeat = 0; repeat < repeats; ++repeat) {
            trial.few = std::min(trial.few, time_of(few, rows));
            trial.many = std::min(trial.many, time_of(many, rows));
        }
        trials.push_back(trial);
    }
    return rows_where_faster(trials);
}

}  // namespace moex
