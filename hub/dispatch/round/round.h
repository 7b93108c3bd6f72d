// One round: a layer's pairs of (expert, row), cut into slices, and the answers that cover them.
//
// A slice is one call, or a stretch of one where limits split it: the unit of
// completion. An attempt is a group of slices sent to one worker: the unit of
// hedging, cancelling, timeout and re-dispatch.
//
// The first answer to arrive for a slice wins. A round that sends everything to several
// workers at once asks for unsummed answers, so that parts of different covers may be mixed.
// In a summed round an attempt that joins others lies within the last of them: of two
// attempts that share a slice one covers the other. So a sum can always be used whole: it
// takes the place of the answers within it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hub/dispatch/ids.h"
#include "hub/dispatch/round/round_rows.h"
#include "hub/dispatch/round/round_sum.h"
#include "protocol/group_rows.h"

namespace moex {

struct CallSlice {
    std::uint32_t unit = 0;  // of the placement
    std::uint16_t expert = 0;
    std::uint32_t block = 0;   // its rows lie in one block of rows
    Dtype dtype = Dtype::f16;  // of its rows, and so of its block; retry_in_bf16() may widen it
    std::uint32_t pair_begin = 0, pair_end = 0;
    // attempts that may still answer it, in the order they were sent; of them beyond their time
    std::vector<AttemptId> live;
    std::uint32_t num_late = 0;
    std::uint32_t dispatches = 0;  // how often it was given out, hedges not counted
    std::uint32_t answered = 0;    // of these with an error or an answer that was none
    bool done = false, hedged = false;
    // since when it waits for a unit that no worker holds or loads
    std::optional<TimePoint> unheld_since;
    std::int32_t answer = -1;       // into Round::answers
    std::uint32_t answer_pair = 0;  // first of its pairs in an unsummed answer
    std::vector<WorkerId> tried;    // live there, or failed there

    void reset();
    std::uint32_t num_pairs() const { return pair_end - pair_begin; }
    bool was_tried(WorkerId worker) const;
    // nobody works on it, or only such as should have answered by now
    bool is_open() const { return !done && live.size() == num_late; }
    AttemptId latest_attempt() const { return live.empty() ? 0 : live.back(); }
};

// What was known of an answer when it counted.
enum class Evidence : std::uint8_t {
    unchecked,  // nobody could say
    proven,     // of a worker whose rows are checked at a rate
    verified    // each row was computed again
};

// One attempt's answer as it came; kept until the round ends.
struct RoundAnswer {
    WorkerId worker = 0;  // 0: the local backend
    Evidence evidence = Evidence::verified;
    bool unsummed = true;
    std::uint32_t first_slice = 0;
    std::vector<std::uint32_t> slices;
    std::vector<std::uint32_t> tokens;  // summed: the batch row of each row of y
    std::vector<float> y;
};

struct Attempt {
    AttemptId id = 0;
    RoundId round = 0;
    WorkerId worker = 0;  // 0: the local backend
    std::uint32_t sequence_id = 0;
    TimePoint sent_at{}, deadline{};
    Duration predicted{}, timeout{};
    Duration load{};     // of what is predicted: until its experts lie in the worker's memory
    bool hedge = false;  // not the first cover
    bool late = false;   // beyond its deadline; its answer counts all the same
    bool probe = false;  // of a worker that was ejected: goes on when it is not needed any more
    // It was answered, and that waits for a verdict; or its answer is one: see swarm_checks.
    std::uint64_t check_id = 0, witness_of_check = 0;
    GroupShape shape;     // as sent; the answer echoes it
    bool x_int8 = false;  // its x was sent so
    std::uint32_t num_pairs = 0;
    std::vector<std::uint32_t> slices;  // in the order of their pairs in the frame
    std::vector<std::uint32_t> tokens;  // batch row of each row of the frame's x
};

// The rules by which a round is cut into slices and rounded.
struct RoundOptions {
    WireLimits limits;
    ExpertRounding rounding;
    std::uint32_t unit_base = 0;  // the placement's unit of the layer's expert 0
    std::uint32_t copies = 1;     // the number of workers that are asked for each slice at once
};

struct Round {
    RoundId id = 0;
    TimePoint started{}, deadline{};
    std::optional<TimePoint> wait_until;  // set when a call first had to wait for a worker
    std::optional<TimePoint> retry_at;    // after every replica failed: not before this
    std::optional<TimePoint> give_up_at;  // set while it lacks a unit that nobody holds or loads
    std::optional<TimePoint> again_at;    // when somebody overdue may be asked once more
    std::uint32_t num_retries = 0;        // after every replica failed
    std::uint32_t num_unpaid = 0;  // groups that ended in an error: to be asked again by the budget
    std::uint32_t layer = 0, num_tokens = 0, hidden_size = 0, top_k = 0;
    bool unsummed = true, waiting = false;
    std::uint32_t copies = 1;

    std::shared_ptr<const std::vector<float>> x;  // [num_tokens, hidden_size]
    std::vector<double> x_rms;                    // [num_tokens]
    std::vector<std::uint32_t> row_order;         // [num_tokens], rows of the wire's dtype first
    // x in each form that it travels in: frames share them
    std::vector<std::shared_ptr<const WireRows>> encodings;
    std::vector<std::uint16_t> pair_row;  // [num_pairs], by (block, expert, row)
    std::vector<float> pair_gate;         // [num_pairs]
    std::vector<half> wire_gate;          // [num_pairs], as it travels
    std::vector<CallSlice> slices;        // by (block, expert)
    std::uint32_t slices_left = 0;
    std::vector<AttemptId> attempts;  // live
    std::vector<RoundAnswer> answers;
    std::vector<RowPatience> patience;       // ascending by row
    std::optional<TimePoint> patient_until;  // from then on it may end without all; none: never

    // Scratch of open().
    std::size_t num_slices_cut = 0;
    std::vector<std::uint32_t> pair_begin_of;  // [num_experts + 1] of a block
    // Scratch of fill_group(): the rows that it touches, and where each lies among them.
    std::vector<std::uint64_t> row_bits;   // [num_tokens / 64]
    std::vector<std::uint16_t> row_place;  // [num_tokens]
    std::vector<std::uint32_t> num_late;   // of ends_without_rest(), as `patience`

    // Takes over what it needs of `batch`, beside its `rows`.
    // `slice_pairs_max` [num_experts]: no slice of the expert has more pairs; empty: no such bound.
    // invalid_argument when a value of x is not finite.
    Status open(const ExpertBatch& batch, RoundRows rows, const RoundOptions& options,
                std::span<const std::uint32_t> slice_pairs_max);
    // Writes the pairs of attempt.slices as a group (without x and sequence id); fills
    // attempt.shape, tokens and num_pairs.
    void fill_group(Attempt& attempt, GroupDispatch& out);
    // The group's frame. The rows of x are encoded once for all groups of the round, and shared by
    // their frames as far as the connection that has `held` may (WireRowsPool).
    WireFrame encode(const Attempt& attempt, const GroupDispatch& group, bool lz4,
                     const RowReader& reader, const std::shared_ptr<RowsHeld>& held);
    // Lets go of what others wait for the memory of: x and the answers.
    void close();
    // x of the attempt's rows.
    void copy_rows(const Attempt& attempt, std::vector<float>& out) const;
    // Joins and leaves the slices' lists of live attempts.
    void begin(const Attempt& attempt);
    void end(const Attempt& attempt);
    // Its time is over: its slices may go to others beside it.
    void set_late(Attempt& attempt);
    // Marks what is still open of the attempt's slices as answered; how many that were. A sum
    // takes the place of answers to slices within it.
    std::uint32_t accept(const Attempt& attempt, std::vector<float> y, bool answer_unsummed,
                         Evidence evidence = Evidence::verified);
    // Forgets the answers of a worker that turned out a liar; how many slices opened again.
    std::uint32_t reject_answers_of(WorkerId worker);
    // Whether what is still open may be left out: each pair of it is of a row whose patience is
    // over, and no row lacks more than it may. O(open pairs).
    bool ends_without_rest(TimePoint now);
    // The weighted sum over experts in f32, ascending by expert, to be added up by whoever waits
    // for it, and where it came from. All slices are done, or ends_without_rest() said so. Takes
    // the answers' rows.
    RoundSum finish(ExpertAnswer& provenance);
    bool covered(const Attempt& attempt) const;  // nothing of it is wanted any more

  private:
    struct Block {
        std::uint32_t number = 0, row_begin = 0, row_end = 0;  // of row_order
        Dtype dtype = Dtype::f16;
    };
    const std::shared_ptr<const WireRows>& rows_in(Dtype dtype, const RowReader& reader);
    void cut_block(const ExpertBatch& batch, const RoundOptions& options, const Block& block,
                   std::span<const std::uint32_t> slice_pairs_max);
    void name_workers(ExpertAnswer& provenance) const;
};

// |y| of each row against what x allows: every rms(y) <= norm_bound * max(1, rms of its x).
// `square_sums`: of the rows of y.
bool within_norm_bound(const Round& round, const Attempt& attempt,
                       std::span<const double> square_sums, bool unsummed, double norm_bound);

}  // namespace moex
