#include "hub/dispatch/span/span_residual.h"

#include <cmath>
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

    const std::size_t size = shape.kv_size, row_bytes = 2 * size * sizeof(half);
    std::vector<float> mine(size), theirs(size);
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer)
        for (const bool is_v : {false, true}) {
            double difference = 0, all = 0;
            for (std::size_t row = 0; row < shape.num_rows; ++row) {
                const std::size_t at = (layer * shape.num_rows + row) * row_bytes +
                                       (is_v ? row_bytes / 2 : 0);
                floats_of_halves(hub.kv.data() + at, size, mine.data());
                floats_of_halves(worker.kv.data() + at, size, theirs.data());
                for (std::size_t i = 0; i < size; ++i) {
                    difference += (double{mine[i]} - theirs[i]) * (double{mine[i]} - theirs[i]);
                    all += double{mine[i]} * mine[i];
                }
            }
            double& worst = is_v ? residual.v : residual.k;
            worst = std::max(worst, share(difference, all));
        }
    return residual;
}

}  // namespace moex
