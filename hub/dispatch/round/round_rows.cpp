#include "hub/dispatch/round/round_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hub/dispatch/round/row_math.h"
#include "protocol/check.h"

namespace moex {

RoundRows RowReader::read(const ExpertBatch& batch) const {
    const std::uint32_t num_tokens = batch.num_tokens, hidden_size = batch.hidden_size;
    const std::size_t num_values = std::size_t{num_tokens} * hidden_size;
    MOEX_CHECK(batch.x.size() >= num_values,
               text("x has ", batch.x.size(), " values of ", num_values));

    const std::shared_ptr<std::vector<float>> x(new std::vector<float>(memory_->take()),
                                                [memory = memory_](std::vector<float>* done) {
                                                    memory->give(std::move(*done));
                                                    delete done;
                                                });
    x->assign(batch.x.begin(), batch.x.begin() + static_cast<std::ptrdiff_t>(num_values));

    RoundRows rows{.x = x};
    rows.x_rms.resize(num_tokens);
    rows.row_order.reserve(num_tokens);
    // rows with values beyond the range of the wire's dtype; they are sent as bf16, in blocks of
    // their own
    std::vector<std::uint32_t> wide_rows;
    for (std::uint32_t row = 0; row < num_tokens; ++row) {
        const std::span<float> values(x->data() + std::size_t{row} * hidden_size, hidden_size);
        const double sum = square_sum(values.data(), hidden_size);
        if (!std::isfinite(sum)) {
            rows.status = Error{ErrorCode::invalid_argument,
                                text("layer ", batch.layer, ": row ", row, " of x is not finite")};
            return rows;
        }
        rows.x_rms[row] = std::sqrt(sum / std::max(1u, hidden_size));

        const Dtype dtype = rounding_.dtype_of(values);
        (dtype == rounding_.wire_dtype ? rows.row_order : wide_rows).push_back(row);
        if (rounding_.deterministic) round_rows(dtype, values, hidden_size);
    }
    rows.num_narrow_rows = static_cast<std::uint32_t>(rows.row_order.size());
    rows.row_order.insert(rows.row_order.end(), wide_rows.begin(), wide_rows.end());

    const std::vector<Dtype> usual = shared_->encodings.next();
    const auto make = [&](Dtype dtype) {
        rows.encodings.push_back(shared_->pool->encode(dtype, *x, hidden_size));
    };
    if (rows.num_narrow_rows > 0) std::ranges::for_each(usual, make);
    // Encode wide rows in advance only if a connected worker uses encodings at all.
    if (!wide_rows.empty() && !usual.empty() && !rows.has_encoding(Dtype::bf16)) make(Dtype::bf16);
    return rows;
}

void RowReader::travels(Dtype dtype, bool x_int8) const {
    // bf16 is not counted for wide rows: they are recognised in each batch by their values
    if (dtype == rounding_.wire_dtype) shared_->encodings.use(x_int8 ? Dtype::int8 : dtype);
}

void RowReader::Encodings::use(Dtype dtype) {
    const std::lock_guard lock(mutex_);
    used_[static_cast<std::size_t>(dtype)] = true;
}

std::vector<Dtype> RowReader::Encodings::next() {
    // A dtype that every second round needs is always encoded in advance. A dtype that is no longer
    // needed is encoded in vain a few more times.
    constexpr int gain = 2, credit_max = 8;
    const std::lock_guard lock(mutex_);
    const bool any_used = std::ranges::find(used_, true) != used_.end();
    std::vector<Dtype> encodings;
    for (std::size_t i = 0; i < num_encodings; ++i) {
        if (any_used)
            credit_[i] = static_cast<std::uint8_t>(
                std::clamp(credit_[i] + (used_[i] ? gain : -1), 0, credit_max));
        if (credit_[i] > 0) encodings.push_back(static_cast<Dtype>(i));
    }
    used_.fill(false);
    return encodings;
}

}  // namespace moex
