// A batch's rows as a round needs them: copied, measured and in the form in which they will most
// likely travel. Read by who has the batch, the engine's thread, so that the strand need not.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "hub/dispatch/answer_memory.h"
#include "hub/dispatch/wire_rows_pool.h"
#include "hub/engine/expert_backend.h"

namespace moex {

struct RoundRows {
    Status status;  // invalid_argument where a value of x is not finite; then the rest is in part
    // [num_tokens, hidden_size], as it will be computed with
    std::shared_ptr<const std::vector<float>> x;
    std::vector<double> x_rms;             // [num_tokens]
    std::vector<std::uint32_t> row_order;  // [num_tokens], rows of the wire's dtype first
    std::uint32_t num_narrow_rows = 0;     // of these
    std::vector<std::shared_ptr<const WireRows>> forms;  // of all rows, each dtype once at most
};

class RowReader {
  public:
    RowReader(const ExpertRounding& rounding, std::shared_ptr<AnswerMemory> memory)
        : rounding_(rounding),
          memory_(std::move(memory)) {}

    // Any thread. The batch's x is not looked at any more afterwards.
    RoundRows read(const ExpertBatch& batch) const;

    // The form in which rows went to a worker last: the next ones are made in that before anybody
    // asks for it.
    void set_usual_form(Dtype dtype) const { shared_->usual = static_cast<int>(dtype); }
    const std::shared_ptr<WireRowsPool>& pool() const { return shared_->pool; }

  private:
    struct Shared {
        std::atomic<int> usual = -1;  // a Dtype; -1: nothing has travelled yet
        std::shared_ptr<WireRowsPool> pool = std::make_shared<WireRowsPool>();
    };
    ExpertRounding rounding_;
    std::shared_ptr<AnswerMemory> memory_;
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace moex
