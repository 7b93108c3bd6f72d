// Checks of workers' answers by the judge: which answers wait for the judge, and how a verdict
// affects the round, the worker and the worker's trust record.
#include <algorithm>
#include <cmath>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {

// Calls `visit(pair, expert, unit, y_row)` for each pair of the attempt. `pair` is an index into
// the round's pairs, `y_row` a row of the answer.
template <class Visit>
void each_pair(const Round& round, const Attempt& attempt, bool unsummed, const Visit& visit) {
    std::uint32_t number = 0;
    for (const std::uint32_t index : attempt.slices) {
        const CallSlice& slice = round.slices[index];
        for (std::uint32_t pair = slice.pair_begin; pair < slice.pair_end; ++pair, ++number) {
            std::uint32_t y_row = number;
            if (!unsummed)
                y_row = static_cast<std::uint32_t>(std::lower_bound(attempt.tokens.begin(),
                                                                    attempt.tokens.end(),
                                                                    round.pair_row[pair]) -
                                                   attempt.tokens.begin());
            visit(pair, slice.expert, slice.unit, y_row);
        }
    }
}

}  // namespace

SwarmChecks::SwarmChecks(SwarmState& swarm)
    : SwarmPart(swarm),
      trust_(options_.checks),
      gains_(swarm.placement.directory().num_units()) {}

// Returns true if a row is all zeros, or if its norm exceeds the largest that its experts have had
// in right answers so far.
bool SwarmChecks::is_odd(const Round& round, const Attempt& attempt,
                         std::span<const double> square_sums, bool unsummed) const {
    std::vector<double> bounds(square_sums.size());
    each_pair(round, attempt, unsummed,
              [&](std::uint32_t pair, std::uint16_t, std::uint32_t unit, std::uint32_t y_row) {
                  bounds[y_row] += std::fabs(round.pair_gate[pair]) * gains_.bound(unit) *
                                   round.x_rms[round.pair_row[pair]];
              });

    for (std::size_t row = 0; row < bounds.size(); ++row) {
        const double norm = std::sqrt(square_sums[row] / static_cast<double>(round.hidden_size));
        if (norm == 0 || norm > bounds[row]) return true;
    }
    return false;
}

// Collects the given rows of the answer, with the inputs that the judge needs to compute them
// again.
AnswerSample SwarmChecks::sample_of(const Round& round, const Attempt& attempt,
                                    std::span<const float> y, bool unsummed,
                                    std::span<const std::uint32_t> rows,
                                    std::vector<std::uint32_t>& units) const {
    const std::size_t hidden = round.hidden_size;
    AnswerSample sample{.layer = round.layer,
                        .hidden_size = round.hidden_size,
                        .dtype = attempt.shape.dtype,
                        .x_int8 = attempt.x_int8};
    for (const std::uint32_t row : rows) {
        const auto values = y.subspan(row * hidden, hidden);
        sample.y.insert(sample.y.end(), values.begin(), values.end());
    }

    constexpr std::uint32_t none = 0xffffffff;
    std::vector<std::uint32_t> x_row_of(round.num_tokens, none);
    std::uint32_t num_x_rows = 0;
    each_pair(
        round, attempt, unsummed,
        [&](std::uint32_t pair, std::uint16_t expert, std::uint32_t unit, std::uint32_t y_row) {
            const auto at = std::lower_bound(rows.begin(), rows.end(), y_row);
            if (at == rows.end() || *at != y_row) return;

            const std::uint32_t token = round.pair_row[pair];
            if (x_row_of[token] == none) {
                x_row_of[token] = num_x_rows++;
                const float* x = round.x->data() + token * hidden;
                sample.x.insert(sample.x.end(), x, x + hidden);
            }
            sample.pairs.push_back({.expert = expert,
                                    .x_row = x_row_of[token],
                                    .y_row = static_cast<std::uint32_t>(at - rows.begin()),
                                    .gate = half_to_float(float_to_half(round.pair_gate[pair]))});
            units.push_back(unit);
        });
    return sample;
}

void SwarmChecks::receive_answer(EventContext& context, Worker& worker, Attempt& attempt,
                                 WorkerAnswer answer, bool unsummed) {
    std::vector<float>& y = answer.y;
    if (attempt.witness_of_check != 0) {
        on_witness(context, worker, attempt, std::move(y), unsummed);
        return;
    }
    if (!options_.checks.on) {
        swarm_.attempts.accept_answer(context, attempt, std::move(y), unsummed,
                                      Evidence::unchecked);
        return;
    }

    const Round& round = *in_flight_.find_round(attempt.round);
    const bool odd = worker.is_proven && is_odd(round, attempt, answer.square_sums, unsummed);
    CheckPlan plan = trust_.plan(worker.trust_key, worker.trust_address,
                                 static_cast<std::uint32_t>(y.size() / round.hidden_size),
                                 attempt.num_pairs, odd, context.now);
    if (plan.rows.empty()) {
        swarm_.attempts.accept_answer(context, attempt, std::move(y), unsummed, Evidence::proven);
        return;
    }

    if (!options_.checks.judge) {
        hold_for_witness(context, worker, attempt, std::move(plan), std::move(y), unsummed);
        return;
    }

    const std::uint64_t id = ++last_check_;
    PendingCheck& check = pending_[id];
    check.worker = worker.id;
    check.key = worker.trust_key;
    check.address = worker.trust_address;
    CheckAnswer action{sample_of(round, attempt, y, unsummed, plan.rows, check.units)};
    action.sample.id = id;
    action.sample.arithmetic = worker.arithmetic;
    action.sample.awaited = plan.hold;
    context.out.push_back(std::move(action));

    check.plan = std::move(plan);
    if (!check.plan.hold) {
        swarm_.attempts.accept_answer(context, attempt, std::move(y), unsummed, Evidence::proven);
        return;
    }
    ++counts_.answers_held;
    attempt.check_id = id;
    check.attempt = attempt.id;
    check.y = std::move(y);
    check.unsummed = unsummed;
}

void SwarmChecks::on_judgement(EventContext& context, std::uint64_t id,
                               const Judgement& judgement) {
    auto node = pending_.extract(id);
    if (!node) return;
    PendingCheck& check = node.mapped();
    const bool banned = trust_.on_verdict(check.key, check.address, judgement.verdict, check.plan,
                                          context.now);

    if (Worker* worker = pool_.find(check.worker))
        worker->is_proven = trust_.trust(check.key, context.now) == Trust::proven;

    Attempt* attempt = check.attempt == 0 ? nullptr : in_flight_.find_attempt(check.attempt);
    if (attempt != nullptr) attempt->check_id = 0;

    switch (judgement.verdict) {
        case Verdict::honest:
            counts_.rows_right += check.plan.rows.size();
            counts_.residual_max = std::max(counts_.residual_max, judgement.residual);
            for (std::size_t i = 0; i < std::min(check.units.size(), judgement.gains.size()); ++i)
                gains_.learn(check.units[i], judgement.gains[i]);
            if (attempt != nullptr) {
                const std::size_t hidden = in_flight_.find_round(attempt->round)->hidden_size;
                const bool all = check.plan.rows.size() * hidden == check.y.size();
                swarm_.attempts.accept_answer(context, *attempt, std::move(check.y), check.unsummed,
                                              all ? Evidence::verified : Evidence::proven);
            }
            break;

        case Verdict::undecided:
            counts_.rows_undecided += check.plan.rows.size();
            if (attempt != nullptr)
                swarm_.attempts.accept_answer(context, *attempt, std::move(check.y), check.unsummed,
                                              Evidence::unchecked);
            break;

        case Verdict::lie: {
            ++counts_.lies;
            counts_.rows_wrong += check.plan.rows.size();
            const RoundId round_id = attempt == nullptr ? 0 : attempt->round;
            if (attempt != nullptr)
                swarm_.attempts.drop_attempt(context, *attempt, AttemptFailure::bad_answer);
            on_wrong_rows(context, check.worker, wrong_rows(check.plan), banned);
            if (Round* round = in_flight_.find_round(round_id))
                swarm_.rounds.dispatch(context, *round);
            break;
        }
    }
}

// Handles an answer that is known to be wrong without a recomputation (shape, infinity or norm).
void SwarmChecks::on_wrong_answer(EventContext& context, Worker& worker, Attempt& attempt,
                                  const std::string& wrong) {
    const RoundId round_id = attempt.round;
    worker.ids.release(attempt.sequence_id);
    swarm_.attempts.drop_attempt(context, attempt, AttemptFailure::bad_answer);

    const bool banned = options_.checks.on &&
                        trust_.on_verdict(worker.trust_key, worker.trust_address, Verdict::lie, {},
                                          context.now);
    worker.is_proven = trust_.trust(worker.trust_key, context.now) == Trust::proven;
    on_wrong_rows(context, worker.id, wrong, banned);
    if (!banned && worker.bad_answers >= options_.bad_answers_max)
        swarm_.sessions.refuse(
            context, worker,
            {ErrorCode::bad_field, text(worker.bad_answers, " bad answers, the last: ", wrong)},
            CloseCode::policy);
    if (Round* open = in_flight_.find_round(round_id)) swarm_.rounds.dispatch(context, *open);
}

void SwarmChecks::on_lying_span(EventContext& context, Worker& worker, const std::string& why) {
    ++counts_.lies;
    if (options_.checks.on) trust_.ban(worker.trust_key, context.now);
    on_wrong_rows(context, worker.id, why, options_.checks.on);
}

std::string SwarmChecks::wrong_rows(const CheckPlan& plan) {
    return text(plan.rows.size(), " rows of an answer differ from the rows computed again");
}

// Reports a false answer, and removes the worker if it is `banned`. The worker's trust record is
// already updated.
void SwarmChecks::on_wrong_rows(EventContext& context, WorkerId liar, const std::string& what,
                                bool banned) {
    ++counts_.bad_answers;
    Worker* worker = pool_.find(liar);
    if (worker == nullptr) return;

    ++worker->bad_answers;
    context.event(*worker, WorkerEvent::Kind::lied, what);
    if (!banned) return;

    ++counts_.bans;
    context.event(*worker, WorkerEvent::Kind::banned,
                  text(worker->bad_answers, " answers were false, the last: ", what));
    swarm_.sessions.refuse(
        context, *worker,
        {ErrorCode::unauthorized,
         "its answers differ from the values computed again; the hub does not accept it for now"},
        CloseCode::policy);
}

// Cancels those attempts of a worker that wait for the judge's verdict. Appends the rounds of these
// attempts to `touched`; the caller must dispatch these rounds again.
void SwarmChecks::drop_held(EventContext& context, WorkerId worker, std::vector<RoundId>& touched) {
    std::vector<AttemptId> held;
    for (const auto& [id, check] : pending_)
        if (check.worker == worker && check.attempt != 0) held.push_back(check.attempt);
    std::sort(held.begin(), held.end());
    for (const AttemptId id : held) {
        touched.push_back(in_flight_.find_attempt(id)->round);
        swarm_.attempts.cancel_attempt(context, *in_flight_.find_attempt(id));
    }
}

std::optional<Error> SwarmChecks::closed(TimePoint now, std::string_view worker_key) const {
    if (worker_key.empty()) return std::nullopt;
    const Duration left = options_.closed_for ? options_.closed_for(worker_key)
                                              : trust_.banned_for(worker_key, now);
    if (left <= Duration::zero()) return std::nullopt;
    return Error{ErrorCode::unauthorized,
                 text("the hub does not accept this worker for ", left / 1min + 1,
                      " min: its answers differed from the values computed again, or the "
                      "operator banned it")};
}

void SwarmChecks::on_cancelled(const Attempt& attempt) {
    pending_.at(attempt.check_id).attempt = 0;
    if (!options_.checks.judge) pending_.erase(attempt.check_id);
}

void SwarmChecks::on_welcome(Worker& worker, TimePoint now) {
    worker.trust_key = worker.worker_key.empty() ? text('#', worker.id) : worker.worker_key;
    worker.is_proven = trust_.trust(worker.trust_key, now) == Trust::proven;
    worker.pairs_credited_before = trust_.pairs_credited(worker.trust_key);
}

void SwarmChecks::set_trust_record(TimePoint now, std::string_view worker_key,
                                   const TrustRecord& record) {
    trust_.set_record(worker_key, record);
    renew_trust(now);
}

void SwarmChecks::describe(const Worker& worker, WorkerView& view) const {
    if (!options_.checks.on) return;
    // the time does not matter, because a connected worker is not banned
    const TimePoint any = TimePoint::max();
    view.trust = trust_.trust(worker.trust_key, any);
    view.check_rate = trust_.rate(worker.trust_key, any);
    view.rows_verified = trust_.rows_verified(worker.trust_key);
    view.pairs_credited = trust_.pairs_credited(worker.trust_key) - worker.pairs_credited_before;
    view.lies = trust_.lies(worker.trust_key);
}

void SwarmChecks::check_invariants(std::vector<std::string>& broken) {
    for (const auto& [id, check] : pending_) {
        if (check.attempt == 0) continue;
        const Attempt* attempt = in_flight_.find_attempt(check.attempt);
        if (attempt == nullptr || attempt->check_id != id)
            broken.push_back(text("check ", id, " holds attempt ", check.attempt,
                                  ", which does not wait for it"));
    }
}

}  // namespace moex
