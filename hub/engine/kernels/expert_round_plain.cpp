#include "hub/engine/kernels/expert_round_plain.h"

#include "hub/engine/kernels/integer_paths.h"

namespace moex::plain {
namespace {

void multiply(std::span<float> out, const PackedMatrix& weights, std::span<const float> x) {
    std::vector<std::int8_t> codes(x.size());
    std::vector<float> scales, sums;
    for (std::size_t begin = 0; begin < x.size(); begin += weights.group_size) {
        const QuantizedGroup group = quantize_group_plain(codes.data() + begin, x.data() + begin,
                                                          weights.group_size);
        scales.push_back(group.scale);
        sums.push_back(static_cast<float>(group.sum));
    }
    const QuantizedRows row{codes.data(),         scales.data(),      sums.data(), 1,
                            weights.num_groups(), weights.group_size, nullptr};
    integer_portable().gemv.of(weights.dtype)({out.data(), out.size()}, weights, row, 0,
                                              weights.num_panels());
}

}  // namespace

void compute_expert(std::span<float> y, const PackedMatrix& gate_up, const PackedMatrix& down,
                    std::span<const float> x, const ExpertExtras& extras) {
    std::vector<float> both(gate_up.num_out);
    multiply(both, gate_up, x);
    prepare_gate_up(both, extras);
    const std::span<float> gate = std::span(both).first(down.num_in),
                           up = std::span(both).last(down.num_in);
    integer_silu_mul(gate, gate, up);
    multiply(y, down, gate);
    for (std::size_t i = 0; extras.down_bias != nullptr && i < y.size(); ++i)
        y[i] += extras.down_bias[i];
}

}  // namespace moex::plain
