// How far the answer of a span differs from what the hub computed for the same rows. Pure.
//   a hub in int8 beside a worker in f32: about 0.02 in most rows, and far more in the few rows in
//   which the two choose another expert (bench/results/span_residuals.*)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/bytes.h"

namespace moex {

// The rows of a check: x is [num_rows, hidden_size], kv is f16, each layer [num_rows, what the
// layer keeps of a row]. All are borrowed.
struct SpanRows {
    std::span<const float> x;
    ByteView kv;
};

struct SpanShape {
    std::size_t hidden_size = 0, num_rows = 0;
    // For each layer the sizes of the parts that it keeps of a row: a key and a value; or q, k, v,
    // b and a of a gated delta rule.
    std::vector<std::vector<std::size_t>> row_parts;
};

// Root mean squares of differences, each as a share of a size.
struct SpanResidual {
    double x = 0;  // of the worst row, as a share of the change that the span makes to it
    // of the keys, of the values and of the inputs of gated delta rules of the worst layer, over
    // all rows, as a share of their size
    double k = 0, v = 0, delta = 0;
    double largest() const { return std::max({x, k, v, delta}); }
};

// `x_before` are the rows at the entrance of the span.
SpanResidual span_residual(const SpanShape& shape, std::span<const float> x_before,
                           const SpanRows& hub, const SpanRows& worker);

}  // namespace moex
