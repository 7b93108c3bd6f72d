// Computes rows of a worker's answer again and says how far it is from what they must be.
// Pure: the weights come through ExpertCompute, and any thread may ask.
//
// What an honest answer may be off by has two parts. The worker's arithmetic: f32 sums in another
// order and another exp() move the seventh digit; integers are the same bits everywhere, and are
// judged by integers. And the wire, which rounds what it carries by a known step. Honest workers
// stay below a third of what is tolerated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hub/engine/expert_backend.h"
#include "protocol/messages.h"
#include "protocol/tensor_format.h"

namespace moex {

// One (expert, row) of what is computed again.
struct CheckedPair {
    std::uint16_t expert = 0;
    std::uint32_t x_row = 0, y_row = 0;  // of the sample; several pairs make one row of a sum
    float gate = 0;                      // as it went over the wire
};

// Rows of one answer, with all that is needed to judge them.
struct AnswerSample {
    std::uint64_t id = 0;
    std::uint32_t layer = 0, hidden_size = 0;
    Dtype dtype = Dtype::f16;  // of x and y on the wire
    bool x_int8 = false;       // of y alone: x was int8
    WorkerArithmetic arithmetic = WorkerArithmetic::exact;
    bool awaited = false;            // the answer does not count before it is judged
    std::vector<CheckedPair> pairs;  // ascending by expert
    std::vector<float> x;            // [num_x_rows, hidden_size], before the wire rounded it
    std::vector<float> y;            // [num_y_rows, hidden_size], as it came
};

enum class Verdict : std::uint8_t {
    honest,
    lie,
    undecided  // nobody could say: no weights, or an error of the judge's own
};

struct Judgement {
    Verdict verdict = Verdict::undecided;
    double residual = 0;  // the worst row's error as a share of what was tolerated
    // [pairs] rms(y) of the pair over gate * rms(x), as the judge computed it: see ExpertGains
    std::vector<float> gains;
};

// Of the answer's own arithmetic, relative to the pairs' norms, between two that compute alike.
inline constexpr double arithmetic_tolerance = 1.5e-3;
// Between INT8 activations and exact ones: of an int8 answer where the judge has no integers. A
// small lie fits into it.
inline constexpr double int8_tolerance = 0.1;

// What rounding to `dtype` may do to a row, more than three times: root mean square, absolute.
double wire_tolerance(Dtype dtype, std::span<const float> row);

// `compute` is exact and rounds nothing that the sample's wire does not.
Judgement judge_answer(const AnswerSample& sample, const ExpertCompute& compute);

// The same comparison for two answers to the same question, [num_rows, hidden_size] each: whether
// both can be honest.
bool answers_agree(std::span<const float> a, std::span<const float> b, std::uint32_t hidden_size,
                   Dtype dtype, double tolerance);

}  // namespace moex
