// Checks of answers: answers that wait for the judge or for a second worker, and the trust records
// that follow from the verdicts.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hub/dispatch/core/event_context.h"
#include "hub/dispatch/round/worker_answer.h"
#include "hub/dispatch/trust/answer_trust.h"

namespace moex {

class SwarmChecks : public SwarmPart {
  public:
    explicit SwarmChecks(SwarmState& swarm);

    // ---- The following functions give answers to the judge (swarm_checks.cpp).
    // Receives an answer of the right shape. The answer counts at once, or after the judge's
    // verdict on it.
    void receive_answer(EventContext& context, Worker& worker, Attempt& attempt,
                        WorkerAnswer answer, bool unsummed);
    void on_judgement(EventContext& context, std::uint64_t id, const Judgement& judgement);
    // Handles an answer with a wrong shape, a wrong norm or an infinity. No recomputation is needed
    // to reject it.
    void on_wrong_answer(EventContext& context, Worker& worker, Attempt& attempt,
                         const std::string& wrong);
    // The worker was found to lie about the layers that it computes whole: its key is banned.
    void on_lying_span(EventContext& context, Worker& worker, const std::string& why);
    // The round no longer needs this attempt, but its answer still waits for a verdict. The
    // worker's trust record is updated by that verdict all the same.
    void on_cancelled(const Attempt& attempt);
    void drop_held(EventContext& context, WorkerId worker, std::vector<RoundId>& touched);

    // ---- The following functions read and change trust records.
    void on_welcome(Worker& worker, TimePoint now);
    // Returns the reason why the worker with this key may not join now; nullopt if it may.
    std::optional<Error> closed(TimePoint now, std::string_view worker_key) const;
    void ban(const Worker& worker, TimePoint now) { trust_.ban(worker.worker_key, now); }
    void describe(const Worker& worker, WorkerView& view) const;
    TrustRecord trust_record(std::string_view worker_key) const {
        return trust_.record(worker_key);
    }
    void set_trust_record(TimePoint now, std::string_view worker_key, const TrustRecord& record);
    bool has_room_for_new() const { return !options_.checks.on || newcomers_.has_room(); }
    void count_pairs(const Worker& worker, std::uint32_t num_pairs) {
        newcomers_.add(num_pairs, !worker.is_proven);
    }

    // ---- The following functions use a second worker (swarm_witness.cpp).
    // Call this when the attempt will not answer in time. If the attempt asked a witness (a second
    // worker that computes the same group), settle_without_witness() settles the check.
    void lose_witness(const Attempt& attempt) {
        if (attempt.witness_of_check != 0) witnesses_lost_.push_back(attempt.witness_of_check);
    }
    void settle_without_witness(EventContext& context);

    void check_invariants(std::vector<std::string>& broken);

  private:
    // A check that the judge or a witness has not finished, with the answer under check.
    struct PendingCheck {
        WorkerId worker = 0;
        std::string key;  // key of the worker's trust record
        std::uint64_t address = 0;
        WorkerArithmetic arithmetic = WorkerArithmetic::exact;
        CheckPlan plan;
        // numbers of the placement units of the (expert, row) pairs in the sample
        std::vector<std::uint32_t> units;
        AttemptId attempt = 0;  // attempt that waits for the verdict; 0: the answer already counts
        std::vector<float> y;   // the answer that waits for the verdict
        bool unsummed = true;
        // If another worker gave a different answer: the key of that worker, and its answer.
        std::string dissenter;
        std::vector<float> dissent;
    };

    bool is_odd(const Round& round, const Attempt& attempt, std::span<const double> square_sums,
                bool unsummed) const;
    AnswerSample sample_of(const Round& round, const Attempt& attempt, std::span<const float> y,
                           bool unsummed, std::span<const std::uint32_t> rows,
                           std::vector<std::uint32_t>& units) const;
    static std::string wrong_rows(const CheckPlan& plan);
    // Counts and reports a false answer. The worker's trust record is already updated. `what`
    // describes the fault.
    void on_wrong_rows(EventContext& context, WorkerId liar, const std::string& what, bool banned);
    // For a hub without expert weights. Sends the same request to a second worker, and to a third
    // worker if the first two answers differ.
    void hold_for_witness(EventContext& context, Worker& worker, Attempt& attempt, CheckPlan plan,
                          std::vector<float> y, bool unsummed);
    Worker* find_witness(TimePoint now, const Round& round, const Attempt& attempt,
                         const PendingCheck& check);
    bool ask_witness(EventContext& context, std::uint64_t id);
    void on_witness(EventContext& context, Worker& witness, Attempt& attempt, std::vector<float> y,
                    bool unsummed);
    void end_witness(Round& round, Attempt& attempt);
    void settle_dissent(EventContext& context, std::uint64_t id);
    void renew_trust(TimePoint now);
    void punish(EventContext& context, const std::string& key, const CheckPlan& plan);

    AnswerTrust trust_;
    ExpertGains gains_;
    std::unordered_map<std::uint64_t, PendingCheck> pending_;
    std::uint64_t last_check_ = 0;
    NewcomerShare newcomers_;
    std::vector<std::uint64_t> witnesses_lost_;  // checks that lost their witness
};

}  // namespace moex
