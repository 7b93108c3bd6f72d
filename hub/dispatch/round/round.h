// One round: the (expert, row) pairs of a layer, cut into slices, and the answers that cover them.
//
// A slice is all pairs of one expert, or a part of them where limits require a split. Slices are
// the unit of completion. An attempt is a group of slices sent to one worker. Attempts are the unit
// of hedging, cancelling, timeout and retry.
//
// The first answer to a slice wins. A round that sends every slice to several workers at once
// requests unsummed answers, so that parts of different covers may be mixed. A round of f32 rows
// requests them, too, because the hub multiplies the answers by their gates (ExpertRounding). In a
// summed round an answer is a sum over all slices of its attempt, so it can be used only as a
// whole. An invariant allows this: if a slice already has a live attempt, a new attempt contains
// only slices of the newest such attempt. So of two attempts that share a slice one contains the
// other. A larger sum that arrives later replaces the answers for the slices that it contains.
// Example: attempt 1 has slices {0,1,2}; it is slow, so attempt 2 repeats {1,2}. If 2 answers first
// and 1 later, the sum of 1 replaces that of 2.
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
    std::uint32_t unit = 0;  // number of the (layer, expert) unit in the placement
    std::uint16_t expert = 0;
    std::uint32_t block = 0;   // number of the block that contains the slice's rows
    Dtype dtype = Dtype::f16;  // dtype of the slice's block of rows; retry_in_bf16() may widen it
    std::uint32_t pair_begin = 0, pair_end = 0;
    // live: attempts that may still answer this slice, in the order in which they were sent.
    // num_late: how many attempts in `live` are past their deadline.
    std::vector<AttemptId> live;
    std::uint32_t num_late = 0;
    std::uint32_t dispatches = 0;  // how often the slice was sent, hedges not counted
    std::uint32_t answered = 0;  // number of attempts that ended with an error or an invalid answer
    bool done = false, hedged = false;
    // time since which the slice waits for a unit that no worker holds or loads
    std::optional<TimePoint> unheld_since;
    std::int32_t answer = -1;       // index of the slice's answer in Round::answers; -1: none
    std::uint32_t answer_pair = 0;  // first pair of the slice in an unsummed answer
    std::vector<WorkerId> tried;  // workers that have a live attempt at this slice, or failed at it

    void reset();
    std::uint32_t num_pairs() const { return pair_end - pair_begin; }
    bool was_tried(WorkerId worker) const;
    // Returns true if the slice is not done and no attempt at it is within its deadline.
    bool is_open() const { return !done && live.size() == num_late; }
    AttemptId latest_attempt() const { return live.empty() ? 0 : live.back(); }
};

// How well an answer was checked at the time when it counted.
enum class Evidence : std::uint8_t {
    unchecked,  // no check of the answer was possible
    proven,     // the answer of a proven worker, of which only a sample is checked
    verified    // each row of the answer was computed again
};

// The answer to one attempt as it arrived. It is kept until the round ends.
struct RoundAnswer {
    WorkerId worker = 0;  // id of the worker; 0: the local backend
    Evidence evidence = Evidence::verified;
    bool unsummed = true;
    std::uint32_t first_slice = 0;
    std::vector<std::uint32_t> slices;
    std::vector<std::uint32_t> tokens;  // for a summed answer: row of the batch for each row of y
    std::vector<float> y;
};

struct Attempt {
    AttemptId id = 0;
    RoundId round = 0;
    WorkerId worker = 0;  // id of the worker; 0: the local backend
    std::uint32_t sequence_id = 0;
    TimePoint sent_at{}, deadline{};
    Duration predicted{}, timeout{};
    // part of `predicted`: time until the attempt's experts are loaded in the worker's memory
    Duration load{};
    Duration queued{};  // when it was sent: time until the worker has answered earlier requests
    // the attempt duplicates slices of an earlier attempt that is still in flight
    bool hedge = false;
    bool late = false;  // past its deadline; the answer still counts
    // sent to an ejected worker; not cancelled when the answer is no longer needed
    bool probe = false;
    // check_id: the attempt's answer has arrived and waits for the verdict of the check with this
    // number. witness_of_check: the attempt's answer decides the check with this number
    // (swarm_witness.cpp). 0: no check.
    std::uint64_t check_id = 0, witness_of_check = 0;
    GroupShape shape;     // shape of the request as sent; the answer repeats it
    bool x_int8 = false;  // rows of x were sent as int8
    std::uint32_t num_pairs = 0;
    // numbers of the slices, in the order of their pairs in the frame
    std::vector<std::uint32_t> slices;
    std::vector<std::uint32_t> tokens;  // row of the batch for each row of x in the frame
};

// Limits and rounding by which a round is cut into slices.
struct RoundOptions {
    WireLimits limits;
    ExpertRounding rounding;
    std::uint32_t unit_base = 0;  // number of the placement's unit for expert 0 of the layer
    std::uint32_t copies = 1;     // number of workers to which each slice is sent at once
};

struct Round {
    RoundId id = 0;
    TimePoint started{}, deadline{};
    // set when a slice of the round first had to wait for a worker
    std::optional<TimePoint> wait_until;
    // earliest time of the next retry after every replica failed
    std::optional<TimePoint> retry_at;
    // set while the round needs a unit that no worker holds or loads
    std::optional<TimePoint> give_up_at;
    // time at which an overdue worker may be sent a slice once more
    std::optional<TimePoint> again_at;
    std::uint32_t num_retries = 0;  // number of retries after every replica failed
    // failed groups with a retry that is not yet charged to the budget
    std::uint32_t num_unpaid = 0;
    std::uint32_t layer = 0, num_tokens = 0, hidden_size = 0, top_k = 0;
    bool unsummed = true, waiting = false;
    std::uint32_t copies = 1;

    std::shared_ptr<const std::vector<float>> x;  // [num_tokens, hidden_size]
    std::vector<double> x_rms;                    // [num_tokens]: root mean square of each row of x
    // [num_tokens]: row numbers, rows of the wire's dtype first
    std::vector<std::uint32_t> row_order;
    // x in each dtype in which it was sent; the round's frames share these encodings
    std::vector<std::shared_ptr<const WireRows>> encodings;
    // [num_pairs]: row of each pair, sorted by (block, expert, row)
    std::vector<std::uint16_t> pair_row;
    // [num_pairs]: gate by which the worker or the local backend multiplies each pair's answer;
    // wire_gate: the same as it is sent
    std::vector<float> pair_gate;
    std::vector<half> wire_gate;
    // [num_pairs]: gate by which finish() multiplies each pair's answer, where the hub multiplies
    // gates (ExpertRounding); else empty. Example: with f32 rows a pair of the gate 0.30798325 has
    // pair_gate 1 and pair_factor 0.30798325; with f16 rows it has pair_gate 0.30798325 and
    // wire_gate 0.30786.
    std::vector<float> pair_factor;
    std::vector<CallSlice> slices;  // slices of the round, sorted by (block, expert)
    std::uint32_t slices_left = 0;
    std::vector<AttemptId> attempts;  // attempts in flight, and attempts that wait for a verdict
    std::vector<RoundAnswer> answers;
    std::vector<RowPatience> patience;  // latency budgets of rows, ascending by row
    // time from which the round may end with open slices; nullopt: it may not
    std::optional<TimePoint> patient_until;

    // Scratch of open().
    std::size_t num_slices_cut = 0;
    // first pair of each expert of one block, [num_experts + 1]
    std::vector<std::uint32_t> pair_begin_of;
    // Scratch of fill_group(): the set of rows that the group uses, and the position of each row
    // among them.
    std::vector<std::uint64_t> row_bits;   // [num_tokens / 64]
    std::vector<std::uint16_t> row_place;  // [num_tokens]
    std::vector<std::uint32_t> num_late;   // scratch of ends_without_rest(), parallel to `patience`

    // Copies the data that the round needs from `batch` and takes over `rows`. `slice_pairs_max`
    // [num_experts] bounds the pairs in a slice of each expert; empty: no bound. Returns
    // invalid_argument when a value of x is not finite.
    Status open(const ExpertBatch& batch, RoundRows rows, const RoundOptions& options,
                std::span<const std::uint32_t> slice_pairs_max);
    // Writes the pairs of attempt.slices as a group, without x and sequence id. Fills
    // attempt.shape, tokens and num_pairs.
    void fill_group(Attempt& attempt, GroupDispatch& out);
    // Builds the frame of the group. The rows of x are encoded once for all groups of the round,
    // and frames share the encoded rows. `held` counts the bytes that the connection's frames
    // share; WireRowsPool bounds it.
    WireFrame encode(const Attempt& attempt, const GroupDispatch& group, bool lz4,
                     const RowReader& reader, const std::shared_ptr<RowsHeld>& held);
    // Releases the memory of x and of the answers, which other rounds need.
    void close();
    // Copies the rows of x that the attempt uses to `out`.
    void copy_rows(const Attempt& attempt, std::vector<float>& out) const;
    // begin() adds the attempt to the list of live attempts of each of its slices; end() removes
    // it.
    void begin(const Attempt& attempt);
    void end(const Attempt& attempt);
    // Marks the attempt as past its deadline. Its slices may then be sent to other workers as well.
    void set_late(Attempt& attempt);
    // Accepts an answer: marks the open slices of the attempt as answered, and returns their
    // number. A summed answer replaces earlier answers to slices that it contains.
    std::uint32_t accept(const Attempt& attempt, std::vector<float> y, bool answer_unsummed,
                         Evidence evidence = Evidence::verified);
    // Drops the answers of a worker that was caught lying. Returns how many slices are open again.
    std::uint32_t reject_answers_of(WorkerId worker);
    // Returns true if the round may end without its open slices: each of their pairs belongs to a
    // row that has spent its latency budget, and no row lacks more pairs than it allows. O(open
    // pairs).
    bool ends_without_rest(TimePoint now);
    // Returns the weighted sum over the experts of each row, in f32 and ascending by expert, not
    // yet computed: the caller adds it up with RoundSum. Writes the source of each row to
    // `provenance`. Requires that all slices are done, or that ends_without_rest() returned true.
    // Moves the rows out of the answers.
    RoundSum finish(ExpertAnswer& provenance);
    // returns true if every slice of the attempt is done
    bool covered(const Attempt& attempt) const;

  private:
    struct Block {
        // range of the block's rows within row_order
        std::uint32_t number = 0, row_begin = 0, row_end = 0;
        Dtype dtype = Dtype::f16;
    };
    const std::shared_ptr<const WireRows>& rows_in(Dtype dtype, const RowReader& reader);
    void cut_block(const ExpertBatch& batch, const RoundOptions& options, const Block& block,
                   std::span<const std::uint32_t> slice_pairs_max);
    void name_workers(ExpertAnswer& provenance) const;
};

// Returns true if each row of y is within the norm bound: rms(y) <= norm_bound * max(1, rms(x)).
// `square_sums` are the sums of squares of the rows of y.
bool within_norm_bound(const Round& round, const Attempt& attempt,
                       std::span<const double> square_sums, bool unsummed, double norm_bound);

}  // namespace moex
