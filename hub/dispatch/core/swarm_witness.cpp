// Checks of answers in a hub without expert weights. A second worker (the witness) is sent the same
// request. Two answers that agree prove each other, unless both workers collude. If the two answers
// differ, a third worker is asked, and the worker that disagrees with both others has lied. Where
// no other worker holds these experts, the answer counts as unchecked, and the reply to the client
// reports that.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {

void SwarmChecks::hold_for_witness(EventContext& context, Worker& worker, Attempt& attempt,
                                   CheckPlan plan, std::vector<float> y, bool unsummed) {
    const std::uint64_t id = ++last_check_;
    pending_[id] = {.worker = worker.id,
                    .key = worker.trust_key,
                    .address = worker.trust_address,
                    .arithmetic = worker.arithmetic,
                    .plan = std::move(plan),
                    .attempt = attempt.id,
                    .y = std::move(y),
                    .unsummed = unsummed};
    attempt.check_id = id;
    if (ask_witness(context, id)) {
        ++counts_.answers_held;
        return;
    }

    auto node = pending_.extract(id);
    attempt.check_id = 0;
    counts_.rows_undecided += node.mapped().plan.rows.size();
    swarm_.attempts.accept_answer(context, attempt, std::move(node.mapped().y), unsummed,
                                  Evidence::unchecked);
}

// Finds a witness: a worker at another address that holds all units of the attempt. Workers with a
// trust record are preferred.
Worker* SwarmChecks::find_witness(TimePoint now, const Round& round, const Attempt& attempt,
                                  const PendingCheck& check) {
    const auto may = [&](const Worker& worker) {
        if (!swarm_.cover.eligible(worker, now) || !worker.health.serves() ||
            worker.published_peer || worker.trust_key == check.key ||
            worker.trust_key == check.dissenter ||
            (worker.trust_address != 0 && worker.trust_address == check.address) ||
            (!check.dissenter.empty() && worker.arithmetic != check.arithmetic) ||
            !worker.accepts(attempt.shape.dtype) ||
            worker.takes_x_int8(attempt.shape.dtype) != attempt.x_int8 ||
            attempt.num_pairs > worker.pairs_max)
            return false;
        return std::all_of(attempt.slices.begin(), attempt.slices.end(), [&](std::uint32_t i) {
            const CallSlice& slice = round.slices[i];
            return worker.has(slice.unit, Worker::ready) && !slice.was_tried(worker.id);
        });
    };
    const auto rank = [&](const Worker& worker) {
        return std::tuple(worker.arithmetic != check.arithmetic,
                          trust_.trust(worker.trust_key, now) != Trust::proven,
                          worker.ids.num_live(), worker.work, worker.id);
    };

    Worker* best = nullptr;
    for (const auto& [id, worker] : pool_.all())
        if (may(*worker) && (best == nullptr || rank(*worker) < rank(*best))) best = worker.get();
    return best;
}

bool SwarmChecks::ask_witness(EventContext& context, std::uint64_t id) {
    const PendingCheck& check = pending_.at(id);
    const Attempt& held = *in_flight_.find_attempt(check.attempt);
    Round& round = *in_flight_.find_round(held.round);
    // In a summed round, a published peer's answer for one expert has another shape than a
    // witness's answer would have.
    if (check.unsummed != round.unsummed) return false;

    Worker* witness = find_witness(context.now, round, held, check);
    if (witness == nullptr) return false;
    const std::vector<std::uint32_t> slices = held.slices;
    // Other attempts may be in flight for parts of the sum that `held` contains. They are no longer
    // needed, since the whole answer has arrived. The witness repeats the whole attempt, and such
    // parts beside it would break the invariant that attempts are nested.
    const std::vector<AttemptId> others = round.attempts;
    for (const AttemptId other_id : others) {
        Attempt& other = *in_flight_.find_attempt(other_id);
        const bool is_part =
            other_id != held.id &&
            std::all_of(other.slices.begin(), other.slices.end(), [&](std::uint32_t slice) {
                return std::find(slices.begin(), slices.end(), slice) != slices.end();
            });
        if (!round.unsummed && is_part) swarm_.attempts.cancel_attempt(context, other);
    }
    swarm_.attempts.send_attempt(context, round, *witness, slices, AttemptKind::hedge);
    in_flight_.find_attempt(round.attempts.back())->witness_of_check = id;
    return true;
}

void SwarmChecks::on_witness(EventContext& context, Worker& witness, Attempt& attempt,
                             std::vector<float> y, bool unsummed) {
    const std::uint64_t id = attempt.witness_of_check;
    const auto found = pending_.find(id);
    if (found == pending_.end() || found->second.attempt == 0) {
        // too late to judge the first answer, but as good as any other answer to the round
        swarm_.attempts.accept_answer(context, attempt, std::move(y), unsummed,
                                      Evidence::unchecked);
        return;
    }

    PendingCheck& check = found->second;
    Round& round = *in_flight_.find_round(attempt.round);
    // If both workers compute with the same arithmetic, their answers are compared closely. If one
    // computes in integers and the other does not, the tolerance is wider and leaves room for a
    // small false term.
    const double tolerance = check.arithmetic == witness.arithmetic ? arithmetic_tolerance
                                                                    : int8_tolerance;
    const auto agrees = [&](const std::vector<float>& other) {
        return answers_agree(other, y, round.hidden_size, attempt.shape.dtype, tolerance);
    };
    const CheckPlan own = trust_.plan(witness.trust_key, witness.trust_address,
                                      static_cast<std::uint32_t>(y.size() / round.hidden_size),
                                      attempt.num_pairs, true, context.now);

    if (agrees(check.y)) {
        PendingCheck settled = std::move(pending_.extract(id).mapped());
        trust_.on_verdict(settled.key, settled.address, Verdict::honest, settled.plan, context.now);
        trust_.on_verdict(witness.trust_key, witness.trust_address, Verdict::honest, own,
                          context.now);
        counts_.rows_right += settled.plan.rows.size();
        renew_trust(context.now);
        end_witness(round, attempt);
        Attempt& held = *in_flight_.find_attempt(settled.attempt);
        held.check_id = 0;
        swarm_.attempts.accept_answer(context, held, std::move(settled.y), settled.unsummed,
                                      Evidence::verified);
        if (!settled.dissenter.empty()) punish(context, settled.dissenter, own);
        return;
    }

    if (check.dissenter.empty()) {
        check.dissenter = witness.trust_key;
        check.dissent = std::move(y);
        end_witness(round, attempt);
        if (!ask_witness(context, id)) settle_dissent(context, id);
        return;
    }

    if (agrees(check.dissent)) {
        PendingCheck settled = std::move(pending_.extract(id).mapped());
        trust_.on_verdict(witness.trust_key, witness.trust_address, Verdict::honest, own,
                          context.now);
        counts_.rows_right += settled.plan.rows.size();
        Attempt& held = *in_flight_.find_attempt(settled.attempt);
        held.check_id = 0;
        round.end(held);
        in_flight_.erase_attempt(held.id);
        attempt.witness_of_check = 0;
        swarm_.attempts.accept_answer(context, attempt, std::move(y), unsummed, Evidence::verified);
        punish(context, settled.key, settled.plan);
        return;
    }

    end_witness(round, attempt);
    settle_dissent(context, id);
}

// Ends the attempt of a witness after its answer has arrived.
void SwarmChecks::end_witness(Round& round, Attempt& attempt) {
    round.end(attempt);
    in_flight_.erase_attempt(attempt.id);
}

// Settles a check in which two answers differ and no further worker can be asked. A worker with a
// trust record is believed against a worker without one.
void SwarmChecks::settle_dissent(EventContext& context, std::uint64_t id) {
    PendingCheck settled = std::move(pending_.extract(id).mapped());
    Attempt& held = *in_flight_.find_attempt(settled.attempt);
    held.check_id = 0;
    counts_.rows_undecided += settled.plan.rows.size();

    const bool is_proven = trust_.trust(settled.key, context.now) == Trust::proven,
               other_is_proven = trust_.trust(settled.dissenter, context.now) == Trust::proven;
    const bool believes_other = other_is_proven && !is_proven;
    if (is_proven == other_is_proven) {
        trust_.suspect(settled.key);
        trust_.suspect(settled.dissenter);
    }
    swarm_.attempts.accept_answer(
        context, held, believes_other ? std::move(settled.dissent) : std::move(settled.y),
        settled.unsummed, Evidence::unchecked);
    if (is_proven != other_is_proven)
        punish(context, believes_other ? settled.key : settled.dissenter, settled.plan);
}

// Settles checks that got no answer of their witness in time: the held answer counts as unchecked.
void SwarmChecks::settle_without_witness(EventContext& context) {
    while (!witnesses_lost_.empty()) {
        const std::uint64_t id = witnesses_lost_.back();
        witnesses_lost_.pop_back();
        const auto found = pending_.find(id);
        if (found == pending_.end() || found->second.attempt == 0) continue;
        if (!found->second.dissenter.empty()) {
            settle_dissent(context, id);
            continue;
        }

        PendingCheck settled = std::move(pending_.extract(id).mapped());
        Attempt& held = *in_flight_.find_attempt(settled.attempt);
        held.check_id = 0;
        counts_.rows_undecided += settled.plan.rows.size();
        swarm_.attempts.accept_answer(context, held, std::move(settled.y), settled.unsummed,
                                      Evidence::unchecked);
    }
}

void SwarmChecks::renew_trust(TimePoint now) {
    for (const auto& [id, worker] : pool_.all())
        worker->is_proven = trust_.trust(worker->trust_key, now) == Trust::proven;
}

// Records the false answer of a worker that disagreed with two other workers.
void SwarmChecks::punish(EventContext& context, const std::string& key, const CheckPlan& plan) {
    WorkerId liar = 0;
    std::uint64_t address = 0;
    for (const auto& [id, worker] : pool_.all())
        if (worker->trust_key == key) {
            liar = id;
            address = worker->trust_address;
        }
    ++counts_.lies;
    counts_.rows_wrong += plan.rows.size();
    renew_trust(context.now);
    on_wrong_rows(context, liar, wrong_rows(plan),
                  trust_.on_verdict(key, address, Verdict::lie, plan, context.now));
}

}  // namespace moex
