// Drafts for the one sequence of a decoder that are sometimes wrong.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "web-worker/decoder/token_drafts.h"

namespace moex::test {

// Proposes the tokens of a known answer, every fifth of them wrong, and takes any number of them.
class SomeDrafts : public TokenDrafts {
  public:
    SomeDrafts(std::vector<std::uint32_t> right, std::uint32_t seed)
        : right_(std::move(right)),
          random_(seed) {}
    TokenIds propose(std::uint32_t tokens_max) override {
        proposed_.clear();
        for (std::size_t i = drawn_; proposed_.size() < tokens_max; ++i)
            proposed_.push_back(random_() % 5 == 0 || i >= right_.size() ? random_() % 256
                                                                         : right_[i]);
        return proposed_;
    }
    std::uint32_t num_paying() override {
        return static_cast<std::uint32_t>(random_() % (proposed_.size() + 1));
    }
    void record(TokenIds drawn, std::uint32_t, std::chrono::nanoseconds) override {
        drawn_ += drawn.size();
    }

  private:
    std::vector<std::uint32_t> right_, proposed_;
    std::mt19937 random_;
    std::size_t drawn_ = 0;
};

}  // namespace moex::test
