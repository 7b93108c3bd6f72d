#include "hub/dispatch/span/span_residual.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "protocol/half.h"
#include "protocol/half_rows.h"

namespace moex {
namespace {

double share(double difference_squared, double size_squared) {
    return std::sqrt(difference_squared / std::max(size_squared, 1e-12));
}

double residual_of_row(std::span<const float> before, std::span<const float> hub,
                       std::span<const float> worker) {
    double difference = 0, change = 0;
    for (std::size_t i = 0; i < hub.size(); ++i) {
        difference += (double{hub[i]} - worker[i]) * (double{hub[i]} - worker[i]);
        change += (double{hub[i]} - before[i]) * (double{hub[i]} - before[i]);
    }
    return share(difference, change);
}

// Bounds of RouteTraces::is_wrong().
constexpr double rest_min = 0.25, size_max = 3, alone_max = 4, few_alone_max = 64;
// The effective number of values from which on a vector has a direction and a size to compare:
// (sum of squares)^2 / sum of fourth powers.
constexpr double many_values = 8;

// Sums over the values of a vector h of the hub and a vector w of the worker.
class PairSums {
  public:
    void add(double h, double w) {
        hh_ += h * h;
        ww_ += w * w;
        hw_ += std::fabs(h * w);
        dd_ += (h - w) * (h - w);
        h4_ += h * h * h * h;
    }
    double difference() const { return share(dd_, hh_); }
    bool has_many_values() const { return hh_ * hh_ >= many_values * h4_; }
    // Returns the share of the difference that is left where the signs of w are those of h, and its
    // scale is that with which least is left.
    double rest() const {
        return share(std::max(0.0, ww_ - hw_ * hw_ / std::max(hh_, 1e-12)), dd_);
    }

  private:
    double hh_ = 0, ww_ = 0, hw_ = 0, dd_ = 0, h4_ = 0;
};

// Looks at the rows behind the span. Returns the largest difference of a row.
double trace_rows(const SpanShape& shape, std::span<const float> before, std::span<const float> hub,
                  std::span<const float> worker, double tolerance, RouteTraces& traces) {
    double worst = 0;
    for (std::size_t row = 0; row < shape.num_rows; ++row) {
        PairSums rows, changes;
        for (std::size_t i = row * shape.hidden_size; i < (row + 1) * shape.hidden_size; ++i) {
            rows.add(hub[i], worker[i]);
            changes.add(double{hub[i]} - before[i], double{worker[i]} - before[i]);
        }
        const double difference = changes.difference();
        worst = std::max(worst, difference);
        if (difference <= tolerance) continue;
        traces.size = std::max(traces.size, difference);
        for (const PairSums& sums : {rows, changes})
            if (sums.has_many_values()) traces.rest = std::min(traces.rest, sums.rest());
    }
    return worst;
}

// Returns the sums over each part of what a layer keeps of the rows.
std::vector<PairSums> sums_of_layer(std::span<const std::size_t> parts, std::size_t num_rows,
                                    ByteView hub, ByteView worker) {
    std::vector<PairSums> sums(parts.size());
    std::vector<float> mine, theirs;
    std::size_t at = 0;
    for (std::size_t row = 0; row < num_rows; ++row)
        for (std::size_t part = 0; part < parts.size(); at += parts[part++] * sizeof(half)) {
            mine.resize(parts[part]);
            theirs.resize(parts[part]);
            floats_of_halves(hub.data() + at, parts[part], mine.data());
            floats_of_halves(worker.data() + at, parts[part], theirs.data());
            for (std::size_t i = 0; i < parts[part]; ++i) sums[part].add(mine[i], theirs[i]);
        }
    return sums;
}

// Looks at what a layer keeps of the rows. `rows_differ` is the largest difference of a row behind
// the span.
void trace_parts(std::span<const PairSums> parts, bool is_first_layer, double rows_differ,
                 double tolerance, RouteTraces& traces) {
    for (const PairSums& part : parts) {
        const double difference = part.difference();
        if (difference <= tolerance) continue;
        if (is_first_layer) traces.is_before_router = true;

        double elsewhere = std::max(rows_differ, 1e-12);
        for (const PairSums& other : parts)
            if (&other != &part) elsewhere = std::max(elsewhere, other.difference());
        const bool has_many = part.has_many_values();
        double& alone = has_many ? traces.alone : traces.few_alone;
        alone = std::max(alone, difference / elsewhere);
        if (!has_many) continue;
        traces.size = std::max(traces.size, difference);
        traces.rest = std::min(traces.rest, part.rest());
    }
}

}  // namespace

SpanResidual span_residual(const SpanShape& shape, std::span<const float> x_before,
                           const SpanRows& hub, const SpanRows& worker) {
    SpanResidual residual;
    for (std::size_t row = 0; row < shape.num_rows; ++row) {
        const auto of = [&](std::span<const float> rows) {
            return rows.subspan(row * shape.hidden_size, shape.hidden_size);
        };
        residual.x = std::max(residual.x, residual_of_row(of(x_before), of(hub.x), of(worker.x)));
    }

    std::vector<float> mine, theirs;
    std::size_t layer_at = 0;
    for (const std::vector<std::size_t>& parts : shape.row_parts) {
        const std::size_t row_values = std::accumulate(parts.begin(), parts.end(), std::size_t{0}),
                          row_bytes = row_values * sizeof(half);
        // The difference of the values from `first` on, over all rows of the layer.
        const auto difference_of = [&](std::size_t first, std::size_t size) {
            mine.resize(size);
            theirs.resize(size);
            double difference = 0, all = 0;
            for (std::size_t row = 0; row < shape.num_rows; ++row) {
                const std::size_t at = layer_at + row * row_bytes + first * sizeof(half);
                floats_of_halves(hub.kv.data() + at, size, mine.data());
                floats_of_halves(worker.kv.data() + at, size, theirs.data());
                for (std::size_t i = 0; i < size; ++i) {
                    difference += (double{mine[i]} - theirs[i]) * (double{mine[i]} - theirs[i]);
                    all += double{mine[i]} * mine[i];
                }
            }
            return share(difference, all);
        };
        std::size_t first = 0;
        for (std::size_t i = 0; i < parts.size(); first += parts[i++]) {
            double& worst = parts.size() > 2 ? residual.delta : i == 0 ? residual.k : residual.v;
            worst = std::max(worst, difference_of(first, parts[i]));
        }
        layer_at += row_bytes * shape.num_rows;
    }
    return residual;
}

bool RouteTraces::is_wrong() const {
    return is_before_router || rest < rest_min || size > size_max || alone > alone_max ||
           few_alone > few_alone_max;
}

RouteTraces route_traces(const SpanShape& shape, std::span<const float> x_before,
                         const SpanRows& hub, const SpanRows& worker, double tolerance) {
    RouteTraces traces;
    const double rows_differ = trace_rows(shape, x_before, hub.x, worker.x, tolerance, traces);
    std::size_t at = 0;
    for (const std::vector<std::size_t>& parts : shape.row_parts) {
        const std::size_t row_values = std::accumulate(parts.begin(), parts.end(), std::size_t{0}),
                          bytes = shape.num_rows * row_values * sizeof(half);
        const auto sums = sums_of_layer(parts, shape.num_rows, hub.kv.subspan(at, bytes),
                                        worker.kv.subspan(at, bytes));
        trace_parts(sums, at == 0, rows_differ, tolerance, traces);
        at += bytes;
    }
    return traces;
}

}  // namespace moex
