// Computes rows of a worker's answer again and measures the difference. The functions are pure:
// ExpertCompute provides the weights, and any thread may call them.
//
// An honest answer may differ for two reasons. First, the worker's arithmetic: f32 sums in another
// order and another exp() change the seventh digit. Integer codes are the same bits everywhere, and
// the judge computes them with integers too. Second, the wire format, which rounds values by a
// known step. Honest workers stay below a third of the tolerance.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hub/engine/expert_backend.h"
#include "protocol/messages.h"
#include "protocol/tensor_format.h"

namespace moex {

// One (expert, row) pair of an answer that the judge computes again.
struct CheckedPair {
    std::uint16_t expert = 0;
    // numbers of rows in the sample; several pairs sum to one row of y
    std::uint32_t x_row = 0, y_row = 0;
    float gate = 0;  // gate as it was sent over the wire
};

// Some rows of one answer, with everything that the judge needs to compute them again.
struct AnswerSample {
    std::uint64_t id = 0;
    std::uint32_t layer = 0, hidden_size = 0;
    Dtype dtype = Dtype::f16;  // dtype of x and y on the wire
    bool x_int8 = false;       // x was sent as int8, and `dtype` is the dtype of y alone
    WorkerArithmetic arithmetic = WorkerArithmetic::exact;
    bool awaited = false;            // the round waits with this answer until the verdict
    std::vector<CheckedPair> pairs;  // ascending by expert
    std::vector<float> x;  // [num_x_rows, hidden_size], values before rounding for the wire
    std::vector<float> y;  // [num_y_rows, hidden_size], values as received
};

enum class Verdict : std::uint8_t {
    honest,
    lie,
    undecided  // no verdict possible: no weights, or the judge failed
};

struct Judgement {
    Verdict verdict = Verdict::undecided;
    double residual = 0;  // error of the row with the largest error, as a share of its tolerance
    // [number of pairs]: for each pair, rms(y) divided by gate * rms(x), as the judge computed
    // them; see ExpertGains
    std::vector<float> gains;
};

// Largest difference between two implementations of the same arithmetic, relative to the norms of
// the pairs.
inline constexpr double arithmetic_tolerance = 1.5e-3;
// Largest difference between INT8 activations and exact ones, relative to the norms of the pairs.
// It is used for an int8 answer if the judge has no integer weights. A small false term stays
// within this tolerance.
inline constexpr double int8_tolerance = 0.1;

// Returns an upper bound on the error (root mean square, absolute) of rounding a row to `dtype`.
// The bound is more than three times the usual error.
double wire_tolerance(Dtype dtype, std::span<const float> row);

// Computes the sample again and compares. `compute` must be exact, and must round nothing that the
// sample's wire format does not round.
Judgement judge_answer(const AnswerSample& sample, const ExpertCompute& compute);

// Compares two answers [num_rows, hidden_size] to the same request. Returns true if both workers
// can be honest.
bool answers_agree(std::span<const float> a, std::span<const float> b, std::uint32_t hidden_size,
                   Dtype dtype, double tolerance);

}  // namespace moex
