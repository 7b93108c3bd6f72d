#include "hub/dispatch/round/round.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "protocol/half.h"

namespace moex {
void CallSlice::reset() {
    // Keep the vectors, to reuse their memory.
    CallSlice fresh;
    std::swap(fresh.live, live);
    std::swap(fresh.tried, tried);
    fresh.live.clear();
    fresh.tried.clear();
    *this = std::move(fresh);
}

bool CallSlice::was_tried(WorkerId worker) const {
    return std::find(tried.begin(), tried.end(), worker) != tried.end();
}

Status Round::open(const ExpertBatch& batch, RoundRows rows, const RoundOptions& options,
                   std::span<const std::uint32_t> slice_pairs_max) {
    layer = batch.layer;
    num_tokens = batch.num_tokens;
    hidden_size = batch.hidden_size;
    top_k = batch.top_k;
    copies = options.copies;
    const bool hub_multiplies_gates = options.rounding.hub_multiplies_gates();
    unsummed = options.rounding.deterministic || copies > 1 || hub_multiplies_gates;
    attempts.clear();
    answers.clear();
    waiting = false;
    wait_until = retry_at = give_up_at = again_at = std::nullopt;
    num_retries = num_unpaid = 0;
    patience.assign(batch.patience.begin(), batch.patience.end());
    patient_until.reset();
    for (const RowPatience& one : patience)
        patient_until = std::min(patient_until.value_or(TimePoint::max()), started + one.wait);

    MOEX_TRY(std::move(rows.status));
    x = std::move(rows.x);
    x_rms = std::move(rows.x_rms);
    row_order = std::move(rows.row_order);
    encodings = std::move(rows.encodings);
    const std::uint32_t num_narrow_rows = rows.num_narrow_rows;

    const std::uint32_t block_rows = std::max(
        1u, std::min({options.limits.num_tokens_max, options.limits.num_pairs_max, 65535u}));
    pair_row.resize(std::size_t{num_tokens} * top_k);
    pair_gate.resize(pair_row.size());
    wire_gate.resize(pair_row.size());
    pair_factor.resize(hub_multiplies_gates ? pair_row.size() : 0);
    num_slices_cut = 0;
    for (std::uint32_t begin = 0, end = 0, block = 0; begin < num_tokens; begin = end, ++block) {
        const bool wide = begin >= num_narrow_rows;
        end = std::min(wide ? num_tokens : num_narrow_rows, begin + block_rows);
        cut_block(batch, options,
                  {.number = block,
                   .row_begin = begin,
                   .row_end = end,
                   .dtype = wide ? Dtype::bf16 : options.rounding.wire_dtype},
                  slice_pairs_max);
    }
    slices.resize(num_slices_cut);
    slices_left = static_cast<std::uint32_t>(num_slices_cut);
    return {};
}

// Cuts one block of rows into slices, and sorts the block's pairs by (expert, row).
void Round::cut_block(const ExpertBatch& batch, const RoundOptions& options, const Block& block,
                      std::span<const std::uint32_t> slice_pairs_max) {
    const std::uint32_t num_experts = options.limits.num_experts;
    const auto rows = std::span(row_order).subspan(block.row_begin,
                                                   block.row_end - block.row_begin);

    pair_begin_of.assign(num_experts + 1, 0);
    for (const std::uint32_t row : rows)
        for (const std::uint16_t expert :
             batch.expert_ids.subspan(std::size_t{row} * top_k, top_k)) {
            MOEX_CHECK(expert < num_experts,
                       text("expert ", expert, " of ", num_experts, " in layer ", layer));
            ++pair_begin_of[expert + 1];
        }

    pair_begin_of[0] = block.row_begin * top_k;
    for (std::uint32_t expert = 0; expert < num_experts; ++expert) {
        const std::uint32_t count = pair_begin_of[expert + 1];
        pair_begin_of[expert + 1] += pair_begin_of[expert];
        if (count == 0) continue;

        // Cut the expert's pairs into slices that are small enough for some holder of the expert.
        const std::uint32_t stretch = slice_pairs_max.empty()
                                          ? count
                                          : std::max(1u, slice_pairs_max[expert]);
        for (std::uint32_t at = 0; at < count; at += stretch) {
            if (slices.size() <= num_slices_cut) slices.emplace_back();
            CallSlice& slice = slices[num_slices_cut++];
            slice.reset();
            slice.unit = options.unit_base + expert;
            slice.expert = static_cast<std::uint16_t>(expert);
            slice.block = block.number;
            slice.dtype = block.dtype;
            slice.pair_begin = pair_begin_of[expert] + at;
            slice.pair_end = slice.pair_begin + std::min(stretch, count - at);
        }
    }

    for (const std::uint32_t row : rows)
        for (std::uint32_t k = 0; k < top_k; ++k) {
            const std::size_t i = std::size_t{row} * top_k + k;
            const std::uint32_t pair = pair_begin_of[batch.expert_ids[i]]++;
            const float gate = batch.expert_weights[i];
            pair_row[pair] = static_cast<std::uint16_t>(row);
            if (options.rounding.hub_multiplies_gates()) {
                pair_gate[pair] = 1;
                pair_factor[pair] = gate;
            } else {
                pair_gate[pair] = options.rounding.deterministic
                                      ? options.rounding.rounded_gate(gate)
                                      : gate;
            }
            wire_gate[pair] = float_to_half(pair_gate[pair]);
        }
}

void Round::fill_group(Attempt& attempt, GroupDispatch& out) {
    // Mark the rows that the slices use, then list them in ascending order.
    row_bits.assign((num_tokens + 63) / 64, 0);
    attempt.num_pairs = 0;
    for (const std::uint32_t index : attempt.slices) {
        const CallSlice& slice = slices[index];
        for (std::uint32_t pair = slice.pair_begin; pair < slice.pair_end; ++pair)
            row_bits[pair_row[pair] / 64] |= std::uint64_t{1} << pair_row[pair] % 64;
        attempt.num_pairs += slice.num_pairs();
    }

    attempt.tokens.clear();
    row_place.resize(num_tokens);
    for (std::uint32_t word = 0; word < row_bits.size(); ++word)
        for (std::uint64_t bits = row_bits[word]; bits != 0; bits &= bits - 1) {
            const std::uint32_t row = 64 * word +
                                      static_cast<std::uint32_t>(std::countr_zero(bits));
            row_place[row] = static_cast<std::uint16_t>(attempt.tokens.size());
            attempt.tokens.push_back(row);
        }

    out.experts.clear();
    out.rows.resize(attempt.num_pairs);
    out.gates.resize(attempt.num_pairs);
    std::size_t at = 0;
    for (const std::uint32_t index : attempt.slices) {
        const CallSlice& slice = slices[index];
        if (out.experts.empty() || out.experts.back().expert != slice.expert)
            out.experts.push_back(GroupExpert{.expert = slice.expert});
        GroupExpert& expert = out.experts.back();
        expert.num_rows = static_cast<std::uint16_t>(expert.num_rows + slice.num_pairs());

        for (std::uint32_t pair = slice.pair_begin; pair < slice.pair_end; ++pair, ++at) {
            out.rows[at] = row_place[pair_row[pair]];
            out.gates[at] = wire_gate[pair];
        }
    }

    attempt.shape = GroupShape{.layer = static_cast<std::uint16_t>(layer),
                               .num_tokens = static_cast<std::uint32_t>(attempt.tokens.size()),
                               .hidden_dim = static_cast<std::uint16_t>(hidden_size),
                               .dtype = slices[attempt.slices.front()].dtype,
                               .unsummed = unsummed,
                               .num_pairs = attempt.num_pairs,
                               .num_experts = static_cast<std::uint16_t>(out.experts.size())};

    out.shape = attempt.shape;
}

const std::shared_ptr<const WireRows>& Round::rows_in(Dtype dtype, const RowReader& reader) {
    for (const auto& encoding : encodings)
        if (encoding->dtype == dtype) return encoding;
    return encodings.emplace_back(reader.pool()->encode(dtype, *x, hidden_size));
}

WireFrame Round::encode(const Attempt& attempt, const GroupDispatch& group, bool lz4,
                        const RowReader& reader, const std::shared_ptr<RowsHeld>& held) {
    reader.travels(group.shape.dtype, group.x_int8);
    const std::shared_ptr<const WireRows>& rows = rows_in(x_dtype_of(group.shape, group.x_int8),
                                                          reader);
    if (!lz4)
        if (auto lent = reader.pool()->lend(rows, attempt.tokens.size(), held))
            return gather_group_dispatch(group, std::move(lent), attempt.tokens);
    return encode_group_dispatch(group, *rows, attempt.tokens, lz4);
}

void Round::copy_rows(const Attempt& attempt, std::vector<float>& out) const {
    out.resize(attempt.tokens.size() * hidden_size);
    for (std::size_t i = 0; i < attempt.tokens.size(); ++i)
        std::copy_n(x->data() + std::size_t{attempt.tokens[i]} * hidden_size, hidden_size,
                    out.data() + i * hidden_size);
}

void Round::begin(const Attempt& attempt) {
    for (const std::uint32_t index : attempt.slices) slices[index].live.push_back(attempt.id);
}

void Round::end(const Attempt& attempt) {
    for (const std::uint32_t index : attempt.slices) {
        std::erase(slices[index].live, attempt.id);
        if (attempt.late) --slices[index].num_late;
    }
    std::erase(attempts, attempt.id);
}

void Round::set_late(Attempt& attempt) {
    if (std::exchange(attempt.late, true)) return;
    for (const std::uint32_t index : attempt.slices) ++slices[index].num_late;
}

std::uint32_t Round::accept(const Attempt& attempt, std::vector<float> y, bool answer_unsummed,
                            Evidence evidence) {
    const auto num_new = static_cast<std::uint32_t>(
        std::count_if(attempt.slices.begin(), attempt.slices.end(),
                      [&](std::uint32_t index) { return !slices[index].done; }));
    if (num_new == 0) return 0;

    const auto number = static_cast<std::int32_t>(answers.size());
    std::vector<std::int32_t> replaced;
    std::uint32_t pair = 0;
    for (const std::uint32_t index : attempt.slices) {
        CallSlice& slice = slices[index];
        if (!slice.done || !answer_unsummed) {
            if (slice.done) replaced.push_back(slice.answer);
            slice.done = true;
            slice.answer = number;
            slice.answer_pair = pair;
        }
        pair += slice.num_pairs();
    }

    for (const std::int32_t old : replaced) {
        RoundAnswer& answer = answers[static_cast<std::size_t>(old)];
        if (answer.unsummed) continue;  // the other slices of an unsummed answer remain usable
        for (const std::uint32_t index : answer.slices)
            MOEX_CHECK(slices[index].answer == number, "a summed answer may not be used in part");
        answer.slices.clear();
    }

    slices_left -= num_new;
    answers.push_back(RoundAnswer{.worker = attempt.worker,
                                  .evidence = evidence,
                                  .unsummed = answer_unsummed,
                                  .first_slice = attempt.slices.front(),
                                  .slices = attempt.slices,
                                  .tokens = attempt.tokens,
                                  .y = std::move(y)});

    return num_new;
}

std::uint32_t Round::reject_answers_of(WorkerId worker) {
    std::uint32_t num_open = 0;
    for (CallSlice& slice : slices) {
        if (!slice.done || answers[static_cast<std::size_t>(slice.answer)].worker != worker)
            continue;
        slice.done = false;
        slice.answer = -1;
        ++num_open;
    }

    for (RoundAnswer& answer : answers)
        if (answer.worker == worker) answer.slices.clear();

    slices_left += num_open;
    return num_open;
}

bool Round::covered(const Attempt& attempt) const {
    return std::all_of(attempt.slices.begin(), attempt.slices.end(),
                       [&](std::uint32_t index) { return slices[index].done; });
}

bool Round::ends_without_rest(TimePoint now) {
    if (!patient_until || now < *patient_until) return false;
    num_late.assign(patience.size(), 0);
    const auto may_lack = [&](std::uint32_t row) {
        const auto found = std::ranges::lower_bound(patience, row, {}, &RowPatience::row);
        return found != patience.end() && found->row == row && started + found->wait <= now &&
               ++num_late[static_cast<std::size_t>(found - patience.begin())] <= found->pairs_max;
    };
    for (const CallSlice& slice : slices)
        for (std::uint32_t pair = slice.pair_begin; !slice.done && pair < slice.pair_end; ++pair)
            if (!may_lack(pair_row[pair])) return false;
    return true;
}

void Round::close() {
    answers.clear();
    encodings.clear();
    x.reset();
}

RoundSum Round::finish(ExpertAnswer& provenance) {
    RoundSum sum(num_tokens, hidden_size);
    for (RoundAnswer& answer : answers) sum.keep(std::move(answer.y));
    provenance.rows.assign(num_tokens, RowProvenance{});

    for (const CallSlice& slice : slices) {  // the order gives ascending experts within each row
        for (std::uint32_t pair = slice.pair_begin; !slice.done && pair < slice.pair_end; ++pair) {
            provenance.late.push_back({.row = pair_row[pair], .expert = slice.expert});
            ++provenance.rows[pair_row[pair]].pairs_late;
        }
        if (!slice.done) continue;

        const auto number = static_cast<std::uint32_t>(slice.answer);
        const RoundAnswer& answer = answers[number];
        const bool local = answer.worker == 0;
        const std::span<const std::uint16_t> rows(pair_row.data() + slice.pair_begin,
                                                  slice.num_pairs());
        if (answer.unsummed)
            sum.add(number, slice.answer_pair, rows,
                    pair_factor.empty() ? std::span<const float>()
                                        : std::span<const float>(pair_factor)
                                              .subspan(slice.pair_begin, slice.num_pairs()));

        const std::uint16_t remote = !local, here = local, hedged = slice.hedged,
                            verified = !local && answer.evidence == Evidence::verified,
                            proven = !local && answer.evidence == Evidence::proven;
        for (const std::uint16_t row : rows) {
            RowProvenance& from = provenance.rows[row];
            from.pairs_remote += remote;
            from.pairs_local += here;
            from.pairs_hedged += hedged;
            from.pairs_verified += verified;
            from.pairs_proven += proven;
        }
    }

    if (!unsummed) {
        // Add the sums in the order of their first slice, not in the order of arrival. The result
        // then does not depend on which worker was faster.
        std::vector<const RoundAnswer*> summed;
        for (const RoundAnswer& answer : answers)
            if (!answer.unsummed && !answer.slices.empty()) summed.push_back(&answer);

        std::sort(summed.begin(), summed.end(), [](const RoundAnswer* a, const RoundAnswer* b) {
            return a->first_slice < b->first_slice;
        });

        for (const RoundAnswer* answer : summed)
            sum.add(static_cast<std::uint32_t>(answer - answers.data()), 0,
                    std::span<const std::uint32_t>(answer->tokens));
    }

    name_workers(provenance);
    return sum;
}

// Lists the workers with answers that counted, for the whole round and for each of its rows.
void Round::name_workers(ExpertAnswer& provenance) const {
    std::size_t num_names = 0;
    for (const RoundAnswer& answer : answers) num_names += answer.tokens.size();
    provenance.row_workers.reserve(num_names);
    // for each row: 1 + the number of the latest answer that was listed for it
    std::vector<std::size_t> named(num_tokens);
    for (std::size_t a = 0; a < answers.size(); ++a) {
        const RoundAnswer& answer = answers[a];
        if (answer.worker == 0) continue;

        for (const std::uint32_t index : answer.slices) {
            const CallSlice& slice = slices[index];
            // an answer of another worker was first for this slice
            if (slice.answer != static_cast<std::int32_t>(a)) continue;
            if (provenance.workers.empty() || provenance.workers.back() != answer.worker)
                provenance.workers.push_back(answer.worker);

            for (std::uint32_t pair = slice.pair_begin; pair < slice.pair_end; ++pair) {
                const std::uint32_t row = pair_row[pair];
                if (std::exchange(named[row], a + 1) != a + 1)
                    provenance.row_workers.push_back({.row = row, .worker = answer.worker});
            }
        }
    }

    std::sort(provenance.workers.begin(), provenance.workers.end());
    provenance.workers.erase(std::unique(provenance.workers.begin(), provenance.workers.end()),
                             provenance.workers.end());
}

bool within_norm_bound(const Round& round, const Attempt& attempt,
                       std::span<const double> square_sums, bool unsummed, double norm_bound) {
    const auto fits = [&](std::size_t y_row, std::size_t x_row) {
        // false for NaN
        return std::isfinite(square_sums[y_row]) &&
               std::sqrt(square_sums[y_row] / static_cast<double>(round.hidden_size)) <=
                   norm_bound * std::max(1.0, round.x_rms[x_row]);
    };

    if (!unsummed) {
        for (std::size_t i = 0; i < attempt.tokens.size(); ++i)
            if (!fits(i, attempt.tokens[i])) return false;
        return true;
    }

    std::size_t y_row = 0;
    for (const std::uint32_t index : attempt.slices) {
        const CallSlice& slice = round.slices[index];
        for (std::uint32_t pair = slice.pair_begin; pair < slice.pair_end; ++pair)
            if (!fits(y_row++, round.pair_row[pair])) return false;
    }

    return true;
}

}  // namespace moex
