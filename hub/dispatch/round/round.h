// One round: the (expert, row) pairs of a layer, cut into slices, and the answers that cover them.
//
// A slice is one call, or a part of a call where limits split it: the unit of completion. An
// attempt is a group of slices sent to one worker: the unit of hedging, cancelling, timeout and
// retry.
//
// The first answer to a slice wins. A round that sends every slice to several workers at once
// requests unsummed answers, so that parts of different covers may be mixed. In a summed round an
// answer is a sum over all slices of its attempt, so it can be used only as a whole. The invariant
// that allows this: an attempt that joins others is contained in the newest one, so of two attempts
// that share a slice one contains the other. A larger sum that arrives later replaces the answers
// within it. Example: attempt 1 has slices {0,1,2}; it is slow, so attempt 2 repeats {1,2}. If 2
// answers first and 1 later, the sum of 1 replaces that of 2.
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
    std::uint32_t unit = 0;  // unit of the placement
    std::uint16_t expert = 0;
    std::uint32_t block = 0;   // block of rows that contains its rows
    Dtype dtype = Dtype::f16;  // dtype of its block of rows; retry_in_bf16() may widen it
    std::uint32_t pair_begin = 0, pair_end = 0;
    // live: attempts that may still answer this slice, in the order sent. num_late: the number in
    // `live` that are past their deadline.
    std::vector<AttemptId> live;
    std::uint32_t num_late = 0;
    std::uint32_t dispatches = 0;  // how often it was sent, hedges not counted
    std::uint32_t answered = 0;    // attempts that ended with an error or an invalid answer
    bool done = false, hedged = false;
    // start of its wait for a unit that no worker holds or loads
    std::optional<TimePoint> unheld_since;
    std::int32_t answer = -1;       // index into Round::answers
    std::uint32_t answer_pair = 0;  // first of its pairs in an unsummed answer
    std::vector<WorkerId> tried;    // workers with a live or failed attempt at it

    void reset();
    std::uint32_t num_pairs() const { return pair_end - pair_begin; }
    bool was_tried(WorkerId worker) const;
    // No attempt at it is in flight, or every attempt in flight is past its deadline.
    bool is_open() const { return !done && live.size() == num_late; }
    AttemptId latest_attempt() const { return live.empty() ? 0 : live.back(); }
};

// The evidence for an answer when it counted.
enum class Evidence : std::uint8_t {
    unchecked,  // no check was possible
    proven,     // from a proven worker, of which only a sample is checked
    verified    // each row was computed again
};

// The answer to one attempt as it arrived; kept until the round ends.
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
    Duration load{};     // part of `predicted`: until its experts are loaded in the worker's memory
    bool hedge = false;  // a duplicate beside the first cover
    bool late = false;   // past its deadline; its answer still counts
    bool probe = false;  // sent to an ejected worker; continues when the answer is no longer needed
    // check_id: its answer has arrived and waits for the verdict of that check. witness_of_check:
    // its answer is the verdict of that check (swarm_witness.cpp). 0: none.
    std::uint64_t check_id = 0, witness_of_check = 0;
    GroupShape shape;     // as sent; the answer repeats it
    bool x_int8 = false;  // its x was sent as int8
    std::uint32_t num_pairs = 0;
    std::vector<std::uint32_t> slices;  // in the order of their pairs in the frame
    std::vector<std::uint32_t> tokens;  // batch row of each row of the frame's x
};

// Limits and rounding by which a round is cut into slices.
struct RoundOptions {
    WireLimits limits;
    ExpertRounding rounding;
    std::uint32_t unit_base = 0;  // the placement's unit of the layer's expert 0
    std::uint32_t copies = 1;     // number of workers that each slice is sent to at once
};

struct Round {
    RoundId id = 0;
    TimePoint started{}, deadline{};
    std::optional<TimePoint> wait_until;  // set when a slice first had to wait for a worker
    std::optional<TimePoint> retry_at;    // earliest retry after every replica failed
    // set while the round lacks a unit that no worker holds or loads
    std::optional<TimePoint> give_up_at;
    std::optional<TimePoint> again_at;  // when an overdue worker may be asked once more
    std::uint32_t num_retries = 0;      // retries after every replica failed
    // groups that ended in an error, with a retry not yet paid from the budget
    std::uint32_t num_unpaid = 0;
    std::uint32_t layer = 0, num_tokens = 0, hidden_size = 0, top_k = 0;
    bool unsummed = true, waiting = false;
    std::uint32_t copies = 1;

    std::shared_ptr<const std::vector<float>> x;  // [num_tokens, hidden_size]
    std::vector<double> x_rms;                    // [num_tokens]
    std::vector<std::uint32_t> row_order;         // [num_tokens], rows of the wire's dtype first
    // x in each dtype that was sent; the frames share these encodings
    std::vector<std::shared_ptr<const WireRows>> encodings;
    std::vector<std::uint16_t> pair_row;  // [num_pairs], sorted by (block, expert, row)
    std::vector<float> pair_gate;         // [num_pairs]
    std::vector<half> wire_gate;          // [num_pairs], as sent
    std::vector<CallSlice> slices;        // sorted by (block, expert)
    std::uint32_t slices_left = 0;
    std::vector<AttemptId> attempts;  // live attempts
    std::vector<RoundAnswer> answers;
    std::vector<RowPatience> patience;  // latency budgets, ascending by row
    // from then on the round may end with slices open; nullopt: never
    std::optional<TimePoint> patient_until;

    // Scratch of open().
    std::size_t num_slices_cut = 0;
    std::vector<std::uint32_t> pair_begin_of;  // [num_experts + 1] for one block
    // Scratch of fill_group(): the set of rows that the group uses, and the position of each row
    // among them.
    std::vector<std::uint64_t> row_bits;   // [num_tokens / 64]
    std::vector<std::uint16_t> row_place;  // [num_tokens]
    std::vector<std::uint32_t> num_late;   // scratch of ends_without_rest(), parallel to `patience`

    // Copies what it needs from `batch` and takes over `rows`. `slice_pairs_max` [num_experts]
    // bounds the pairs in a slice of each expert; empty: no bound. Returns invalid_argument when a
    // value of x is not finite.
    Status open(const ExpertBatch& batch, RoundRows rows, const RoundOptions& options,
                std::span<const std::uint32_t> slice_pairs_max);
    // Writes the pairs of attempt.slices as a group, without x and sequence id. Fills
    // attempt.shape, tokens and num_pairs.
    void fill_group(Attempt& attempt, GroupDispatch& out);
    // Builds the frame of the group. The rows of x are encoded once for all groups of the round.
    // Frames share the encoded rows as far as WireRowsPool allows it for the connection that has
    // `held`.
    WireFrame encode(const Attempt& attempt, const GroupDispatch& group, bool lz4,
                     const RowReader& reader, const std::shared_ptr<RowsHeld>& held);
    // Releases memory that other rounds need: x and the answers.
    void close();
    // Copies the rows of x that the attempt uses.
    void copy_rows(const Attempt& attempt, std::vector<float>& out) const;
    // Adds the attempt to the slices' lists of live attempts, or removes it.
    void begin(const Attempt& attempt);
    void end(const Attempt& attempt);
    // Marks the attempt as past its deadline. Its slices may be sent to other workers beside it.
    void set_late(Attempt& attempt);
    // Marks the open slices of the attempt as answered, and returns their number. A sum replaces
    // the answers to slices within it.
    std::uint32_t accept(const Attempt& attempt, std::vector<float> y, bool answer_unsummed,
                         Evidence evidence = Evidence::verified);
    // Drops the answers of a worker that was caught lying, and returns how many slices are open
    // again.
    std::uint32_t reject_answers_of(WorkerId worker);
    // Returns true if all open slices may be left out: each of their pairs belongs to a row that
    // has spent its latency budget, and no row lacks more pairs than it allows. O(open pairs).
    bool ends_without_rest(TimePoint now);
    // Returns the weighted sum over experts in f32, ascending by expert; the caller adds it up with
    // RoundSum. Writes the source of each row to `provenance`. Requires that all slices are done,
    // or that ends_without_rest() returned true. Moves the rows out of the answers.
    RoundSum finish(ExpertAnswer& provenance);
    bool covered(const Attempt& attempt) const;  // every slice of the attempt is done

  private:
    struct Block {
        std::uint32_t number = 0, row_begin = 0, row_end = 0;  // range within row_order
        Dtype dtype = Dtype::f16;
    };
    const std::shared_ptr<const WireRows>& rows_in(Dtype dtype, const RowReader& reader);
    void cut_block(const ExpertBatch& batch, const RoundOptions& options, const Block& block,
                   std::span<const std::uint32_t> slice_pairs_max);
    void name_workers(ExpertAnswer& provenance) const;
};

// Checks |y| of each row against its x: rms(y) <= norm_bound * max(1, rms(x)). `square_sums`
// belongs to the rows of y.
bool within_norm_bound(const Round& round, const Attempt& attempt,
                       std::span<const double> square_sums, bool unsummed, double norm_bound);

}  // namespace moex
