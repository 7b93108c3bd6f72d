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

}  // namespace moex
