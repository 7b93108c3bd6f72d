#include "hub/engine/delta_rule_plain.h"

#include <cmath>
#include <vector>

namespace moex::plain {

void delta_rule(std::span<double> s, const DeltaRows& rows, const DeltaShape& shape) {
    const std::size_t keys = shape.key_dim, values = shape.value_dim;
    const auto at = [](const RowsIn& in, std::size_t row, std::size_t i) {
        return double{in.data[row * in.stride + i]};
    };
    for (std::uint32_t row = 0; row < rows.q.num_rows; ++row)
        for (std::uint32_t head = 0; head < shape.value_heads; ++head) {
            const std::size_t key_head = head / shape.values_per_key();
            const auto matrix = s.subspan(head * keys * values, keys * values);
            const double kept = std::exp(at(rows.log_decay, row, head)),
                         beta = at(rows.beta, row, head);
            for (double& one : matrix) one *= kept;

            for (std::size_t j = 0; j < values; ++j) {
                double known = 0, out = 0;
                for (std::size_t i = 0; i < keys; ++i)
                    known += matrix[i * values + j] * at(rows.k, row, key_head * keys + i);
                const double delta = beta * (at(rows.v, row, head * values + j) - known);
                for (std::size_t i = 0; i < keys; ++i)
                    matrix[i * values + j] += at(rows.k, row, key_head * keys + i) * delta;
                for (std::size_t i = 0; i < keys; ++i)
                    out += matrix[i * values + j] * at(rows.q, row, key_head * keys + i);
                rows.out.data[row * rows.out.stride + head * values + j] = static_cast<float>(out);
            }
        }
}

}  // namespace moex::plain
