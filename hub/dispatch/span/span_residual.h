// How far the answer of a span differs from what the hub computed for the same rows, and whether
// honest arithmetic can differ like that. Pure.
//   a hub in int8 beside a worker in f32: about 0.02 in most rows, and far more in the few rows in
//   which the two choose another expert (bench/results/span_residuals.*)
//
// Where a router is near a tie, rounding decides which expert it chooses. With trained weights such
// experts do nearly the same. With random weights they have nothing in common: the row behind the
// span may then differ by 1.9 of its change, and later keys by 1.7 of their size. A bound on the
// size of a difference can therefore not tell such a row from a lie. But another choice of experts
// leaves other traces than most lies, and route_traces() looks for these:
//   - It changes nothing before it. The first layer of a span computes its keys, values and inputs
//     of a recurrence before its router.
//   - It exchanges summands. Neither signs nor the scale of a vector change alone.
//   - It adds a vector of the usual size.
//   - It changes a layer's input, hence all of its parts, and the row behind the span.
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

// What the differences beyond a tolerance look like. In brackets is the worst of honest answers,
// with random weights beside an int8 hub (bench/results/span_routes.*).
struct RouteTraces {
    bool is_before_router = false;  // a difference is in the parts of the first layer [false]
    // The least share of a difference that a factor and other signs leave: near 0 for zeros,
    // changed signs, another scale, and rows that were not computed [0.35]
    double rest = 1;
    double size = 0;  // largest difference, as a share of the size [1.9]
    // Largest difference of a part, as a multiple of those of the layer's other parts and of the
    // rows behind the span [1.7]; and that of parts of few values, which may all be near zero [24]
    double alone = 0, few_alone = 0;

    // Returns true if no other choice of experts explains the differences. A row alone that was
    // replaced by another one of the same size is not wrong in this sense.
    bool is_wrong() const;
};

RouteTraces route_traces(const SpanShape& shape, std::span<const float> x_before,
                         const SpanRows& hub, const SpanRows& worker, double tolerance);

}  // namespace moex
