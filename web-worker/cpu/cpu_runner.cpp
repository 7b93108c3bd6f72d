#include "web-worker/cpu/cpu_runner.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "web-worker/finite_rows.h"

namespace moex {
namespace {

constexpr std::size_t rows_grain = 4;  // rows of [hidden_size] per task of a thread

// The memory of one (row, expert) pair while its group is computed: x, gate_up, inner and y in f32.
std::uint64_t pair_bytes(const ExpertShape& shape) {
    return sizeof(float) *
           (3 * std::uint64_t{shape.hidden_size} + 4 * std::uint64_t{shape.moe_intermediate_size});
}

Error not_finite(const GroupShape& shape) {
    return {ErrorCode::non_finite,
            text("layer ", shape.layer, ": an answer is not finite in ", dtype_name(shape.dtype))};
}

}  // namespace

CpuRunner::CpuRunner(Platform& platform, ThreadPool& threads, const CpuStore& store,
                     const Welcome& welcome, std::uint64_t bytes_max)
    : platform_(platform),
      threads_(threads),
      store_(store) {
    refit(welcome, bytes_max, nullptr);
}

void CpuRunner::create(std::function<void(Status)> done) {
    platform_.set_timer(0, [life = life_.watch(), done = std::move(done)] {
        if (life.alive()) done({});
    });
}

void CpuRunner::refit(const Welcome& welcome, std::uint64_t bytes, std::function<void(Status)>) {
    const std::uint64_t pairs = std::max<std::uint64_t>(1, bytes / pair_bytes(store_.shape()));
    pairs_max_ = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(pairs, welcome.limits.num_pairs_max));
    tokens_max_ = std::min(pairs_max_, welcome.limits.num_tokens_max);
}

Status CpuRunner::compute(std::uint16_t layer, std::span<const GroupExpert> experts,
                          std::uint32_t num_tokens, std::span<const std::uint32_t> row_of_slot,
                          std::uint32_t first_slot) {
    const ExpertShape& shape = store_.shape();
    const RowsIn x{x_.data(), shape.hidden_size, num_tokens};
    y_.resize(
        std::max(y_.size(), (first_slot + row_of_slot.size()) * std::size_t{shape.hidden_size}));
    float* const y = y_.data() + std::size_t{first_slot} * shape.hidden_size;

    std::vector<PackedExpert> packed;
    std::vector<ExactExpert> exact;
    std::uint32_t first = 0;
    for (const GroupExpert& one : experts) {
        const Unit unit{layer, one.expert};
        if (store_.arithmetic() == WorkerArithmetic::int8) {
            MOEX_ASSIGN(expert, store_.packed(unit, first, one.num_rows));
            packed.push_back(expert);
        } else {
            MOEX_ASSIGN(expert, store_.exact(unit, first, one.num_rows));
            exact.push_back(expert);
        }
        first += one.num_rows;
    }

    compute_experts(packed, x, row_of_slot, y, threads_);
    compute_experts(exact, x, row_of_slot, y, threads_);
    return {};
}

// y_ [slots, hidden_size] = gate of each slot · y_
void CpuRunner::apply_gates(const GroupDispatchView& group) {
    const std::size_t hidden = store_.shape().hidden_size;
    threads_.parallel_for(group.gates.size(), rows_grain, [&](std::size_t begin, std::size_t end) {
        for (std::size_t slot = begin; slot < end; ++slot)
            scale_by({y_.data() + slot * hidden, hidden}, half_to_float(group.gates[slot]));
    });
}

// sums_ [num_tokens, hidden_size] = the sum of the experts' answers for each row, in ascending
// order of experts.
void CpuRunner::sum_rows(const GroupDispatchView& group) {
    const std::size_t hidden = store_.shape().hidden_size;
    const std::uint32_t num_tokens = group.shape.num_tokens;
    const bool fixed = store_.arithmetic() == WorkerArithmetic::int8;

    first_of_row_.assign(num_tokens + 1, 0);
    for (const std::uint16_t row : group.rows) ++first_of_row_[row + 1];
    std::partial_sum(first_of_row_.begin(), first_of_row_.end(), first_of_row_.begin());
    slots_of_row_.resize(group.rows.size());
    std::vector<std::uint32_t> next(first_of_row_.begin(), first_of_row_.end() - 1);
    for (std::uint32_t slot = 0; slot < group.rows.size(); ++slot)
        slots_of_row_[next[group.rows[slot]]++] = slot;

    sums_.resize(std::max(sums_.size(), num_tokens * hidden));
    threads_.parallel_for(num_tokens, rows_grain, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row < end; ++row) {
            const std::span<float> sum{sums_.data() + row * hidden, hidden};
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (std::uint32_t i = first_of_row_[row]; i < first_of_row_[row + 1]; ++i) {
                const std::uint32_t slot = slots_of_row_[i];
                const std::span<const float> y{y_.data() + slot * hidden, hidden};
                const float gate = half_to_float(group.gates[slot]);
                fixed ? integer_add_scaled(sum, y, gate) : add_scaled_to(sum, y, gate);
            }
        }
    });
}

Status CpuRunner::take(const GroupDispatchView& group) {
    const GroupShape& shape = group.shape;
    if (shape.num_tokens > tokens_max_ || shape.num_pairs > pairs_max_)
        return Error{ErrorCode::num_tokens_range,
                     text("group of ", shape.num_tokens, " rows and ", shape.num_pairs,
                          " pairs, this worker takes ", tokens_max_, " and ", pairs_max_)};
    MOEX_CHECK(has_free_lane(), "a group without a free lane");

    const std::uint32_t hidden = store_.shape().hidden_size;
    const std::size_t values = std::size_t{shape.num_tokens} * hidden;
    x_.resize(std::max(x_.size(), values));
    if (!decode_rows(group.x_dtype(), group.x_bytes, hidden, std::span(x_).first(values)))
        return not_finite(shape);
    row_of_slot_.assign(group.rows.begin(), group.rows.end());
    return {};
}

void CpuRunner::answer(const GroupDispatchView& group, Done done) {
    const GroupShape& shape = group.shape;
    const std::uint32_t hidden = store_.shape().hidden_size;
    if (shape.unsummed)
        apply_gates(group);
    else
        sum_rows(group);
    const std::uint32_t rows_out = shape.unsummed ? shape.num_pairs : shape.num_tokens;
    const std::span<const float> answers =
        std::span(shape.unsummed ? y_ : sums_).first(std::size_t{rows_out} * hidden);
    const std::uint64_t y_bytes = wire_rows_bytes(shape.dtype, rows_out, hidden);
    frame_.resize(group_frame_bytes(y_bytes));
    const std::span<std::byte> y = std::span(frame_).subspan(group_result_y_offset, y_bytes);
    encode_rows(shape.dtype, answers, hidden, y);
    if (wire_rows_finite(shape.dtype, y, rows_out, hidden))
        deliver(ByteView(y), std::move(done));
    else
        deliver(not_finite(shape), std::move(done));
}

Status CpuRunner::run_group(const GroupDispatchView& group, Done done, std::span<std::byte>) {
    if (const Status taken = take(group); !taken.ok()) {
        if (taken.error().code != ErrorCode::non_finite) return taken;
        deliver(taken.error(), std::move(done));
        return {};
    }
    MOEX_TRY(compute(group.shape.layer, group.experts, group.shape.num_tokens, row_of_slot_));
    answer(group, std::move(done));
    return {};
}

Status CpuRunner::begin_passes(const GroupDispatchView& group) {
    MOEX_TRY(take(group));
    passes_of_ = &group;
    return {};
}

Status CpuRunner::run_pass(std::span<const std::uint32_t> experts, bool is_last, Done done) {
    const GroupDispatchView& group = *passes_of_;
    const GroupShape& shape = group.shape;
    std::uint32_t first_slot = 0, expert = 0;
    for (const std::uint32_t chosen : experts) {
        for (; expert < chosen; ++expert) first_slot += group.experts[expert].num_rows;
        const GroupExpert& one = group.experts[chosen];
        MOEX_TRY(compute(shape.layer, {&one, 1}, shape.num_tokens,
                         std::span(row_of_slot_).subspan(first_slot, one.num_rows), first_slot));
    }
    if (!is_last) {
        deliver(ByteView(), std::move(done));
        return {};
    }
    answer(group, std::move(done));
    passes_of_ = nullptr;
    return {};
}

Status CpuRunner::run_single(Unit unit, std::span<const float> x, Done done) {
    const std::uint32_t hidden = store_.shape().hidden_size;
    const auto num_tokens = static_cast<std::uint32_t>(x.size() / hidden);
    if (num_tokens > tokens_max_)
        return Error{ErrorCode::num_tokens_range,
                     text(num_tokens, " rows in one call, this worker takes ", tokens_max_)};
    if (!has_free_lane()) return Error{ErrorCode::overloaded, "a call is running"};

    x_.assign(x.begin(), x.end());
    row_of_slot_.resize(num_tokens);
    std::iota(row_of_slot_.begin(), row_of_slot_.end(), 0u);
    const GroupExpert expert{unit.expert, static_cast<std::uint16_t>(num_tokens)};
    MOEX_TRY(compute(unit.layer, {&expert, 1}, num_tokens, row_of_slot_));

    const ByteView y = std::as_bytes(std::span(y_).first(x.size()));
    if (wire_rows_finite(Dtype::f32, y, num_tokens, hidden))
        deliver(y, std::move(done));
    else
        deliver(Error{ErrorCode::non_finite, "an answer is not finite"}, std::move(done));
    return {};
}

// Delivers the answer from a timer's callback. `y` is a view of frame_ or y_, so no other group
// starts before the delivery.
void CpuRunner::deliver(Result<ByteView> y, Done done) {
    ++delivering_;
    platform_.set_timer(
        0, [this, life = life_.watch(), y = std::move(y), done = std::move(done)]() mutable {
            if (!life.alive()) return;
            --delivering_;
            done(std::move(y));
        });
}

}  // namespace moex
