#include "hub/engine/local_experts.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "hub/engine/matmul.h"
#include "hub/engine/packed_experts.h"

namespace moex {
namespace {

WeightMatrix weight_matrix(const std::byte* data, ExpertDtype dtype, std::uint32_t num_out,
                           std::uint32_t num_in) {
    return {data, dtype == ExpertDtype::bf16 ? WeightDtype::bf16 : WeightDtype::f32, num_out,
            num_in};
}
Int4Matrix int4_matrix(const std::byte* codes, const std::byte* scale_zero, std::uint32_t num_out,
                       std::uint32_t num_in, std::uint32_t group_size) {
    return {reinterpret_cast<const std::uint32_t*>(codes),
            reinterpret_cast<const std::uint32_t*>(scale_zero), num_out, num_in, group_size};
}

// How much one compute thread takes at a time: a row is a few microseconds, waking a thread is ten.
constexpr std::size_t silu_pairs_grain = 8;  // one walk over [moe_intermediate_size]
constexpr std::size_t token_rows_grain = 4;  // top_k walks over [hidden_size]

// Buffers of one round; a calling thread keeps its own and reuses them.
struct Scratch {
    std::vector<float> x, gate_up, inner, inner_prepared, y;
};
Scratch& scratch() {
    thread_local Scratch mine;
    return mine;
}
// Grows only: a round does not pay for clearing what it overwrites.
float* at_least(std::vector<float>& buffer, std::size_t size) {
    if (buffer.size() < size) buffer.resize(size);
    return buffer.data();
}

// A round's pairs in slots: by expert, ascending; within an expert by row.
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
    // Floats of one input row as the kernels want it.
    std::size_t input_floats(std::uint32_t num_in) const {
        return package->expert_dtype() == ExpertDtype::int4
                   ? int4_prepared_floats(num_in, package->expert_shape().group_size)
                   : num_in;
    }
    void prepare_row(float* out, const float* x, std::uint32_t num_in) const {
        if (package->expert_dtype() == ExpertDtype::int4)
            int4_prepare({out, 0}, {x, num_in, 1}, num_in, package->expert_shape().group_size);
        else
            std::memcpy(out, x, num_in * sizeof(float));
    }
    // y [num_pairs, hidden] = expert(x), without gates; `x` holds
    // input_floats(hidden) per pair, or one row for all when `one_row`.
    Status run(std::uint32_t layer, std::span<const ExpertRows> experts, const float* x,
               bool one_row, float* y) const;
    const float* prepare_slots(const ExpertBatch& batch, const PairOrder& order) const;
    void sum_slots(const ExpertBatch& batch, const PairOrder& order, float* y) const;
};

Status LocalExperts::State::run(std::uint32_t layer, std::span<const ExpertRows> experts,
                                const float* x, bool one_row, float* y) const {
    const ExpertShape& shape = package->expert_shape();
    const ExpertDtype dtype = package->expert_dtype();
    const std::uint32_t hidden_size = shape.hidden_size, intermediate = shape.moe_intermediate_size;
    const std::size_t x_floats = input_floats(hidden_size),
                      inner_floats = input_floats(intermediate);
    const std::uint32_t num_pairs = experts.empty() ? 0
                                                    : experts.back().first + experts.back().count;

    Scratch& buffers = scratch();
    float* gate_up = at_least(buffers.gate_up, std::size_t{num_pairs} * 2 * intermediate);
    float* inner = at_least(buffers.inner, std::size_t{num_pairs} * intermediate);
    float* inner_prepared = at_least(buffers.inner_prepared, num_pairs * inner_floats);

    std::vector<MatmulJob> plain_up, plain_down;
    std::vector<Int4MatmulJob> int4_up, int4_down;
    for (const ExpertRows& rows : experts) {
        MOEX_ASSIGN(blob, package->blob(layer, rows.expert));
        MOEX_ASSIGN(view, view_expert_blob(blob, shape, dtype));

        const RowsIn in{one_row ? x : x + rows.first * x_floats, x_floats, rows.count};
        const RowsIn between{inner_prepared + rows.first * inner_floats, inner_floats, rows.count};
        const RowsOut up{gate_up + std::size_t{rows.first} * 2 * intermediate,
                         std::size_t{2} * intermediate};
        const RowsOut down{y + std::size_t{rows.first} * hidden_size, hidden_size};

        if (dtype == ExpertDtype::int4) {
            int4_up.push_back({up,
                               int4_matrix(view.gate_up_codes, view.gate_up_scale_zero,
                                           2 * intermediate, hidden_size, shape.group_size),
                               in});
            int4_down.push_back({down,
                                 int4_matrix(view.down_codes, view.down_scale_zero, hidden_size,
                                             intermediate, shape.group_size),
                                 between});
        } else {
            plain_up.push_back(
                {up, weight_matrix(view.gate_up_codes, dtype, 2 * intermediate, hidden_size), in});
            plain_down.push_back(
                {down, weight_matrix(view.down_codes, dtype, hidden_size, intermediate), between});
        }
    }

    dtype == ExpertDtype::int4 ? matmul_int4(int4_up, threads) : matmul(plain_up, threads);
    threads.parallel_for(num_pairs, silu_pairs_grain, [&](std::size_t begin, std::size_t end) {
        for (std::size_t pair = begin; pair < end; ++pair) {
            const float* gate = gate_up + pair * 2 * intermediate;
            silu_mul({inner + pair * intermediate, intermediate}, {gate, intermediate},
                     {gate + intermediate, intermediate});
            prepare_row(inner_prepared + pair * inner_floats, inner + pair * intermediate,
                        intermediate);
        }
    });

    dtype == ExpertDtype::int4 ? matmul_int4(int4_down, threads) : matmul(plain_down, threads);
    return {};
}

namespace {

// All work happens in wait(): a local round has nothing to overlap
// with. It is not stopped in the middle: a layer is the shortest step.
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
    if (arithmetic == Arithmetic::int8 && state_->package->expert_dtype() == ExpertDtype::int4)
        state_->packed = std::make_unique<PackedExperts>(state_->package, threads);
}
LocalExperts::~LocalExperts() = default;

void LocalExperts::pack_in_background(std::function<void()> done) {
    if (state_->packed) state_->packed->pack_in_background(std::move(done));
}

// x of every slot, or one row for all, as the exact kernels want it.
const float* LocalExperts::State::prepare_slots(const ExpertBatch& batch,
                                                const PairOrder& order) const {
    const std::uint32_t hidden_size = hidden(), num_pairs = batch.num_tokens * batch.top_k;
    const std::size_t x_floats = input_floats(hidden_size);
    const bool one_row = batch.num_tokens == 1;
    float* x = at_least(scratch().x, (one_row ? 1 : num_pairs) * x_floats);

    threads.parallel_for(
        batch.num_tokens, token_rows_grain, [&](std::size_t begin, std::size_t end) {
            std::vector<float> rounded(hidden_size);
            for (std::size_t token = begin; token < end; ++token) {
                std::copy_n(batch.x.data() + token * hidden_size, hidden_size, rounded.data());
                if (rounding.deterministic)
                    round_rows(rounding.dtype_of(rounded), rounded, hidden_size);

                float* first = one_row ? x : x + order.slot_of_pair[token * batch.top_k] * x_floats;
                prepare_row(first, rounded.data(), hidden_size);

                for (std::uint32_t i = 1; i < batch.top_k && !one_row; ++i)
                    std::memcpy(x + order.slot_of_pair[token * batch.top_k + i] * x_floats, first,
                                x_floats * sizeof(float));
            }
        });
    return x;
}

// batch.y = the sum over each token's experts, by ascending expert, of gate · answer.
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
                std::sort(slots.begin(), slots.end());  // ascending slots are ascending experts

                const Dtype dtype = rounding.dtype_of(
                    batch.x.subspan(token * hidden_size, hidden_size));

                for (const std::uint32_t slot : slots) {
                    const std::span<float> answer{y + std::size_t{slot} * hidden_size, hidden_size};
                    const float gate = batch.expert_weights[order.pair_of_slot[slot]];
                    if (rounding.deterministic) {
                        // gates are f16 on the wire whatever the rows are
                        scale_by(answer, half_to_float(float_to_half(gate)));
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

        if (state.packed) {
            std::vector<std::uint32_t> row_of_slot(num_pairs);
            for (std::uint32_t slot = 0; slot < num_pairs; ++slot)
                row_of_slot[slot] = order.pair_of_slot[slot] / batch.top_k;
            MOEX_TRY(state.packed->run(batch.layer, order.experts,
                                       {batch.x.data(), state.hidden(), batch.num_tokens},
                                       row_of_slot, y));
        } else {
            const float* x = state.prepare_slots(batch, order);
            MOEX_TRY(state.run(batch.layer, order.experts, x, batch.num_tokens == 1, y));
        }
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
    const std::size_t x_floats = state.input_floats(hidden_size);

    float* prepared = at_least(scratch().x, num_rows * x_floats);
    for (std::size_t row = 0; row < num_rows; ++row)
        state.prepare_row(prepared + row * x_floats, x.data() + row * hidden_size, hidden_size);

    const ExpertRows rows{expert, 0, num_rows};
    MOEX_TRY(state.run(layer, {&rows, 1}, prepared, false, y.data()));

    for (std::size_t row = 0; row < num_rows; ++row) {
        const std::span<float> answer = y.subspan(row * hidden_size, hidden_size);
        scale_by(answer, gates[row]);
        if (state.rounding.deterministic)
            round_rows(state.rounding.dtype_of(x.subspan(row * hidden_size, hidden_size)), answer,
                       hidden_size);
    }
    return {};
}

}  // namespace moex
