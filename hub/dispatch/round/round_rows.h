// The rows of a batch in the state that a round needs: copied, measured, and encoded in the dtype
// in which they will most likely be sent. The engine's thread, which has the batch, does this work,
// so that the strand need not.
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
    // invalid_argument where a value of x is not finite; then the other fields are incomplete
    Status status;
    // [num_tokens, hidden_size], as experts will receive it
    std::shared_ptr<const std::vector<float>> x;
    std::vector<double> x_rms;             // [num_tokens]
    std::vector<std::uint32_t> row_order;  // [num_tokens], rows of the wire's dtype first
    std::uint32_t num_narrow_rows = 0;     // number of rows of the wire's dtype
    // all rows, at most one encoding per dtype
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

    // Any thread. The result does not refer to the batch's x.
    RoundRows read(const ExpertBatch& batch) const;

    // Notes that a group with this dtype was sent, with x as int8 or in the same dtype. read()
    // encodes new rows in recently used dtypes before a group needs them. Any thread.
    void travels(Dtype dtype, bool x_int8) const;
    const std::shared_ptr<WireRowsPool>& pool() const { return shared_->pool; }

  private:
    // Remembers the dtypes in which rows were sent recently. A swarm may need several, in one round
    // or in alternating rounds; each one is produced for a while after its last use.
    class Encodings {
      public:
        void use(Dtype dtype);
        // Returns the dtypes to encode now.
        std::vector<Dtype> next();

      private:
        static constexpr std::size_t num_encodings = static_cast<std::size_t>(Dtype::f32) + 1;
        std::mutex mutex_;
        std::array<bool, num_encodings> used_{};  // by Dtype: used since the last next()
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
