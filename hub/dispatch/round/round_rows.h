// The rows of a batch in the state that a round needs: copied, with their norms computed, and
// encoded in the dtype in which they will most likely be sent. The engine's thread, which owns the
// batch, does this work, so that the dispatch strand need not.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "hub/dispatch/round/answer_memory.h"
#include "hub/dispatch/round/wire_rows_pool.h"
#include "hub/engine/expert_backend.h"

namespace moex {

struct RoundRows {
    // invalid_argument if a value of x is not finite; the other fields are then incomplete
    Status status;
    // [num_tokens, hidden_size], with the values that the experts will receive
    std::shared_ptr<const std::vector<float>> x;
    std::vector<double> x_rms;  // [num_tokens]: root mean square of each row
    // [num_tokens]: row numbers, rows of the wire's dtype first
    std::vector<std::uint32_t> row_order;
    std::uint32_t num_narrow_rows = 0;  // number of rows that are sent in the wire's dtype
    // encodings of all rows, at most one per dtype
    std::vector<std::shared_ptr<const WireRows>> encodings;

    bool has_encoding(Dtype dtype) const {
        return std::ranges::any_of(encodings,
                                   [&](const auto& encoding) { return encoding->dtype == dtype; });
    }
};

class RowReader {
  public:
    RowReader(const ExpertRounding& rounding, std::shared_ptr<AnswerMemory> memory,
              std::uint64_t gathered_bytes_min = WireRowsPool::gathered_bytes_min_default)
        : rounding_(rounding),
          memory_(std::move(memory)),
          shared_(std::make_shared<Shared>(gathered_bytes_min)) {}

    // Reads the rows of a batch. The result does not refer to the x of the batch. Any thread may
    // call it.
    RoundRows read(const ExpertBatch& batch) const;

    // Notes that a group with this dtype was sent, with x either as int8 or in the same dtype.
    // read() encodes new rows in recently used dtypes before a group needs them. Any thread may
    // call it.
    void travels(Dtype dtype, bool x_int8) const;
    const std::shared_ptr<WireRowsPool>& pool() const { return shared_->pool; }

  private:
    // Remembers the dtypes in which rows were sent recently. A swarm may need several dtypes, in
    // one round or in alternating rounds. Each dtype is encoded in advance for a while after its
    // last use.
    class Encodings {
      public:
        void use(Dtype dtype);
        // Returns the dtypes in which the next batch is encoded in advance.
        std::vector<Dtype> next();

      private:
        static constexpr std::size_t num_encodings = static_cast<std::size_t>(Dtype::f32) + 1;
        std::mutex mutex_;
        // indexed by Dtype: true if the dtype was used since the last next()
        std::array<bool, num_encodings> used_{};
        std::array<std::uint8_t, num_encodings> credit_{};
    };
    struct Shared {
        explicit Shared(std::uint64_t gathered_bytes_min)
            : pool(std::make_shared<WireRowsPool>(gathered_bytes_min)) {}
        Encodings encodings;
        std::shared_ptr<WireRowsPool> pool;
    };
    ExpertRounding rounding_;
    std::shared_ptr<AnswerMemory> memory_;
    std::shared_ptr<Shared> shared_;
};

}  // namespace moex
