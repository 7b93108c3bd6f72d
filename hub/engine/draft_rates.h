// Learns how often drafted tokens are accepted, for each class of proposals and each position in a
// proposal. The rate of a position is conditional: the share of proposals that were right at this
// position, among those that were right before it. A browser tab that runs a whole model by itself
// uses this file and draft_budget.h, too. Owner: the engine's thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// Number of classes of proposals of one source, by how likely the source takes them to be.
inline constexpr std::uint32_t draft_classes = 8;

class DraftRates {
  public:
    // `memory`: number of recent observations that a rate is about the mean of.
    explicit DraftRates(double memory) : memory_(memory) {}

    // Compares a proposal with the tokens that were drawn after it began.
    void record(std::uint32_t proposal_class, std::span<const TokenId> proposed,
                std::span<const TokenId> drawn);

    // Returns the rate at `position` of a proposal. Positions of which little is known take over
    // the rate of the position before.
    double rate(std::uint32_t proposal_class, std::uint32_t position) const;
    // Does the same, but takes over the rate of `others`, the rates over all sequences.
    double rate(std::uint32_t proposal_class, std::uint32_t position,
                const DraftRates& others) const;

  private:
    static constexpr std::uint32_t num_positions = 8;  // the last position includes all later ones
    struct Cell {
        double accepted = 0, seen = 0;
    };
    static double blend(const Cell& cell, double usual);
    const Cell& cell(std::uint32_t proposal_class, std::uint32_t position) const;

    double memory_;
    std::array<std::array<Cell, num_positions>, draft_classes> cells_{};
};

}  // namespace moex
