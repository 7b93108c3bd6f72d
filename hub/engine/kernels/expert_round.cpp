#include "hub/engine/kernels/expert_round.h"

#include <algorithm>
#include <cstring>

namespace moex {
namespace {

// Minimum rows in a range of a parallel loop: a row takes a few microseconds, and waking a thread
// takes ten.
constexpr std::size_t silu_slots_grain = 8;    // per slot: one pass over [moe_intermediate_size]
constexpr std::size_t prepare_rows_grain = 4;  // per row: one pass over [hidden_size]

// Buffers of one call of compute_experts(). Each calling thread has one set of buffers and reuses
// it.
struct Scratch {
    std::vector<float> rows, x, gate_up, inner;
    QuantizedBuffer x_codes, inner_codes;
};
Scratch& scratch() {
    thread_local Scratch mine;
    return mine;
}
// Grows `buffer` to at least `size` floats and never shrinks it, so that no round clears floats
// that it overwrites anyway.
float* at_least(std::vector<float>& buffer, std::size_t size) {
    if (buffer.size() < size) buffer.resize(size);
    return buffer.data();
}

// Prepares the input row of every slot for the INT4 kernel. If x has only one row, all slots share
// it.
RowsIn prepare_slots(Scratch& buffers, RowsIn x, std::span<const std::uint32_t> row_of_slot,
                     const Int4Matrix& weights, ThreadPool& threads) {
    const std::size_t floats = int4_prepared_floats(weights.num_in, weights.group_size);
    const auto num_slots = static_cast<std::uint32_t>(row_of_slot.size());
    float* rows = at_least(buffers.rows, x.num_rows * floats);
    threads.parallel_for(x.num_rows, prepare_rows_grain, [&](std::size_t begin, std::size_t end) {
        int4_prepare({rows + begin * floats, floats},
                     {x.data + begin * x.stride, x.stride, static_cast<std::uint32_t>(end - begin)},
                     weights.num_in, weights.group_size);
    });
    if (x.num_rows == 1) return {rows, 0, num_slots};

    float* slots = at_least(buffers.x, num_slots * floats);
    threads.parallel_for(num_slots, prepare_rows_grain, [&](std::size_t begin, std::size_t end) {
        for (std::size_t slot = begin; slot < end; ++slot)
            std::memcpy(slots + slot * floats, rows + row_of_slot[slot] * floats,
                        floats * sizeof(float));
    });
    return {slots, floats, num_slots};
}

// Returns the extras of each slot's expert; empty if no expert has any.
template <class Expert>
std::vector<ExpertExtras> extras_of(std::span<const Expert> experts, std::size_t num_slots) {
    const bool is_plain = std::all_of(experts.begin(), experts.end(), [](const Expert& one) {
        return one.extras.gate_up_bias == nullptr && one.extras.clamp == 0;
    });
    if (is_plain) return {};
    std::vector<ExpertExtras> extras(num_slots);
    for (const Expert& one : experts)
        std::fill_n(extras.begin() + one.first, one.count, one.extras);
    return extras;
}

// Adds each expert's second bias to its answers.
void add_down_bias(std::span<const ExpertExtras> extras, float* y, std::size_t hidden,
                   ThreadPool& threads) {
    threads.parallel_for(extras.size(), silu_slots_grain, [&](std::size_t begin, std::size_t end) {
        for (std::size_t slot = begin; slot < end; ++slot)
            if (extras[slot].down_bias != nullptr)
                add_to({y + slot * hidden, hidden}, {extras[slot].down_bias, hidden});
    });
}

RowsIn part(RowsIn rows, std::uint32_t first, std::uint32_t count) {
    return {rows.data + first * rows.stride, rows.stride, count};
}

}  // namespace

ExpertMatrices expert_matrices(const ExpertBlobView& blob) {
    const ExpertShape& shape = blob.shape;
    const bool is_mxfp4 = blob.dtype == ExpertDtype::mxfp4;
    const auto matrix = [&](const std::byte* codes, const std::byte* scales, std::uint32_t num_out,
                            std::uint32_t num_in) {
        Int4Matrix made{.codes = reinterpret_cast<const std::uint32_t*>(codes),
                        .num_out = num_out,
                        .num_in = num_in,
                        .group_size = shape.group_size};
        if (is_mxfp4)
            made.mxfp4_scales = reinterpret_cast<const std::uint8_t*>(scales);
        else
            made.scale_zero = reinterpret_cast<const std::uint32_t*>(scales);
        return made;
    };
    const std::uint32_t hidden = shape.hidden_size, inner = shape.moe_intermediate_size;
    return {matrix(blob.gate_up_codes, blob.gate_up_scale_zero, 2 * inner, hidden),
            matrix(blob.down_codes, blob.down_scale_zero, hidden, inner)};
}

ExpertPanels expert_panels(const ExpertShape& shape) {
    const auto panels = [&](std::uint32_t num_out, std::uint32_t num_in) {
        return PackedMatrix{.dtype = shape.is_mxfp4() ? PackedDtype::mxfp4 : PackedDtype::int4,
                            .num_out = num_out,
                            .num_in = num_in,
                            .group_size = shape.group_size};
    };
    const std::uint32_t hidden = shape.hidden_size, inner = shape.moe_intermediate_size;
    return {panels(2 * inner, hidden), panels(hidden, inner)};
}

void prepare_gate_up(std::span<float> gate_up, const ExpertExtras& extras) {
    if (extras.gate_up_bias != nullptr)
        for (std::size_t i = 0; i < gate_up.size(); ++i) gate_up[i] += extras.gate_up_bias[i];
    if (extras.clamp == 0) return;

    constexpr float slope = 1.702f;
    const float limit = extras.clamp;
    const auto gate = gate_up.first(gate_up.size() / 2), up = gate_up.last(gate_up.size() / 2);
    for (float& value : gate) value = std::min(value, limit) * slope;
    for (float& value : up) value = (std::clamp(value, -limit, limit) + 1.0f) / slope;
}

void compute_experts(std::span<const ExactExpert> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y, ThreadPool& threads) {
    if (experts.empty()) return;
    const Int4Matrix &up_shape = experts.front().gate_up, &down_shape = experts.front().down;
    const std::uint32_t hidden = down_shape.num_out, intermediate = down_shape.num_in;
    const std::size_t gate_up_floats = std::size_t{2} * intermediate,
                      inner_floats = int4_prepared_floats(intermediate, down_shape.group_size),
                      num_slots = row_of_slot.size();

    Scratch& buffers = scratch();
    const RowsIn in = prepare_slots(buffers, x, row_of_slot, up_shape, threads);
    float* gate_up = at_least(buffers.gate_up, num_slots * gate_up_floats);
    float* inner = at_least(buffers.inner, num_slots * inner_floats);

    std::vector<Int4MatmulJob> up, down;
    for (const ExactExpert& one : experts) {
        up.push_back({{gate_up + one.first * gate_up_floats, gate_up_floats},
                      one.gate_up,
                      part(in, one.first, one.count)});
        down.push_back({{y + std::size_t{one.first} * hidden, hidden},
                        one.down,
                        {inner + one.first * inner_floats, inner_floats, one.count}});
    }

    matmul_int4(up, threads);
    const std::vector<ExpertExtras> extras = extras_of(experts, num_slots);
    threads.parallel_for(num_slots, silu_slots_grain, [&](std::size_t begin, std::size_t end) {
        for (std::size_t slot = begin; slot < end; ++slot) {
            float* gate = gate_up + slot * gate_up_floats;
            if (!extras.empty()) prepare_gate_up({gate, gate_up_floats}, extras[slot]);
            silu_mul({gate, intermediate}, {gate, intermediate},
                     {gate + intermediate, intermediate});
            int4_prepare({inner + slot * inner_floats, 0}, {gate, intermediate, 1}, intermediate,
                         down_shape.group_size);
        }
    });
    matmul_int4(down, threads);
    add_down_bias(extras, y, hidden, threads);
}

void compute_experts(std::span<const PackedExpert> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y, ThreadPool& threads) {
    if (experts.empty()) return;
    const PackedMatrix &up_shape = experts.front().gate_up, &down_shape = experts.front().down;
    const std::uint32_t hidden = down_shape.num_out, intermediate = down_shape.num_in;
    const std::size_t gate_up_floats = std::size_t{2} * intermediate;
    const auto num_slots = static_cast<std::uint32_t>(row_of_slot.size());

    Scratch& buffers = scratch();
    QuantizedRows in = quantize_rows(buffers.x_codes, x, hidden, up_shape.group_size, threads);
    in.row_index = row_of_slot.data();
    buffers.inner_codes.resize(num_slots, intermediate, down_shape.group_size);
    float* gate_up = at_least(buffers.gate_up, num_slots * gate_up_floats);

    std::vector<PackedMatmulJob> up, down;
    for (const PackedExpert& one : experts) {
        up.push_back({{gate_up + one.first * gate_up_floats, gate_up_floats},
                      one.gate_up,
                      in.rows(one.first, one.count)});
        down.push_back({{y + std::size_t{one.first} * hidden, hidden},
                        one.down,
                        buffers.inner_codes.rows().rows(one.first, one.count)});
    }

    matmul_packed(up, threads);
    const std::vector<ExpertExtras> extras = extras_of(experts, num_slots);
    threads.parallel_for(num_slots, silu_slots_grain, [&](std::size_t begin, std::size_t end) {
        for (std::size_t slot = begin; slot < end; ++slot) {
            float* gate = gate_up + slot * gate_up_floats;
            if (!extras.empty()) prepare_gate_up({gate, gate_up_floats}, extras[slot]);
            integer_silu_mul({gate, intermediate}, {gate, intermediate},
                             {gate + intermediate, intermediate});
            buffers.inner_codes.quantize_row(static_cast<std::uint32_t>(slot),
                                             {gate, intermediate});
        }
    });
    matmul_packed(down, threads);
    add_down_bias(extras, y, hidden, threads);
}

}  // namespace moex
