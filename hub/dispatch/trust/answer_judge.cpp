#include "hub/dispatch/trust/answer_judge.h"

#include <algorithm>
#include <cmath>

namespace moex {
namespace {

double square_sum(std::span<const float> row) {
    double sum = 0;
    for (const float value : row) sum += static_cast<double>(value) * value;
    return sum;
}

double rms(std::span<const float> row) {
    return std::sqrt(square_sum(row) / static_cast<double>(std::max<std::size_t>(1, row.size())));
}

double rms_difference(std::span<const float> a, std::span<const float> b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double difference = static_cast<double>(a[i]) - b[i];
        sum += difference * difference;
    }
    return std::sqrt(sum / static_cast<double>(std::max<std::size_t>(1, a.size())));
}

// The judge's own result for a sample: the right rows, and the norms of the pairs that were summed
// into each row.
struct Recomputed {
    std::vector<float> want;  // [num_y_rows, hidden_size]
    // [num_y_rows]: sum of the squared norms of the pairs of each row
    std::vector<double> parts_square;
    double tolerance = arithmetic_tolerance;
};

// Computes all pairs of one expert together, so that the expert's weights are read once.
Status recompute(const AnswerSample& sample, const ExpertCompute& compute, Recomputed& out,
                 std::vector<float>& gains) {
    const std::size_t hidden = sample.hidden_size;
    std::vector<float> x = sample.x;
    round_rows(sample.x_int8 ? Dtype::int8 : sample.dtype, x, sample.hidden_size);

    std::vector<float> x_of, y_of, gates;
    for (std::size_t begin = 0, end = 0; begin < sample.pairs.size(); begin = end) {
        const std::uint16_t expert = sample.pairs[begin].expert;
        while (end < sample.pairs.size() && sample.pairs[end].expert == expert) ++end;
        const std::size_t count = end - begin;

        x_of.resize(count * hidden);
        y_of.resize(count * hidden);
        gates.resize(count);
        for (std::size_t i = 0; i < count; ++i) {
            gates[i] = sample.pairs[begin + i].gate;
            std::copy_n(x.data() + sample.pairs[begin + i].x_row * hidden, hidden,
                        x_of.data() + i * hidden);
        }
        Status computed = sample.arithmetic == WorkerArithmetic::int8
                              ? compute.compute_int8(sample.layer, expert, x_of, gates, y_of)
                              : compute.compute(sample.layer, expert, x_of, gates, y_of);
        if (!computed.ok() && sample.arithmetic == WorkerArithmetic::int8) {
            out.tolerance = int8_tolerance;
            computed = compute.compute(sample.layer, expert, x_of, gates, y_of);
        }
        MOEX_TRY(std::move(computed));

        for (std::size_t i = 0; i < count; ++i) {
            const CheckedPair& pair = sample.pairs[begin + i];
            const std::span<const float> part(y_of.data() + i * hidden, hidden);
            float* want = out.want.data() + pair.y_row * hidden;
            for (std::size_t c = 0; c < hidden; ++c) want[c] += part[c];

            const double norm = rms(part),
                         in = std::fabs(pair.gate) *
                              rms(std::span<const float>(x_of.data() + i * hidden, hidden));
            out.parts_square[pair.y_row] += norm * norm;
            gains.push_back(static_cast<float>(in > 0 ? norm / in : 0));
        }
    }
    return {};
}

}  // namespace

double wire_tolerance(Dtype dtype, std::span<const float> row) {
    // Root mean square of a rounding error that is uniform between half a step below and above,
    // relative to that half step.
    constexpr double of_half_step = 0.57735, times = 3.7, f16_smallest_half_step = 0x1p-25;
    switch (dtype) {
        case Dtype::f16:
            return times * of_half_step * (0x1p-11 * rms(row) + f16_smallest_half_step);
        case Dtype::bf16: return times * of_half_step * 0x1p-8 * rms(row);
        case Dtype::int8: {
            double largest = 0;
            for (const float value : row)
                largest = std::max(largest, std::fabs(static_cast<double>(value)));
            return times * of_half_step * largest / 254;
        }
        case Dtype::f32:
        case Dtype::int4: break;
    }
    return 0;
}

Judgement judge_answer(const AnswerSample& sample, const ExpertCompute& compute) {
    const std::size_t hidden = sample.hidden_size;
    Judgement judgement;
    Recomputed exact{.want = std::vector<float>(sample.y.size()),
                     .parts_square = std::vector<double>(sample.y.size() / hidden)};
    if (!recompute(sample, compute, exact, judgement.gains)) {
        judgement.gains.clear();
        return judgement;
    }

    judgement.verdict = Verdict::honest;
    for (std::size_t row = 0; row < exact.parts_square.size(); ++row) {
        const std::span<const float> want(exact.want.data() + row * hidden, hidden),
            got(sample.y.data() + row * hidden, hidden);
        const double error = rms_difference(got, want),
                     allowed = exact.tolerance * std::sqrt(exact.parts_square[row]) +
                               wire_tolerance(sample.dtype, want);

        // the comparison is also false for an error that is not a number: such an answer is not
        // honest
        if (!(error <= allowed)) judgement.verdict = Verdict::lie;
        if (error > 0)
            judgement.residual = std::max(judgement.residual, error / std::max(allowed, 1e-300));
    }
    return judgement;
}

bool answers_agree(std::span<const float> a, std::span<const float> b, std::uint32_t hidden_size,
                   Dtype dtype, double tolerance) {
    if (a.size() != b.size()) return false;
    for (std::size_t begin = 0; begin < a.size(); begin += hidden_size) {
        const auto row_a = a.subspan(begin, hidden_size), row_b = b.subspan(begin, hidden_size);
        const double allowed = tolerance * std::max(rms(row_a), rms(row_b)) +
                               wire_tolerance(dtype, row_a) + wire_tolerance(dtype, row_b);
        if (!(rms_difference(row_a, row_b) <= allowed)) return false;
    }
    return true;
}

}  // namespace moex
