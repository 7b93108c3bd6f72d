#include "hub/model/pack/calibrated_quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "hub/model/pack/quantize.h"
#include "protocol/check.h"
#include "protocol/tensor_format.h"
#include "protocol/wide_loops.h"

namespace moex {
namespace {

using GroupScale = CalibratedGroupScale;

constexpr float scale_max = 65504.0f;
// rows that are quantised together, so that a row of moments is loaded once for all of them
constexpr std::size_t rows_together = 8;

// Returns scale and zero as f16 stores them, with the limits of quantize_int4_row().
GroupScale stored_scale(float scale, float zero) {
    return {half_to_float(float_to_half(std::clamp(scale, int4_scale_min, scale_max))),
            half_to_float(float_to_half(std::clamp(zero, -16.0f, 31.0f)))};
}

float code_of(float weight, const GroupScale& sz) {
    return std::clamp(std::floor(weight / sz.scale + (sz.zero + 0.5f)), 0.0f, 15.0f);
}

float value_of(float code, const GroupScale& sz) { return sz.scale * (code - sz.zero); }

MOEX_WIDE_LOOPS void add_scaled(float* out, const float* in, float factor, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] += factor * in[i];
}

// Sums of a fixed order: eight sums side by side, added at the end.
MOEX_WIDE_LOOPS double dot(const double* a, const double* b, std::size_t count) {
    double sums[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (std::size_t k = 0; k < 8; ++k) sums[k] += a[i + k] * b[i + k];
    for (; i < count; ++i) sums[i % 8] += a[i] * b[i];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

double dot(const float* a, const float* b, std::size_t count) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += double{a[i]} * double{b[i]};
    return sum;
}

}  // namespace

void CalibratedError::add(const CalibratedError& other) {
    squares += other.squares;
    rounding += other.rounding;
    calibrated += other.calibrated;
    output_squares += other.output_squares;
    output_rounding += other.output_rounding;
    output_calibrated += other.output_calibrated;
}

// Some rows on their way to codes. [num_rows, size] is the shape of each vector, groups apart.
struct CalibratedQuantizer::RowBlock {
    std::size_t num_rows = 0, size = 0, group_size = 0;
    std::vector<float> weights, codes;
    std::vector<float> error;        // weights − their quantised values
    std::vector<float> gradient;     // moments · error
    std::vector<GroupScale> scales;  // [num_rows, size / group_size]

    void begin(std::size_t rows, std::size_t row_size, std::size_t group) {
        num_rows = rows, size = row_size, group_size = group;
        for (std::vector<float>* all : {&weights, &codes, &error, &gradient})
            all->assign(rows * row_size, 0.0f);
        scales.assign(rows * row_size / group, {});
    }
    GroupScale& scale_of(std::size_t row, std::size_t input) {
        return scales[(row * size + input) / group_size];
    }
};

CalibratedQuantizer::CalibratedQuantizer(const InputMoments& moments,
                                         const CalibratedOptions& options)
    : options_(options),
      size_(moments.size()),
      moments_(moments.products()) {
    for (std::size_t i = 0; i < size_; ++i)
        for (std::size_t j = 0; j < i; ++j) moments_[j * size_ + i] = moments_[i * size_ + j];
    shrink(moments.effective_rows());
    factor();
}

// Shrinks the moments towards the unit matrix times their mean diagonal.
void CalibratedQuantizer::shrink(double effective_rows) {
    double trace = 0;
    for (std::size_t i = 0; i < size_; ++i) trace += moments_[i * size_ + i];
    MOEX_CHECK(trace > 0, "moments of rows that are all zero");
    const double squares = dot(moments_.data(), moments_.data(), moments_.size()),
                 n = effective_rows, p = size_, above = (1 - 2 / p) * squares + trace * trace,
                 below = (n + 1 - 2 / p) * (squares - trace * trace / p),
                 share = std::clamp(below > 0 ? above / below : 1.0, options_.shrinkage_min, 1.0);

    for (float& value : moments_) value *= static_cast<float>(1 - share);
    for (std::size_t i = 0; i < size_; ++i)
        moments_[i * size_ + i] += static_cast<float>(share * trace / p);
}

// Cholesky factor of the moments. The inputs are in ascending order of their moments, since the
// last input is rounded first.
void CalibratedQuantizer::factor() {
    order_.resize(size_);
    std::iota(order_.begin(), order_.end(), 0u);
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
        return moments_[a * size_ + a] < moments_[b * size_ + b];
    });

    std::vector<double> lower(std::size_t{size_} * size_);
    for (std::size_t j = 0; j < size_; ++j) {
        double* const row = lower.data() + j * size_;
        for (std::size_t i = 0; i <= j; ++i) {
            const double* const above = lower.data() + i * size_;
            const double rest = double{moments_[order_[j] * std::size_t{size_} + order_[i]]} -
                                dot(row, above, i);
            row[i] = i < j ? rest / above[i] : std::sqrt(std::max(rest, 1e-30));
        }
    }

    passed_on_.assign(std::size_t{size_} * size_, 0.0f);
    rounding_weight_.resize(size_);
    for (std::size_t j = 0; j < size_; ++j) {
        const double diagonal = lower[j * size_ + j];
        rounding_weight_[order_[j]] = static_cast<float>(diagonal * diagonal);
        for (std::size_t i = 0; i < j; ++i)
            passed_on_[j * size_ + i] = static_cast<float>(lower[j * size_ + i] /
                                                           lower[i * size_ + i]);
    }
}

// Chooses for each group the range, at most the weights' own, with the least error of rounding.
void CalibratedQuantizer::search_scales(RowBlock& block) const {
    constexpr int ranges = 24;
    for (std::size_t at = 0; at < block.weights.size(); at += block.group_size) {
        const float* const weights = block.weights.data() + at;
        const float* const importance = rounding_weight_.data() + at % size_;
        float low = 0, high = 0;
        for (std::size_t i = 0; i < block.group_size; ++i) {
            low = std::min(low, weights[i]);
            high = std::max(high, weights[i]);
        }
        if (high == low) continue;

        double least = 0;
        for (int range = 0; range < ranges; ++range) {
            const float share = 1.0f - 0.02f * static_cast<float>(range);
            const float scale = share * (high - low) / 15.0f;
            const GroupScale tried = stored_scale(scale, -share * low / scale);
            double error = 0;
            for (std::size_t i = 0; i < block.group_size; ++i) {
                const float off = weights[i] - value_of(code_of(weights[i], tried), tried);
                error += importance[i] * off * off;
            }
            if (range > 0 && error >= least) continue;
            least = error;
            block.scales[at / block.group_size] = tried;
        }
    }
}

// Rounds the inputs of all rows one after the other, and passes each error on.
void CalibratedQuantizer::round_in_order(RowBlock& block) const {
    std::vector<float> passed(block.num_rows * size_);  // in the order of order_
    for (std::size_t j = size_; j-- > 0;) {
        const std::size_t input = order_[j];
        for (std::size_t row = 0; row < block.num_rows; ++row) {
            const std::size_t at = row * size_ + input;
            const GroupScale& sz = block.scale_of(row, input);
            block.codes[at] = code_of(block.weights[at] + passed[row * size_ + j], sz);
            block.error[at] = block.weights[at] - value_of(block.codes[at], sz);
            add_scaled(passed.data() + row * size_, passed_on_.data() + j * size_, block.error[at],
                       j);
        }
    }
}

void CalibratedQuantizer::find_gradient(RowBlock& block) const {
    multiply_by_moments(block.gradient, block.error, moments_, size_);
}

// Moves each code to the best one while all others are fixed.
void CalibratedQuantizer::improve_codes(RowBlock& block) const {
    for (std::size_t n = size_; n-- > 0;) {
        const std::size_t input = order_[n];
        const float* const moments = moments_.data() + input * size_;
        for (std::size_t row = 0; row < block.num_rows; ++row) {
            const std::size_t at = row * size_ + input;
            const GroupScale& sz = block.scale_of(row, input);
            const float now = value_of(block.codes[at], sz),
                        best = now + block.gradient[at] / moments[input], code = code_of(best, sz);
            if (code == block.codes[at]) continue;

            const float change = value_of(code, sz) - now;
            block.codes[at] = code;
            block.error[at] -= change;
            add_scaled(block.gradient.data() + row * size_, moments, -change, size_);
        }
    }
}

// Moves scale and zero of each group to the best ones while all else is fixed. A quantised value is
// scale · code − offset, so that the row's error is a quadratic function of both.
void CalibratedQuantizer::improve_scales(RowBlock& block) const {
    const std::size_t group = block.group_size;
    std::vector<float> products(group), ones(group), change(group);
    for (std::size_t first = 0; first < size_; first += group) {
        double ones_ones = 0;
        for (std::size_t i = 0; i < group; ++i) {
            const float* const moments = moments_.data() + (first + i) * size_ + first;
            ones[i] = static_cast<float>(std::accumulate(moments, moments + group, 0.0));
            ones_ones += ones[i];
        }

        for (std::size_t row = 0; row < block.num_rows; ++row) {
            const float* const codes = block.codes.data() + row * size_ + first;
            float* const gradient = block.gradient.data() + row * size_;
            std::fill(products.begin(), products.end(), 0.0f);
            for (std::size_t i = 0; i < group; ++i)
                add_scaled(products.data(), moments_.data() + (first + i) * size_ + first, codes[i],
                           group);

            const double codes_codes = dot(codes, products.data(), group),
                         codes_ones = dot(codes, ones.data(), group),
                         by_scale = dot(codes, gradient + first, group),
                         by_offset = std::accumulate(gradient + first, gradient + first + group,
                                                     0.0),
                         determinant = codes_codes * ones_ones - codes_ones * codes_ones;
            if (!(determinant > 1e-6 * codes_codes * ones_ones)) continue;

            GroupScale& sz = block.scale_of(row, first);
            const double scale_change = (by_scale * ones_ones - by_offset * codes_ones) /
                                        determinant,
                         offset_change = (by_scale * codes_ones - by_offset * codes_codes) /
                                         determinant;
            const double scale = sz.scale + scale_change,
                         offset = double{sz.scale} * sz.zero + offset_change;
            if (!(scale > 0)) continue;
            const GroupScale better = stored_scale(static_cast<float>(scale),
                                                   static_cast<float>(offset / scale));

            // Take the stored values, which are rounded, only if they lower the error, too.
            const double moved = double{better.scale} - sz.scale,
                         shifted = double{better.scale} * better.zero - double{sz.scale} * sz.zero;
            if (moved * moved * codes_codes - 2 * moved * shifted * codes_ones +
                    shifted * shifted * ones_ones >=
                2 * (moved * by_scale - shifted * by_offset))
                continue;

            for (std::size_t i = 0; i < group; ++i)
                change[i] = value_of(codes[i], better) - value_of(codes[i], sz);
            sz = better;
            for (std::size_t i = 0; i < group; ++i) {
                block.error[row * size_ + first + i] -= change[i];
                add_scaled(gradient, moments_.data() + (first + i) * size_, -change[i], size_);
            }
        }
    }
}

bool CalibratedQuantizer::quantize(std::span<const float> weights, std::uint32_t group_size,
                                   std::uint32_t* codes, std::uint32_t* scale_zero,
                                   CalibratedError& error) const {
    const std::size_t num_rows = weights.size() / size_, groups = size_ / group_size;
    RowBlock block;
    std::vector<float> rounded(size_);
    for (std::size_t first = 0; first < num_rows; first += rows_together) {
        const std::size_t rows = std::min(rows_together, num_rows - first);
        block.begin(rows, size_, group_size);
        std::copy_n(weights.data() + first * size_, rows * size_, block.weights.data());

        // Measure plain rounding, with the codes as scratch memory.
        for (std::size_t row = 0; row < rows; ++row) {
            const float* const own = weights.data() + (first + row) * size_;
            std::uint32_t* const row_codes = codes + (first + row) * (size_ / 8);
            std::uint32_t* const row_scales = scale_zero + (first + row) * groups;
            if (!quantize_int4_row({own, size_}, group_size, row_codes, row_scales)) return false;
            dequantize_int4_row(row_codes, row_scales, size_, group_size, rounded.data());
            for (std::size_t i = 0; i < size_; ++i) {
                const double off = double{own[i]} - rounded[i];
                error.squares += double{own[i]} * own[i];
                error.rounding += off * off;
                block.error[row * size_ + i] = block.weights[row * size_ + i] - rounded[i];
            }
        }
        find_gradient(block);
        error.output_rounding += dot(block.error.data(), block.gradient.data(), rows * size_);
        block.error = block.weights;
        find_gradient(block);
        error.output_squares += dot(block.error.data(), block.gradient.data(), rows * size_);

        search_scales(block);
        round_in_order(block);
        find_gradient(block);
        for (std::uint32_t n = 0; n < options_.refinements; ++n) {
            improve_scales(block);
            improve_codes(block);
        }
        find_gradient(block);
        error.output_calibrated += dot(block.error.data(), block.gradient.data(), rows * size_);

        for (std::size_t row = 0; row < rows; ++row) {
            for (std::size_t g = 0; g < groups; ++g) {
                const GroupScale& sz = block.scales[row * groups + g];
                scale_zero[(first + row) * groups + g] = pack_scale_zero(float_to_half(sz.scale),
                                                                         float_to_half(sz.zero));
            }
            for (std::size_t i = 0; i < size_; ++i) {
                std::uint32_t& word = codes[(first + row) * (size_ / 8) + i / 8];
                if (i % 8 == 0) word = 0;
                word |= static_cast<std::uint32_t>(block.codes[row * size_ + i]) << (4 * (i % 8));
                const double off = double{weights[(first + row) * size_ + i]} -
                                   value_of(block.codes[row * size_ + i],
                                            block.scales[row * groups + i / group_size]);
                error.calibrated += off * off;
            }
        }
    }
    return true;
}

}  // namespace moex
