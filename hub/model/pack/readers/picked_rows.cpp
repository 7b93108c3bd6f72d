#include "hub/model/pack/readers/picked_rows.h"

#include <utility>

namespace moex {
namespace {

TensorInfo info_of(const TensorInfo& from, std::string name, std::uint64_t num_rows) {
    TensorInfo info = from;
    const std::uint64_t all = from.num_elements() / from.row_size();
    info.name = std::move(name);
    info.shape = {num_rows, from.row_size()};
    info.int4_group = 0;
    info.is_mxfp4 = false;
    info.stored_bytes = from.stored_bytes * num_rows / all;
    return info;
}

class PickedRows : public TensorReader {
  public:
    PickedRows(std::shared_ptr<const TensorReader> from, std::string name,
               std::vector<std::uint32_t> rows)
        : TensorReader(info_of(from->info(), std::move(name), rows.size())),
          from_(std::move(from)),
          rows_(std::move(rows)) {}

  private:
    Status decode_rows(std::uint64_t first_row, std::span<float> out,
                       Bytes& scratch) const override {
        const std::uint64_t row_size = info().row_size(), count = out.size() / row_size;
        for (std::uint64_t row = 0, next = 0; row < count; row = next) {
            // rows that are adjacent in the other tensor, too, are read together
            const std::uint32_t from = rows_[first_row + row];
            for (next = row + 1; next < count; ++next)
                if (rows_[first_row + next] != from + (next - row)) break;
            MOEX_TRY(from_->read_rows(from, out.subspan(row * row_size, (next - row) * row_size),
                                      scratch));
        }
        return {};
    }

    std::shared_ptr<const TensorReader> from_;
    std::vector<std::uint32_t> rows_;
};

}  // namespace

std::unique_ptr<TensorReader> pick_rows(std::shared_ptr<const TensorReader> from, std::string name,
                                        std::vector<std::uint32_t> rows) {
    return std::make_unique<PickedRows>(std::move(from), std::move(name), std::move(rows));
}

}  // namespace moex
