// The hub's side of the simulated swarm: carries out the actions of the dispatch core, and compares
// the results of rounds with the right values.
#include <algorithm>
#include <cmath>

#include "tests/sim/sim_state.h"

namespace moex::sim {

void SimState::perform(std::vector<SwarmAction>& actions) {
    for (SwarmAction& action : actions) std::visit([&](auto& what) { act(what); }, action);
    check_invariants();
    const auto next = core->next_deadline();
    if (!next || (tick_at && *tick_at <= *next)) return;

    // Keep only the earliest pending tick. If every pending tick scheduled another tick, the number
    // of ticks would grow with simulated time.
    tick_at = std::max(now, *next);
    at(
        *tick_at,
        [this, due = *tick_at] {
            if (tick_at != due) return;
            tick_at.reset();
            std::vector<SwarmAction> more;
            core->on_tick(now, more);
            perform(more);
        },
        true);
}

void SimState::act(SendFrame& action) {
    num_gathered += !action.frame.is_whole();
    // Keep the rows of the frame alive until the frame arrives, as a connection does until it has
    // written the frame.
    const auto kept = std::make_shared<const WireFrame>(action.frame);
    Bytes frame = std::move(action.frame).whole();
    note("hub sends", action.worker, frame);
    const auto found = workers.find(action.worker);
    if (found == workers.end())
        return violation(text("a frame to the unknown worker ", action.worker));
    if (!found->second.alive) return;
    if (const auto unit = found->second.ledger.hub_sends(frame, limits))
        violation(text("worker ", action.worker, " is sent a call for layer ", unit->layer,
                       " expert ", unit->expert, ", which was not assigned to it or never READY"));
    if (!units_asked(frame, limits).empty()) {
        check_bound(action.worker);
        if (options.watches_liveness) check_not_ejected(found->second);
    }
    if (options.log) found->second.received.push_back(frame);
    carry(std::move(frame), found->second.to_worker,
          [this, kept, id = action.worker](Bytes frame) { worker_reads(id, std::move(frame)); });
}

void SimState::act(CloseWorker& action) {
    note("hub closes", action.worker);
    SimWorker& worker = workers.at(action.worker);
    worker.closed = action.code;
    worker.alive = false;
    removed_now.insert(action.worker);
}

void SimState::act(SetFrameLimit& action) {
    const auto found = workers.find(action.worker);
    if (found == workers.end())
        return violation(text("a frame limit for the unknown worker ", action.worker));
    found->second.frame_limit = action.bytes;
}

void SimState::act(ComputeLocally& action) {
    note("local computes", action.attempt);
    local_calls.push_back(std::move(action));
    if (local_calls.size() == 1) begin_local();
}

void SimState::begin_local() {
    const auto num_pairs = static_cast<std::int64_t>(local_calls.front().rows.size());
    at(now + options.local_compute + num_pairs * options.local_per_pair, [this] { end_local(); });
}

void SimState::drop_local(RoundId round) {
    if (local_calls.empty()) return;
    local_calls.erase(
        std::remove_if(local_calls.begin() + 1, local_calls.end(),
                       [&](const ComputeLocally& call) { return call.round == round; }),
        local_calls.end());
}

void SimState::end_local() {
    const ComputeLocally action = std::move(local_calls.front());
    local_calls.pop_front();
    if (!local_calls.empty()) begin_local();
    if (action.attempt == 0) {
        const auto num_pairs = static_cast<std::uint32_t>(action.rows.size());
        core->on_local_measured(now, num_pairs,
                                options.local_compute + num_pairs * options.local_per_pair);
        return;
    }
    std::vector<float> y(action.rows.size() * limits.hidden_size);
    std::size_t pair = 0;
    for (const GroupExpert& expert : action.experts)
        for (std::uint32_t i = 0; i < expert.num_rows; ++i, ++pair)
            sim_expert(action.layer, expert.expert,
                       action.x->data() + std::size_t{action.rows[pair]} * limits.hidden_size,
                       action.gates[pair], limits.hidden_size, options.swarm.rounding.deterministic,
                       y.data() + pair * limits.hidden_size);
    std::vector<SwarmAction> actions;
    core->on_local(now, action.round, action.attempt, std::move(y), actions);
    perform(actions);
}

namespace {

class SimWeights : public ExpertCompute {
  public:
    explicit SimWeights(std::uint32_t hidden_size) : hidden_(hidden_size) {}
    Status compute(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                   std::span<const float> gates, std::span<float> y) const override {
        for (std::size_t row = 0; row < gates.size(); ++row)
            sim_expert(layer, expert, x.data() + row * hidden_, gates[row], hidden_, false,
                       y.data() + row * hidden_);
        return {};
    }

  private:
    std::uint32_t hidden_;
};

}  // namespace

void SimState::act(CheckAnswer& action) {
    note("judge gets", action.sample.id);
    at(now + 5ms, [this, sample = std::move(action.sample)] {
        std::vector<SwarmAction> actions;
        core->on_judgement(now, sample.id, judge_answer(sample, SimWeights(limits.hidden_size)),
                           actions);
        perform(actions);
    });
}

void SimState::act(RoundDone& action) {
    std::vector<float> y = action.sum.values();
    note(action.answer.ok() ? "round done" : "round failed", action.round,
         std::as_bytes(std::span(y)));
    RoundOutcome& outcome = outcomes[action.round];
    if (++outcome.times_done > 1)
        violation(text("round ", action.round, " was answered ", outcome.times_done, " times"));
    if (outcome.cancelled)
        violation(text("round ", action.round, " was answered after its cancel"));
    outcome.y = std::move(y);
    outcome.answer = std::move(action.answer);
    outcome.done_at = now;
    drop_local(action.round);
    if (!outcome.answer->ok()) check_failure(action.round, outcome.answer->error());
    holders_of.erase(action.round);
    if (!outcome.answer->ok()) return;
    for (const WorkerId worker : (*outcome.answer)->workers)
        if (removed_now.contains(worker) && worker_events_removed(worker))
            violation(text("round ", action.round, " uses removed worker ", worker));
    if (!(*outcome.answer)->late.empty()) leave_out_late(action.round, outcome);
    if (!outcome.want.empty()) check_value(action.round, outcome);
}

// Checks that the latency budget of a row had passed if one of its pairs is missing, and that no
// row lacks more than its `pairs_max`. Then removes the missing pairs from `outcome.want`.
void SimState::leave_out_late(RoundId round, RoundOutcome& outcome) {
    const std::vector<LatePair>& late = (*outcome.answer)->late;
    for (const LatePair& pair : late) {
        const auto of_row = [&](const auto& one) { return one.row == pair.row; };
        const auto allowed = std::ranges::find_if(outcome.patience, of_row);
        if (allowed == outcome.patience.end() || outcome.asked_at + allowed->wait > now ||
            std::ranges::count_if(late, of_row) > allowed->pairs_max)
            violation(
                text("round ", round, " ended without expert ", pair.expert, " of row ", pair.row));
    }

    const std::uint32_t hidden = limits.hidden_size;
    std::ranges::fill(outcome.want, 0.0f);
    for (const PairValue& part : outcome.parts) {
        if (std::ranges::any_of(late, [&](const LatePair& pair) {
                return pair.row == part.row && pair.expert == part.expert;
            }))
            continue;
        for (std::uint32_t i = 0; i < hidden; ++i)
            outcome.want[std::size_t{part.row} * hidden + i] += part.y[i];
    }
}

void SimState::act(WorkerEvent& action) {
    note("worker event", action.worker * 8 + static_cast<std::uint64_t>(action.kind));
    if (options.log) lines.back() += text(" ", action.detail);
    if (const auto worker = workers.find(action.worker); worker != workers.end()) {
        const bool is_ejected = action.view->health == Health::ejected;
        if (is_ejected && action.kind == WorkerEvent::Kind::unhealthy)
            worker->second.ejected_at = now;
        else if (!is_ejected)
            worker->second.ejected_at.reset();
    }
    worker_events.push_back(std::move(action));
}

bool SimState::worker_events_removed(WorkerId worker) const {
    return std::any_of(worker_events.begin(), worker_events.end(), [&](const auto& event) {
        return event.worker == worker && event.kind == WorkerEvent::Kind::removed;
    });
}

namespace {

// Returns the numbers of the rows, ascending, with an error larger than `error_max` times the
// largest value of the row.
std::vector<std::uint32_t> rows_off(const RoundOutcome& outcome, std::uint32_t hidden,
                                    double error_max) {
    std::vector<std::uint32_t> rows;
    for (std::size_t begin = 0; begin < outcome.want.size(); begin += hidden) {
        double largest = 1e-3, worst = 0;
        for (std::size_t i = begin; i < begin + hidden; ++i) {
            const double want = outcome.want[i];
            largest = std::max(largest, std::fabs(want));
            worst = std::max(worst, std::fabs(outcome.y[i] - want));
        }
        if (!(worst <= error_max * largest))
            rows.push_back(static_cast<std::uint32_t>(begin / hidden));
    }
    return rows;
}

}  // namespace

void SimState::check_value(RoundId round, RoundOutcome& outcome) {
    double largest = 1e-3, worst = 0;
    for (std::size_t i = 0; i < outcome.want.size(); ++i) {
        largest = std::max(largest, std::fabs(static_cast<double>(outcome.want[i])));
        worst = std::max(worst, std::fabs(static_cast<double>(outcome.y[i]) - outcome.want[i]));
    }
    outcome.error_max = worst / largest;
    const bool exact = options.swarm.rounding.deterministic;
    // Bounds on honest rounding: a row sent as bf16 is rounded twice, by 2^-9 each time; a row sent
    // as int8 is rounded to 127 steps.
    const double rounding_max = options.swarm.x_int8 ? 1.5e-2 : 6e-3;
    outcome.wrong = exact ? worst != 0 : outcome.error_max > rounding_max;
    outcome.rows_wrong = rows_off(outcome, limits.hidden_size, exact ? 0 : rounding_max);
    // A wrong result is allowed if a plausible liar took part: the core may not know yet that this
    // answer is false.
    const auto& said_by = (*outcome.answer)->workers;
    const bool lied = std::any_of(said_by.begin(), said_by.end(), [&](WorkerId id) {
        return is_plausible(workers.at(id).profile.lie);
    });
    // An answer that the hub computed again must be right all the same, within the judge's
    // tolerance.
    constexpr double smallest_lie = 0.02;
    const auto& rows = (*outcome.answer)->rows;
    const bool all_checked = options.swarm.checks.judge &&
                             std::all_of(rows.begin(), rows.end(), [](const RowProvenance& row) {
                                 return row.pairs_verified == row.pairs_remote;
                             });
    if (outcome.wrong && (!lied || (all_checked && outcome.error_max > smallest_lie)))
        violation(text("round ", round, " has a wrong sum, off by ", outcome.error_max));
}

// Checks the invariants: after every event those of the state that the event changed, and every
// `check_whole_every` events those of the complete state.
void SimState::check_invariants() {
    const bool whole = ++num_checks % options.check_whole_every == 0;
    for (std::string& broken : core->check_invariants(whole)) violation(std::move(broken));
}

void SimState::check_bound(WorkerId id) {
    // bound on rounds in flight at a published peer; a round sends it one call per expert
    constexpr std::uint32_t published_rounds_max = 2;
    const std::uint32_t depth = options.swarm.queue_depth;
    const bool is_published = workers.at(id).peer == Peer::published;
    const std::size_t in_flight = core->in_flight(id),
                      bound = is_published
                                  ? std::min(depth, published_rounds_max) * limits.num_experts
                                  : depth;
    in_flight_most = std::max(in_flight_most, in_flight);
    if (in_flight > bound)
        violation(text("worker ", id, " has ", in_flight, " groups, at most ", bound));
}

}  // namespace moex::sim
