// What is computed again: answers that wait for the judge or for a second worker, and the records
// that follow from it.
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

    // ---- swarm_checks.cpp: the judge
    // An answer of the right shape: it counts now, or once it was judged.
    void receive_answer(EventContext& context, Worker& worker, Attempt& attempt,
                        WorkerAnswer answer, bool unsummed);
    void on_judgement(EventContext& context, std::uint64_t id, const Judgement& judgement);
    // A lie that need not be computed again to be seen as one.
    void on_wrong_answer(EventContext& context, Worker& worker, Attempt& attempt,
                         const std::string& wrong);
    // The round needs the attempt no more, whose answer waits for a verdict: that comes all the
    // same.
    void on_cancelled(const Attempt& attempt);
    void drop_held(EventContext& context, WorkerId worker, std::vector<RoundId>& touched);

    // ---- records
    void on_welcome(Worker& worker, TimePoint now);
    // Why this worker may not join now, if its key is closed.
    std::optional<Error> closed(TimePoint now, std::string_view worker_key) const;
    void ban(const Worker& worker, TimePoint now) { trust_.ban(worker.worker_key, now); }
    void describe(const Worker& worker, WorkerView& view) const;
    bool has_room_for_new() const { return !options_.checks.on || newcomers_.has_room(); }
    void count_pairs(const Worker& worker, std::uint32_t num_pairs) {
        newcomers_.add(num_pairs, !worker.is_proven);
    }

    // ---- swarm_witness.cpp: a second worker
    // The attempt will not answer in time; where it was a witness, settle_without_witness()
    // follows.
    void lose_witness(const Attempt& attempt) {
        if (attempt.witness_of_check != 0) witnesses_lost_.push_back(attempt.witness_of_check);
    }
    void settle_without_witness(EventContext& context);

    void check_invariants(std::vector<std::string>& broken);

  private:
    // Rows that the judge has, and what waits for it.
    struct PendingCheck {
        WorkerId worker = 0;
        std::string key;  // of its record
        std::uint64_t address = 0;
        WorkerArithmetic arithmetic = WorkerArithmetic::exact;
        CheckPlan plan;
        std::vector<std::uint32_t> units;  // of the sample's pairs
        AttemptId attempt = 0;             // held until the verdict; 0: it has counted already
        std::vector<float> y;              // of the held answer
        bool unsummed = true;
        // Where a second worker judges: who said something else, and what.
        std::string dissenter;
        std::vector<float> dissent;
    };

    bool is_odd(const Round& round, const Attempt& attempt, std::span<const double> square_sums,
                bool unsummed) const;
    AnswerSample sample_of(const Round& round, const Attempt& attempt, std::span<const float> y,
                           bool unsummed, std::span<const std::uint32_t> rows,
                           std::vector<std::uint32_t>& units) const;
    static std::string wrong_rows(const CheckPlan& plan);
    // Its record says so already; `what` was wrong.
    void on_wrong_rows(EventContext& context, WorkerId liar, const std::string& what, bool banned);
    // Without weights: another worker is asked the same, and a third one where those two differ.
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
    std::vector<std::uint64_t> witnesses_lost_;  // checks whose witness will say nothing
};

}  // namespace moex
