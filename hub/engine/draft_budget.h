// Decides how many drafted rows a step has, over all its sequences. Drafted rows pay if they raise
// the tokens a second:
//   tokens(k) = sequences + sum of the k largest gains,   time(k) = plain + k * row
// where a gain is the probability that a drafted row is accepted. The number k with the largest
// tokens(k) / time(k) is chosen. Over a long line `row` is near 0 and many drafted rows pay; with
// experts on this machine a row costs nearly as much as a step, and none may pay.
// Both times are learned from real steps, for each number of sequences between the same powers of
// two: `plain` as the mean of recent steps without drafts, `row` as what recent steps with drafts
// took longer, divided by their drafted rows. `plain` grows with the number of sequences, as
// between the means of two such kinds. What is known of half or twice as many sequences is a
// first estimate, so that answers which end one after the other need not learn anew each time. Now
// and then a step has another number of rows than the best one, so that both times stay known; such
// trials become rarer while they change nothing. A single step that lasts much longer or shorter
// than expected counts little. After several such steps in a row the line or the machine is another
// one, and both times are learned anew.
// This class reads no clock: the caller passes durations. Owner: the engine's thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "hub/base/clock.h"

namespace moex {

class DraftBudget {
  public:
    // Returns how many drafted rows the next step should have. `gains` has the gain of each
    // possible drafted row, in descending order. `sequences`: sequences that decode, at least 1.
    std::uint32_t choose(std::uint32_t sequences, std::span<const double> gains);
    // Makes the next step a trial again, because the sources had no tokens for the latest one.
    void try_again(std::uint32_t sequences);
    // Records the duration `took` of a step without prompt rows; it includes the time of drafting.
    void record(std::uint32_t sequences, std::uint32_t drafted_rows, Duration took);

  private:
    struct Kind {
        // of recent steps without drafted rows: mean duration, mean number of sequences
        double plain_ms = 0, plain_sequences = 0;
        // weighted sums over recent steps with drafted rows: the drafted rows, and the ms by which
        // these steps exceeded the mean step without drafted rows
        double rows = 0, extra_ms = 0;
        std::uint32_t num_plain = 0, num_drafted = 0;
        std::uint32_t steps_since = 0, pause = 0;
        bool has_begun = false;    // a step had this number of sequences
        bool has_paid = false;     // at the latest choice without a trial, drafted rows paid
        bool was_drafted = false;  // the latest step had drafted rows
        // latest steps that all took far longer than expected; negative: far shorter
        std::int32_t surprises = 0;
        double row_ms() const;  // learned cost of one drafted row, at least 0
    };
    // Returns the expected duration in ms of a step; 0: nothing is known about such steps.
    double expected_ms(std::uint32_t sequences, std::uint32_t drafted_rows) const;
    static std::size_t kind_of(std::uint32_t sequences);
    void begin(std::size_t kind);
    void forget(Kind& latest);
    // Returns the expected duration of a step without drafts, in ms, of a kind that had such steps.
    double plain_ms(std::uint32_t sequences) const;
    std::uint32_t best_of(std::uint32_t sequences, std::span<const double> gains) const;

    static constexpr std::size_t num_kinds = 16;
    std::array<Kind, num_kinds> kinds_{};
};

}  // namespace moex
