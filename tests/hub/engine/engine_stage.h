// Test fixtures for the engine: a small model, experts that stall, fail, are late or are remote as
// a test orders, and the outcomes of its generations.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>

#include "hub/engine/engine.h"
#include "hub/engine/expert_speculator.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {

// Local experts, with rounds that a test can delay, stall or let fail.
class GatedExperts : public ExpertBackend {
  public:
    explicit GatedExperts(LocalExperts& local) : local_(local) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        std::unique_lock lock(mutex_);
        ++rounds_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return open_; });
        if (fail_rounds_ > 0) {
            --fail_rounds_;
            return std::make_unique<FailedRound>(fail_code_);
        }
        return std::make_unique<StallingRound>(*this, local_.submit(batch));
    }
    const char* name() const override { return "gated"; }
    // After stall(true) rounds are accepted but not answered until stall(false) is called or their
    // stop is requested.
    void stall(bool stalled) {
        const std::lock_guard lock(mutex_);
        stalled_ = stalled;
        changed_.notify_all();
    }
    void wait_for_stall() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return waiting_ > 0; });
    }
    void close() { set(false); }
    void open() { set(true); }
    void fail_next(ErrorCode code = ErrorCode::unavailable) {
        const std::lock_guard lock(mutex_);
        fail_rounds_ = 1;
        fail_code_ = code;
    }
    // After this call each round lasts the given time, or until its stop is requested.
    void delay(Duration each) {
        const std::lock_guard lock(mutex_);
        delay_ = each;
    }
    void wait_for_round() {
        std::unique_lock lock(mutex_);
        const int seen = rounds_;
        changed_.wait(lock, [&] { return rounds_ > seen || (!open_ && rounds_ > 0); });
    }

  private:
    class FailedRound : public ExpertRound {
      public:
        explicit FailedRound(ErrorCode code) : code_(code) {}
        Result<ExpertAnswer> wait(std::stop_token) override {
            return Error{code_, "layer 0: nobody holds expert 3"};
        }

      private:
        const ErrorCode code_;
    };
    class StallingRound : public ExpertRound {
      public:
        StallingRound(GatedExperts& from, std::unique_ptr<ExpertRound> round)
            : from_(from),
              round_(std::move(round)) {}
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            std::unique_lock lock(from_.mutex_);
            ++from_.waiting_;
            from_.changed_.notify_all();
            bool free = from_.changed_.wait(lock, stop, [&] { return !from_.stalled_; });
            if (from_.delay_ > 0ns) {
                from_.changed_.wait_for(lock, stop, from_.delay_, [] { return false; });
                free = free && !stop.stop_requested();
            }
            --from_.waiting_;
            if (!free) return Error{ErrorCode::cancelled, "stopped"};
            return round_->wait(stop);
        }

      private:
        GatedExperts& from_;
        std::unique_ptr<ExpertRound> round_;
    };
    void set(bool open) {
        const std::lock_guard lock(mutex_);
        open_ = open;
        changed_.notify_all();
    }
    LocalExperts& local_;
    std::mutex mutex_;
    std::condition_variable_any changed_;
    bool open_ = true, stalled_ = false;
    int rounds_ = 0, fail_rounds_ = 0, waiting_ = 0;
    ErrorCode fail_code_ = ErrorCode::unavailable;
    Duration delay_{0};
};

// A backend that answers like the local experts, and reports a row's first expert as the worker
// that computed the row.
class ExpertsAsWorkers : public ExpertBackend {
  public:
    explicit ExpertsAsWorkers(LocalExperts& local) : local_(local) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        return std::make_unique<Named>(batch, local_.submit(batch));
    }
    const char* name() const override { return "named"; }

  private:
    class Named : public ExpertRound {
      public:
        Named(const ExpertBatch& batch, std::unique_ptr<ExpertRound> round)
            : batch_(batch),
              round_(std::move(round)) {}
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            Result<ExpertAnswer> answer = round_->wait(stop);
            for (std::uint32_t row = 0; answer.ok() && row < batch_.num_tokens; ++row) {
                const std::uint64_t worker = 1u + batch_.expert_ids[row * batch_.top_k];
                answer->workers.push_back(worker);
                answer->row_workers.push_back({.row = row, .worker = worker});
            }
            return answer;
        }

      private:
        const ExpertBatch batch_;
        std::unique_ptr<ExpertRound> round_;
    };
    LocalExperts& local_;
};

// Local experts with a simulated clock, which advances with each requested row. Records how many
// rows each step had. Used only on the engine's thread.
class ExpertsWithAClock : public ExpertBackend {
  public:
    explicit ExpertsWithAClock(LocalExperts& local) : local_(local) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        if (batch.layer == 0) step_rows.push_back(batch.num_tokens);
        now += 2ms + batch.num_tokens * 500us;
        return local_.submit(batch);
    }
    const char* name() const override { return "timed"; }

    TimePoint now{};
    std::vector<std::uint32_t> step_rows;

  private:
    LocalExperts& local_;
};

// Local experts behind a link with a simulated clock: a round takes the time `line`, whatever the
// engine does meanwhile, and each requested row takes additional time on the engine's thread.
class FarExperts : public ExpertBackend {
  public:
    FarExperts(LocalExperts& local, Duration line) : local_(local), line_(line) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        now += batch.num_tokens * 2ms;
        return std::make_unique<Round>(*this, local_.submit(batch));
    }
    const char* name() const override { return "far"; }
    bool works_elsewhere() const override { return true; }
    bool wants_hints() const override { return hinted; }

    TimePoint now{};
    bool hinted = false;

  private:
    struct Round : ExpertRound {
        Round(FarExperts& owner, std::unique_ptr<ExpertRound> round)
            : far(owner),
              asked_at(owner.now),
              inner(std::move(round)) {}
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            far.now = std::max(far.now, asked_at + far.line_);
            auto answer = inner->wait(std::move(stop));
            if (answer.ok()) answer->waited = far.line_;
            return answer;
        }
        FarExperts& far;
        TimePoint asked_at;
        std::unique_ptr<ExpertRound> inner;
    };
    LocalExperts& local_;
    const Duration line_;
};

// Local experts that leave out the first expert's answer of each row with a latency budget, as
// late.
class LateExperts : public ExpertBackend {
  public:
    explicit LateExperts(ExpertBackend& local) : local_(local) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        return std::make_unique<Round>(local_, batch);
    }
    const char* name() const override { return "late"; }

  private:
    struct Round : ExpertRound {
        Round(ExpertBackend& local, const ExpertBatch& batch)
            : weights(batch.expert_weights.begin(), batch.expert_weights.end()) {
            for (const RowPatience& one : batch.patience) {
                EXPECT_GE(one.pairs_max, 1u);
                const std::size_t first = std::size_t{one.row} * batch.top_k;
                weights[first] = 0;
                late.push_back({.row = one.row, .expert = batch.expert_ids[first]});
            }
            ExpertBatch kept = batch;
            kept.expert_weights = weights;
            kept.patience = {};
            inner = local.submit(kept);
        }
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            auto answer = inner->wait(std::move(stop));
            if (!answer.ok()) return answer;
            answer->late = late;
            for (const LatePair& pair : late) ++answer->rows[pair.row].pairs_late;
            return answer;
        }
        std::vector<float> weights;
        std::vector<LatePair> late;
        std::unique_ptr<ExpertRound> inner;
    };
    ExpertBackend& local_;
};

// Uses zeros as a substitute for the answers of every layer after the first: a very wrong
// substitute.
class NothingStandsIn : public ExpertSpeculator {
  public:
    void choose(const RouteView& seen, std::span<std::uint16_t>, std::span<float>) override {
        positions_min = std::min(positions_min, seen.rows[0].position);
    }
    bool stand_in(const RouteView& asked, std::span<float> y) override {
        std::fill(y.begin(), y.end(), 0.0f);
        return asked.layer > 0;
    }
    std::uint32_t positions_min = ~0u;
};

// The tokens and the end of a generation, as a test received them.
struct Outcome {
    std::vector<TokenId> ids;
    std::vector<float> logprobs;
    GenerationEnd end;
};

// A generation that an engine was asked for.
struct Pending {
    GenerationId id = 0;
    std::future<Outcome> outcome;
    std::shared_ptr<std::promise<void>> first_token = std::make_shared<std::promise<void>>();
};

// Submits `request`. `on_token` is called after each token with the number of tokens so far.
inline Pending submit_to(Engine& engine, GenerationRequest request,
                         std::function<void(std::size_t)> on_token = {}) {
    Pending pending;
    auto outcome = std::make_shared<Outcome>();
    auto done = std::make_shared<std::promise<Outcome>>();
    pending.outcome = done->get_future();
    const std::size_t given = request.answer.size();
    const auto id = engine.submit(
        std::move(request),
        {.on_token =
             [outcome, on_token, given, first = pending.first_token](const TokenEvent& event) {
                 EXPECT_EQ(event.index, given + outcome->ids.size());
                 outcome->ids.push_back(event.token.id);
                 outcome->logprobs.push_back(event.token.logprob);
                 if (event.index == given) first->set_value();
                 if (on_token) on_token(outcome->ids.size());
             },
         .on_end =
             [outcome, done](const GenerationEnd& end) {
                 outcome->end = end;
                 done->set_value(*outcome);
             }});
    EXPECT_TRUE(id.ok());
    if (id.ok()) pending.id = *id;
    return pending;
}

// A request that draws with a seed and wants the log-probability of each token.
inline GenerationRequest drawn_request(std::vector<TokenId> prompt, std::uint32_t max_tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.logprobs = true;
    request.sampling = {.temperature = 0.9, .seed = 3};
    return request;
}

class EngineTest : public testing::Test {
  protected:
    explicit EngineTest(std::shared_ptr<const ModelPackage> package = test::tiny_package())
        : package_(std::move(package)),
          local_(package_, test::compute_threads(), {}),
          experts_(local_) {
        auto created = Decoder::create(package_, test::compute_threads());
        if (!created.ok()) throw std::runtime_error(created.error().message);
        decoder_ = std::move(created).value();
    }
    void start(EngineOptions options) {
        engine_ = std::make_unique<Engine>(*decoder_, experts_, options);
    }

    static GenerationRequest greedy(std::vector<TokenId> prompt, std::uint32_t max_tokens) {
        GenerationRequest request;
        request.prompt = std::move(prompt);
        request.max_tokens = max_tokens;
        request.sampling.temperature = 0;
        return request;
    }
    Pending submit(GenerationRequest request) { return submit_to(*engine_, std::move(request)); }
    static Outcome get(Pending& pending) {
        if (pending.outcome.wait_for(60s) != std::future_status::ready)
            throw std::runtime_error("the generation did not end");
        return pending.outcome.get();
    }
    Outcome solo(GenerationRequest request) {
        auto pending = submit(std::move(request));
        return get(pending);
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts local_;
    GatedExperts experts_;
    std::unique_ptr<Decoder> decoder_;
    // declared last, so that the engine stops before the other members are destroyed
    std::unique_ptr<Engine> engine_;
};

}  // namespace moex
