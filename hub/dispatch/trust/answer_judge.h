// Computes rows of a worker's answer again and measures the difference. Pure: the weights come
// through ExpertCompute, and any thread may call it.
//
// An honest answer may differ for two reasons. First, the worker's arithmetic: f32 sums in another
// order and another exp() change the seventh digit. Integer codes are the same bits everywhere, and
// the judge computes them with integers too. Second, the wire, which rounds its values by a known
// step. Honest workers stay below a third of the tolerance.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hub/engine/expert_backend.h"
#include "protocol/messages.h"
#include "protocol/tensor_format.h"

namespace moex {

// One (expert, row) pair that is computed again.
struct CheckedPair {
    std::uint16_t expert = 0;
    std::uint32_t x_row = 0, y_row = 0;  // rows of the sample; several pairs sum to one row of y
    float gate = 0;                      // as sent over the wire
};

// Rows of one answer, with everything that is needed to judge them.
struct AnswerSample {
    std::uint64_t id = 0;
    std::uint32_t layer = 0, hidden_size = 0;
    Dtype dtype = Dtype::f16;  // dtype of x and y on the wire
    bool x_int8 = false;       // x was sent as int8, so `dtype` is that of y alone
    WorkerArithmetic arithmetic = WorkerArithmetic::exact;
    bool awaited = false;            // the answer waits for the verdict
    std::vector<CheckedPair> pairs;  // ascending by expert
    std::vector<float> x;            // [num_x_rows, hidden_size], before rounding for the wire
    std::vector<float> y;            // [num_y_rows, hidden_size], as received
};

enum class Verdict : std::uint8_t {
    honest,
    lie,
    undecided  // no verdict possible: no weights, or the judge failed
};

struct Judgement {
    Verdict verdict = Verdict::undecided;
    double residual = 0;  // error of the worst row as a share of the tolerance
    // [pairs]: rms(y) of the pair over gate * rms(x), as the judge computed it; see ExpertGains
    std::vector<float> gains;
};

// Tolerance for the answer's own arithmetic, relative to the norms of the pairs, between two
// implementations of the same arithmetic.
inline constexpr double arithmetic_tolerance = 1.5e-3;
// Tolerance between INT8 activations and exact ones, for an int8 answer where the judge has no
// integer weights. A small false term stays within this tolerance.
inline constexpr double int8_tolerance = 0.1;

// An upper bound on the error of rounding a row to `dtype`, with a factor of more than three: root
// mean square, absolute.
double wire_tolerance(Dtype dtype, std::span<const float> row);

// `compute` is exact, and rounds nothing that the sample's wire does not round.
Judgement judge_answer(const AnswerSample& sample, const ExpertCompute& compute);

// The same comparison for two answers [num_rows, hidden_size] to the same request: returns true if
// both can be honest.
bool answers_agree(std::span<const float> a, std::span<const float> b, std::uint32_t hidden_size,
                   Dtype dtype, double tolerance);

}  // namespace moex
