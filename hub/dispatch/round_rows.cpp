#include "hub/dispatch/round_rows.h"

#include <cmath>
#include <utility>

#include "hub/dispatch/row_math.h"
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
    std::vector<std::uint32_t> wide_rows;  // beyond the wire's dtype: bf16, in their own blocks
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

    const int usual = shared_->usual;
    if (usual >= 0 && num_tokens > 0)
        rows.forms.push_back(shared_->pool->encode(static_cast<Dtype>(usual), *x, hidden_size));
    return rows;
}

}  // namespace moex
