#include "hub/foresight/shadow/shadow_experts.h"

#include <algorithm>
#include <numeric>

#include "hub/engine/kernels/expert_round.h"
#include "protocol/tensor_format.h"

namespace moex {
namespace {

class DoneRound : public ExpertRound {
  public:
    explicit DoneRound(ExpertAnswer answer) : answer_(std::move(answer)) {}
    Result<ExpertAnswer> wait(std::stop_token) override { return std::move(answer_); }

  private:
    ExpertAnswer answer_;
};

// Packs rows of 2 or 3 bits as INT4 rows with the same codes, scales and zeros.
void pack_narrow(std::byte* to, const PackedMatrix& shape, const ShadowRow& row, ByteView rows) {
    const std::uint32_t words = shape.num_in / 8, groups = row.num_groups();
    std::vector<std::uint32_t> codes(std::size_t{shape.num_out} * words),
        scale_zero(std::size_t{shape.num_out} * groups);
    std::vector<std::uint8_t> unpacked(shape.num_in);

    for (std::uint32_t out = 0; out < shape.num_out; ++out) {
        const ByteView one = rows.subspan(out * row.size_bytes(), row.size_bytes());
        unpack_shadow_codes(row, one, unpacked);
        for (std::uint32_t in = 0; in < shape.num_in; ++in)
            codes[std::size_t{out} * words + in / 8] |= std::uint32_t{unpacked[in]}
                                                        << (4 * (in % 8));
        for (std::uint32_t group = 0; group < groups; ++group) {
            const ShadowScale by = shadow_scale(row, one, group);
            scale_zero[std::size_t{out} * groups + group] = pack_scale_zero(float_to_half(by.scale),
                                                                            float_to_half(by.zero));
        }
    }
    pack_int4(
        to, shape,
        Int4Matrix{codes.data(), scale_zero.data(), shape.num_out, shape.num_in, shape.group_size},
        0, shape.num_panels());
}

void pack_wide(std::byte* to, const PackedMatrix& shape, const ShadowRow& row, ByteView rows) {
    std::vector<float> weights(std::size_t{shape.num_out} * shape.num_in);
    for (std::uint32_t out = 0; out < shape.num_out; ++out)
        dequantize_shadow_row(
            row, rows.subspan(out * row.size_bytes(), row.size_bytes()),
            std::span(weights).subspan(std::size_t{out} * shape.num_in, shape.num_in));
    pack_int8(to, shape, {weights.data(), WeightDtype::f32, shape.num_out, shape.num_in}, 0,
              shape.num_panels());
}

void pack(std::byte* to, const PackedMatrix& shape, const ShadowRow& row, ByteView rows) {
    row.has_zeros() ? pack_narrow(to, shape, row, rows) : pack_wide(to, shape, row, rows);
}

}  // namespace

ShadowExperts::ShadowExperts(const ShadowPackage& shadow, ThreadPool& threads) : threads_(threads) {
    const ShadowRecord& record = shadow.record();
    const ExpertShape& shape = record.shape;
    const PackedDtype dtype = record.up_row().has_zeros() ? PackedDtype::int4 : PackedDtype::int8;
    up_ = {.dtype = dtype,
           .num_out = 2 * shape.moe_intermediate_size,
           .num_in = shape.hidden_size,
           .group_size = shape.group_size};
    down_ = {.dtype = dtype,
             .num_out = shape.hidden_size,
             .num_in = shape.moe_intermediate_size,
             .group_size = shape.group_size};

    for (const auto& [layer, file] : record.layers) {
        layers_.resize(layer + 1);
        layers_[layer] = AlignedBuffer(record.num_experts *
                                       (up_.size_bytes() + down_.size_bytes()));
        const auto load_some = [&, layer = layer](std::size_t begin, std::size_t end) {
            for (std::size_t expert = begin; expert < end; ++expert)
                load(shadow, layer, static_cast<std::uint32_t>(expert));
        };
        threads_.parallel_for(record.num_experts, 1, load_some);
    }
}

void ShadowExperts::load(const ShadowPackage& shadow, std::uint32_t layer, std::uint32_t expert) {
    const ShadowRecord& record = shadow.record();
    const ByteView rows = shadow.expert(layer, expert);
    const std::uint64_t up_bytes = up_.num_out * record.up_row().size_bytes();
    pack(at(layer, expert), up_, record.up_row(), rows.first(up_bytes));
    pack(at(layer, expert) + up_.size_bytes(), down_, record.down_row(), rows.subspan(up_bytes));
}

void ShadowExperts::run(const ExpertBatch& batch) const {
    const std::uint32_t num_pairs = batch.num_tokens * batch.top_k;
    std::vector<std::uint32_t> pair_of_slot(num_pairs), row_of_slot(num_pairs),
        slot_of_pair(num_pairs);
    std::iota(pair_of_slot.begin(), pair_of_slot.end(), 0u);
    std::stable_sort(pair_of_slot.begin(), pair_of_slot.end(),
                     [&](std::uint32_t a, std::uint32_t b) {
                         return batch.expert_ids[a] < batch.expert_ids[b];
                     });

    std::vector<PackedExpert> experts;
    for (std::uint32_t slot = 0; slot < num_pairs; ++slot) {
        const std::uint32_t pair = pair_of_slot[slot], expert = batch.expert_ids[pair];
        row_of_slot[slot] = pair / batch.top_k;
        slot_of_pair[pair] = slot;
        if (slot == 0 || expert != batch.expert_ids[pair_of_slot[slot - 1]]) {
            PackedExpert one{slot, 0, up_, down_};
            one.gate_up.data = at(batch.layer, expert);
            one.down.data = one.gate_up.data + up_.size_bytes();
            experts.push_back(one);
        }
        ++experts.back().count;
    }

    std::vector<float> answers(std::size_t{num_pairs} * batch.hidden_size);
    compute_experts(experts, {batch.x.data(), batch.hidden_size, batch.num_tokens}, row_of_slot,
                    answers.data(), threads_);

    for (std::uint32_t row = 0; row < batch.num_tokens; ++row) {
        const auto sum = batch.y.subspan(std::size_t{row} * batch.hidden_size, batch.hidden_size);
        std::fill(sum.begin(), sum.end(), 0.0f);

        const auto first = slot_of_pair.begin() + std::ptrdiff_t{row} * batch.top_k;
        // slots are numbered by ascending expert, so this sorts by expert
        std::sort(first, first + batch.top_k);
        for (auto slot = first; slot != first + batch.top_k; ++slot)
            integer_add_scaled(sum,
                               std::span(answers).subspan(std::size_t{*slot} * batch.hidden_size,
                                                          batch.hidden_size),
                               batch.expert_weights[pair_of_slot[*slot]]);
    }
}

std::unique_ptr<ExpertRound> ShadowExperts::submit(const ExpertBatch& batch) {
    const TimePoint started = now_steady();
    run(batch);
    ExpertAnswer answer;
    answer.rows.assign(batch.num_tokens,
                       RowProvenance{.pairs_local = static_cast<std::uint16_t>(batch.top_k)});
    answer.waited = now_steady() - started;
    return std::make_unique<DoneRound>(std::move(answer));
}

}  // namespace moex
