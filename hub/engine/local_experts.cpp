#include "hub/engine/local_experts.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "hub/engine/packed_experts.h"

namespace moex {
namespace {

WeightMatrix weight_matrix(const std::byte* data, ExpertDtype dtype, std::uint32_t num_out,
                           std::uint32_t num_in) {
    return {data, dtype == ExpertDtype::bf16 ? WeightDtype::bf16 : WeightDtype::f32, num_out,
            num_in};
}

// Minimum rows in a range of a parallel loop: a row takes a few microseconds, and waking a thread
// takes ten.
constexpr std::size_t silu_slots_grain = 8;  // per slot: one pass over [moe_intermediate_size]
constexpr std::size_t token_rows_grain = 4;  // per row: top_k passes over [hidden_size]

// Buffers of one local round. Each calling thread has one set of buffers and reuses it.
struct Scratch {
    std::vector<float> rounded, x, gate_up, inner, y;
    std::vector<std::uint32_t> row_of_slot;
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

// The order of a round's (row, expert) pairs in slots: by ascending expert, then by row.
//   expert_ids {5, 2} of row 0, {2, 7} of row 1:  pair_of_slot = {1, 2, 0, 3}
struct PairOrder {
    std::vector<std::uint32_t> pair_of_slot, slot_of_pair;
    std::vector<ExpertRows> experts;
};

PairOrder order_of(const ExpertBatch& batch) {
    const std::uint32_t num_pairs = batch.num_tokens * batch.top_k;
    PairOrder order;
    order.pair_of_slot.resize(num_pairs);
    order.slot_of_pair.resize(num_pairs);
    for (std::uint32_t pair = 0; pair < num_pairs; ++pair) order.pair_of_slot[pair] = pair;
    std::stable_sort(order.pair_of_slot.begin(), order.pair_of_slot.end(),
                     [&](std::uint32_t a, std::uint32_t b) {
                         return batch.expert_ids[a] < batch.expert_ids[b];
                     });

    for (std::uint32_t slot = 0; slot < num_pairs; ++slot) {
        order.slot_of_pair[order.pair_of_slot[slot]] = slot;
        const std::uint32_t expert = batch.expert_ids[order.pair_of_slot[slot]];
        if (order.experts.empty() || order.experts.back().expert != expert)
            order.experts.push_back({expert, slot, 0});
        ++order.experts.back().count;
    }
    return order;
}

}  // namespace

struct LocalExperts::State {
    std::shared_ptr<const ModelPackage> package;
    ThreadPool& threads;
    ExpertRounding rounding;
    std::unique_ptr<PackedExperts> packed;  // null: exact

    std::uint32_t hidden() const { return package->config().hidden_size; }
    // Computes y[slot] = expert(x[row_of_slot[slot]]) in f32, without gate weights; y is
    // [num_slots, hidden_size].
    Status run_exact(std::uint32_t layer, std::span<const ExpertRows> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y) const {
        return has_codes(package->expert_dtype()) ? run_codes(layer, experts, x, row_of_slot, y)
                                                  : run_plain(layer, experts, x, row_of_slot, y);
    }
    Status run_codes(std::uint32_t layer, std::span<const ExpertRows> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y) const;
    Status run_plain(std::uint32_t layer, std::span<const ExpertRows> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y) const;
    RowsIn rounded_rows(const ExpertBatch& batch) const;
    void sum_slots(const ExpertBatch& batch, const PairOrder& order, float* y) const;
};

Status LocalExperts::State::run_codes(std::uint32_t layer, std::span<const ExpertRows> experts,
                                      RowsIn x, std::span<const std::uint32_t> row_of_slot,
                                      float* y) const {
    const ExpertShape& shape = package->expert_shape();
    std::vector<ExactExpert> exact;
    for (const ExpertRows& rows : experts) {
        MOEX_ASSIGN(blob, package->blob(layer, rows.expert));
        MOEX_ASSIGN(view, view_expert_blob(blob, shape, package->expert_dtype()));
        const ExpertMatrices matrices = expert_matrices(view);
        exact.push_back({rows.first,
                         rows.count,
                         matrices.gate_up,
                         matrices.down,
                         {view.gate_up_bias, view.down_bias, shape.clamp}});
    }
    compute_experts(exact, x, row_of_slot, y, threads);
    return {};
}

// Computes experts with weights that are not quantised. Only the golden tests use such experts, so
// the input row of each slot is simply copied.
Status LocalExperts::State::run_plain(std::uint32_t layer, std::span<const ExpertRows> experts,
                                      RowsIn x, std::span<const std::uint32_t> row_of_slot,
                                      float* y) const {
    const ExpertShape& shape = package->expert_shape();
    const ExpertDtype dtype = package->expert_dtype();
    const std::size_t hidden_size = shape.hidden_size, intermediate = shape.moe_intermediate_size,
                      num_slots = row_of_slot.size();

    Scratch& buffers = scratch();
    float* in = at_least(buffers.x, num_slots * hidden_size);
    float* gate_up = at_least(buffers.gate_up, num_slots * 2 * intermediate);
    float* inner = at_least(buffers.inner, num_slots * intermediate);
    for (std::size_t slot = 0; slot < num_slots; ++slot)
        std::memcpy(in + slot * hidden_size, x.data + row_of_slot[slot] * x.stride,
                    hidden_size * sizeof(float));

    std::vector<MatmulJob> up, down;
    std::vector<ExpertExtras> extras(num_slots);
    for (const ExpertRows& rows : experts) {
        MOEX_ASSIGN(blob, package->blob(layer, rows.expert));
        MOEX_ASSIGN(view, view_expert_blob(blob, shape, dtype));
        std::fill_n(extras.begin() + rows.first, rows.count,
                    ExpertExtras{view.gate_up_bias, view.down_bias, shape.clamp});
        up.push_back({{gate_up + rows.first * 2 * intermediate, 2 * intermediate},
                      weight_matrix(view.gate_up_codes, dtype, 2 * shape.moe_intermediate_size,
                                    shape.hidden_size),
                      {in + rows.first * hidden_size, hidden_size, rows.count}});
        down.push_back(
            {{y + rows.first * hidden_size, hidden_size},
             weight_matrix(view.down_codes, dtype, shape.hidden_size, shape.moe_intermediate_size),
             {inner + rows.first * intermediate, intermediate, rows.count}});
    }

    matmul(up, threads);
    threads.parallel_for(num_slots, silu_slots_grain, [&](std::size_t begin, std::size_t end) {
        for (std::size_t slot = begin; slot < end; ++slot) {
            float* gate = gate_up + slot * 2 * intermediate;
            prepare_gate_up({gate, 2 * intermediate}, extras[slot]);
            silu_mul({inner + slot * intermediate, intermediate}, {gate, intermediate},
                     {gate + intermediate, intermediate});
        }
    });
    matmul(down, threads);
    for (std::size_t slot = 0; slot < num_slots; ++slot)
        if (extras[slot].down_bias != nullptr)
            add_to({y + slot * hidden_size, hidden_size}, {extras[slot].down_bias, hidden_size});
    return {};
}

namespace {

// A round that this machine computes. All work happens in wait(), because a local round has nothing
// to overlap with. A round is not stopped in the middle: a stop request takes effect only between
// layers.
class LocalRound : public ExpertRound {
  public:
    explicit LocalRound(std::function<Result<ExpertAnswer>()> compute)
        : compute_(std::move(compute)) {}
    Result<ExpertAnswer> wait(std::stop_token) override { return compute_(); }

  private:
    std::function<Result<ExpertAnswer>()> compute_;
};

}  // namespace

LocalExperts::LocalExperts(std::shared_ptr<const ModelPackage> package, ThreadPool& threads,
                           ExpertRounding rounding, Arithmetic arithmetic)
    : state_(new State{std::move(package), threads, rounding, nullptr}) {
    MOEX_CHECK(arithmetic == Arithmetic::exact || !rounding.deterministic,
               "deterministic rounding fixes sums in f32");
    if (arithmetic == Arithmetic::int8 && has_codes(state_->package->expert_dtype()))
        state_->packed = std::make_unique<PackedExperts>(state_->package, threads);
}
LocalExperts::~LocalExperts() = default;

void LocalExperts::pack_in_background(std::function<void()> done,
                                      std::vector<std::uint8_t> layers) {
    if (state_->packed) state_->packed->pack_in_background(std::move(done), std::move(layers));
}

// Returns the input rows of the round after the rounding that ExpertRounding defines for every
// backend.
RowsIn LocalExperts::State::rounded_rows(const ExpertBatch& batch) const {
    const std::uint32_t hidden_size = hidden();
    if (!rounding.deterministic) return {batch.x.data(), hidden_size, batch.num_tokens};

    float* rounded = at_least(scratch().rounded, batch.x.size());
    threads.parallel_for(
        batch.num_tokens, token_rows_grain, [&](std::size_t begin, std::size_t end) {
            for (std::size_t token = begin; token < end; ++token) {
                const std::span<float> row{rounded + token * hidden_size, hidden_size};
                std::copy_n(batch.x.data() + token * hidden_size, hidden_size, row.data());
                round_rows(rounding.dtype_of(row), row, hidden_size);
            }
        });
    return {rounded, hidden_size, batch.num_tokens};
}

// Writes to batch.y, for each token, the sum of gate weight · answer over the token's experts, in
// ascending order of experts.
void LocalExperts::State::sum_slots(const ExpertBatch& batch, const PairOrder& order,
                                    float* y) const {
    const std::uint32_t hidden_size = hidden();
    threads.parallel_for(
        batch.num_tokens, token_rows_grain, [&](std::size_t begin, std::size_t end) {
            std::vector<std::uint32_t> slots(batch.top_k);

            for (std::size_t token = begin; token < end; ++token) {
                const std::span<float> sum = batch.y.subspan(token * hidden_size, hidden_size);
                std::fill(sum.begin(), sum.end(), 0.0f);

                std::copy_n(
                    order.slot_of_pair.begin() + static_cast<std::ptrdiff_t>(token * batch.top_k),
                    batch.top_k, slots.begin());
                // slots are numbered by ascending expert, so this sorts by expert
                std::sort(slots.begin(), slots.end());

                const Dtype dtype = rounding.dtype_of(
                    batch.x.subspan(token * hidden_size, hidden_size));

                for (const std::uint32_t slot : slots) {
                    const std::span<float> answer{y + std::size_t{slot} * hidden_size, hidden_size};
                    const float gate = batch.expert_weights[order.pair_of_slot[slot]];
                    if (rounding.deterministic) {
                        scale_by(answer, rounding.rounded_gate(gate));
                        round_rows(dtype, answer, hidden_size);
                        add_to(sum, answer);
                    } else {
                        packed ? integer_add_scaled(sum, answer, gate)
                               : add_scaled_to(sum, answer, gate);
                    }
                }
            }
        });
}

std::unique_ptr<ExpertRound> LocalExperts::submit(const ExpertBatch& batch) {
    return std::make_unique<LocalRound>([this, batch]() -> Result<ExpertAnswer> {
        const TimePoint started = now_steady();
        const State& state = *state_;
        const std::uint32_t num_pairs = batch.num_tokens * batch.top_k;
        const PairOrder order = order_of(batch);
        float* y = at_least(scratch().y, std::size_t{num_pairs} * state.hidden());

        std::vector<std::uint32_t>& row_of_slot = scratch().row_of_slot;
        row_of_slot.resize(num_pairs);
        for (std::uint32_t slot = 0; slot < num_pairs; ++slot)
            row_of_slot[slot] = order.pair_of_slot[slot] / batch.top_k;
        const RowsIn x = state.rounded_rows(batch);
        MOEX_TRY(state.packed ? state.packed->run(batch.layer, order.experts, x, row_of_slot, y)
                              : state.run_exact(batch.layer, order.experts, x, row_of_slot, y));
        state.sum_slots(batch, order, y);

        ExpertAnswer answer;
        answer.rows.assign(batch.num_tokens,
                           RowProvenance{.pairs_local = static_cast<std::uint16_t>(batch.top_k)});
        answer.waited = now_steady() - started;
        return answer;
    });
}

Status LocalExperts::compute(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                             std::span<const float> gates, std::span<float> y) const {
    const State& state = *state_;
    const std::uint32_t hidden_size = state.hidden();
    const auto num_rows = static_cast<std::uint32_t>(gates.size());
    std::vector<std::uint32_t>& row_of_slot = scratch().row_of_slot;
    row_of_slot.resize(num_rows);
    std::iota(row_of_slot.begin(), row_of_slot.end(), 0u);

    const ExpertRows rows{expert, 0, num_rows};
    MOEX_TRY(state.run_exact(layer, {&rows, 1}, {x.data(), hidden_size, num_rows}, row_of_slot,
                             y.data()));

    for (std::size_t row = 0; row < num_rows; ++row) {
        const std::span<float> answer = y.subspan(row * hidden_size, hidden_size);
        scale_by(answer, gates[row]);
        if (state.rounding.deterministic)
            round_rows(state.rounding.dtype_of(x.subspan(row * hidden_size, hidden_size)), answer,
                       hidden_size);
    }
    return {};
}

Status LocalExperts::compute_int8(std::uint32_t layer, std::uint32_t expert,
                                  std::span<const float> x, std::span<const float> gates,
                                  std::span<float> y) const {
    const State& state = *state_;
    if (!state.packed)
        return Error{ErrorCode::unsupported, "this backend has no experts in integers"};
    const std::uint32_t hidden_size = state.hidden();
    const auto num_rows = static_cast<std::uint32_t>(gates.size());

    std::vector<std::uint32_t> row_of_slot(num_rows);
    std::iota(row_of_slot.begin(), row_of_slot.end(), 0u);
    const ExpertRows rows{expert, 0, num_rows};
    MOEX_TRY(state.packed->run(layer, {&rows, 1}, {x.data(), hidden_size, num_rows}, row_of_slot,
                               y.data()));
    for (std::size_t row = 0; row < num_rows; ++row)
        scale_by(y.subspan(row * hidden_size, hidden_size), gates[row]);
    return {};
}

}  // namespace moex
