// The sum of a round's answers, not yet computed. The strand records which rows are added and in
// which order. The engine's thread adds the rows: it waits for the round and is idle until the
// round ends.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hub/dispatch/round/answer_memory.h"

namespace moex {

class RoundSum {
  public:
    RoundSum() = default;
    RoundSum(std::uint32_t num_tokens, std::uint32_t hidden_size)
        : num_tokens_(num_tokens),
          hidden_size_(hidden_size) {}
    RoundSum(RoundSum&&) = default;
    RoundSum& operator=(RoundSum&&) = default;

    // Stores `y`, an answer of any number of rows of hidden_size values, and returns its number for
    // add().
    std::uint32_t keep(std::vector<float> y);
    // Adds consecutive rows of the stored answer number `answer`, from `first_row` on, to the rows
    // `rows` of the round. The sum follows the order of these calls. Each row of the answer is
    // multiplied by its factor, if `factors` [rows.size()] is not empty; either all calls have
    // factors, or none.
    template <class Row>
    void add(std::uint32_t answer, std::uint32_t first_row, std::span<const Row> rows,
             std::span<const float> factors = {}) {
        const auto begin = static_cast<std::uint32_t>(rows_.size());
        rows_.insert(rows_.end(), rows.begin(), rows.end());
        factors_.insert(factors_.end(), factors.begin(), factors.end());
        parts_.push_back({answer, first_row, begin, static_cast<std::uint32_t>(rows_.size())});
    }
    // Sets the object to which the memory of the stored answers is returned in the end.
    void give_back_to(std::shared_ptr<AnswerMemory> memory) { kept_.memory = std::move(memory); }

    std::size_t num_values() const { return std::size_t{num_tokens_} * hidden_size_; }
    // Overwrites y [num_tokens, hidden_size] with the sum, in f32 and in the order of the calls of
    // add().
    void write(std::span<float> y) const;
    std::vector<float> values() const;

  private:
    struct Part {
        std::uint32_t answer = 0, first_row = 0, rows_begin = 0, rows_end = 0;
    };
    struct Kept {
        Kept() = default;
        Kept(Kept&&) = default;
        Kept& operator=(Kept&&) = default;
        ~Kept() {
            if (memory)
                for (std::vector<float>& y : answers) memory->give(std::move(y));
        }
        std::vector<std::vector<float>> answers;
        std::shared_ptr<AnswerMemory> memory;
    };

    std::uint32_t num_tokens_ = 0, hidden_size_ = 0;
    Kept kept_;
    std::vector<Part> parts_;
    std::vector<std::uint32_t> rows_;
    std::vector<float> factors_;  // [rows_.size()], or empty
};

}  // namespace moex
