// A batch's rows as a round needs them: copied, measured and in the form in which they will most
// likely travel. Read by who has the batch, the engine's thread, so that the strand need not.
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
    Status status;  // invalid_argument where a value of x is not finite; then the rest is in part
    // [num_tokens, hidden_size], as it will be computed with
    std::shared_ptr<const std::vector<float>> x;
    std::vector<double> x_rms;             // [num_tokens]
    std::vector<std::uint32_t> row_order;  // [num_tokens], rows of the wire's dtype first
    std::uint32_t num_narrow_rows = 0;     // of these
    std::vector<std::shared_ptr<const WireRows>> encodings;  // of all rows, each dtype once at most

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

    // Any thread. The batch's x is not looked at any more afterwards.
    RoundRows read(const ExpertBatch& batch) const;

    // A group with such answers goes out, its x as int8 or in the same form: rows that come are
    // made in the encodings of late before anybody asks. Any thread.
    void travels(Dtype dtype, bool x_int8) const;
    const std::shared_ptr<WireRowsPool>& pool() const { return shared_->pool; }

  private:
    // In which encodings rows of the wire's dtype travelled. A swarm may want several of them, all
    // in one round or in turns: each is made for a while after it was needed.
    class Encodings {
      public:
        void use(Dtype dtype);
        // Those to be made now.
        std::vector<Dtype> next();

      private:
        static constexpr std::size_t num_encodings = static_cast<std::size_t>(Dtype::f32) + 1;
        std::mutex mutex_;
        std::array<bool, num_encodings> used_{};  // by Dtype, since next()
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
