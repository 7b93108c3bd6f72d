// Continuous batching as its users see it. Waits are for
// events; the deadline of each only ends a broken test.
#include "hub/engine/engine.h"
#include "hub/engine/expert_speculator.h"

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>

#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

// Local experts behind a gate that a test can close, and a fault it can order.
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
    // From now on rounds are taken and not answered, until they are let go or told to stop.
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
    // From now on each round lasts this long, or until it is told to stop.
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

// Answers as the local experts do and says that a row's first expert is the worker who did it.
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

// Local experts on a machine whose time is counted, not measured: it moves with the rows that are
// asked for. Remembers how many rows each step had. All on the engine's thread.
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

// Local experts at the end of a line, whose time is counted: a round takes so long whatever the
// engine does meanwhile, and each row asked for takes the engine some time.
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

// Local experts of whom the first answer of each row that need not wait for it is late.
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

// Nothing stands in for the answers of every layer behind the first: as wrong as can be.
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

// What one generation gave.
struct Outcome {
    std::vector<TokenId> ids;
    std::vector<float> logprobs;
    GenerationEnd end;
};

class EngineTest : public testing::Test {
  protected:
    EngineTest()
        : package_(test::tiny_package()),
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
    struct Pending {
        GenerationId id = 0;
        std::future<Outcome> outcome;
        std::shared_ptr<std::promise<void>> first_token = std::make_shared<std::promise<void>>();
    };
    Pending submit(GenerationRequest request) {
        Pending pending;
        auto outcome = std::make_shared<Outcome>();
        auto done = std::make_shared<std::promise<Outcome>>();
        pending.outcome = done->get_future();
        const auto first = pending.first_token;
        const auto id = engine_->submit(std::move(request),
                                        {.on_token =
                                             [outcome, first](const TokenEvent& event) {
                                                 EXPECT_EQ(event.index, outcome->ids.size());
                                                 outcome->ids.push_back(event.token.id);
                                                 outcome->logprobs.push_back(event.token.logprob);
                                                 if (event.index == 0) first->set_value();
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
    std::unique_ptr<Engine> engine_;  // last: stops first
};

TEST_F(EngineTest, ConcurrentGenerationsEqualTheirSoloRuns) {
    start({.sequences_max = 4, .step_rows_max = 10, .prefix_cache = false});
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 6; ++i) {
        requests.push_back(greedy(test::random_tokens(3 + 7 * i, 256, i), 20));
        if (i % 2 == 1) requests.back().sampling = {.temperature = 0.9, .top_p = 0.9, .seed = i};
    }
    std::vector<Outcome> alone;

    for (const auto& request : requests) alone.push_back(solo(request));
    EXPECT_EQ(engine_->counters().steps_multi_sequence, 0u);
    experts_.close();  // until all are in
    std::vector<Pending> together;
    for (const auto& request : requests) together.push_back(submit(request));
    experts_.open();

    for (std::size_t i = 0; i < together.size(); ++i) {
        const Outcome outcome = get(together[i]);
        EXPECT_EQ(outcome.ids, alone[i].ids);
        EXPECT_EQ(outcome.logprobs, alone[i].logprobs);
        EXPECT_EQ(outcome.end.reason, FinishReason::length);
        EXPECT_EQ(outcome.end.stats.completion_tokens, 20u);
        EXPECT_EQ(outcome.end.stats.prompt_tokens, requests[i].prompt.size());
        // Every row but the last token's: three MoE layers, two experts.
        EXPECT_EQ(outcome.end.stats.pairs_local, 6 * (requests[i].prompt.size() + 19));
    }
    const EngineCounters counters = engine_->counters();
    EXPECT_GT(counters.steps_multi_sequence, 10u);
    EXPECT_EQ(counters.running_max, 4u);
    EXPECT_EQ(counters.generated_tokens, 240u);
    EXPECT_EQ(counters.kv_pages_used, 0u);
    EXPECT_EQ(counters.running, 0u);
}

TEST_F(EngineTest, StepsAreCutWhereTheLineIsLongAndTheTextsAreTheSame) {
    const auto write = [&](ExpertBackend& experts, const EngineOptions& options) {
        engine_ = std::make_unique<Engine>(*decoder_, experts, options);
        std::vector<Pending> pending;
        for (std::uint32_t i = 0; i < 4; ++i)
            pending.push_back(submit(greedy(test::random_tokens(8, 256, i), 100)));
        std::vector<std::vector<TokenId>> texts;
        for (Pending& one : pending) texts.push_back(get(one).ids);
        return texts;
    };
    FarExperts near(local_, 0ms), far(local_, 10ms);
    const auto options = [](const FarExperts& experts, std::uint32_t micro_batches) {
        return EngineOptions{.clock = [&experts] { return experts.now; },
                             .micro_batches = micro_batches};
    };

    const auto wanted = write(local_, {});
    EXPECT_EQ(engine_->counters().steps_micro_batched, 0u);  // they compute on this thread
    EXPECT_EQ(write(near, options(near, 0)), wanted);
    EXPECT_EQ(engine_->counters().steps_micro_batched, 0u);  // nothing is waited for
    EXPECT_EQ(write(far, options(far, 0)), wanted);
    EXPECT_GT(engine_->counters().steps_micro_batched, 50u);
    EXPECT_EQ(write(far, options(far, 3)), wanted);
    EXPECT_GT(engine_->counters().steps_micro_batched, 90u);
    EXPECT_EQ(write(far, options(far, 1)), wanted);
    EXPECT_EQ(engine_->counters().steps_micro_batched, 0u);
    far.hinted = true;
    EXPECT_EQ(write(far, options(far, 0)), wanted);
    EXPECT_EQ(engine_->counters().steps_micro_batched, 0u);  // a hint would replace another
}

// "Answered by N contributors" counted whoever answered the step, other people's rows included.
TEST_F(EngineTest, AGenerationNamesTheWorkersOfItsOwnRowsOnly) {
    ExpertsAsWorkers named(local_);
    const auto workers_of = [&](std::vector<GenerationRequest> requests) {
        engine_ = std::make_unique<Engine>(*decoder_, named, EngineOptions{.sequences_max = 4});
        std::vector<Pending> pending;
        for (auto& request : requests) pending.push_back(submit(std::move(request)));
        std::vector<std::vector<std::uint64_t>> workers;
        for (Pending& one : pending) workers.push_back(get(one).end.stats.workers);
        return workers;
    };

    const auto short_one = [] { return greedy({17}, 1); };
    const auto alone = workers_of({short_one()}).front();
    const auto crowd = [&] {
        std::vector<GenerationRequest> requests{short_one()};
        for (std::uint32_t i = 0; i < 3; ++i)
            requests.push_back(greedy(test::random_tokens(60, 256, i), 1));
        return requests;
    };
    const auto together = workers_of(crowd());
    EXPECT_EQ(together.front(), alone);
    EXPECT_LE(alone.size(), 3u);            // one row in three MoE layers
    EXPECT_GT(together.back().size(), 3u);  // sixty rows
}

TEST_F(EngineTest, FewerRowsThanSequencesStillServesAll) {
    start({.sequences_max = 5, .step_rows_max = 2});
    std::vector<Pending> together;
    for (std::uint32_t i = 0; i < 5; ++i)
        together.push_back(submit(greedy(test::random_tokens(4, 256, i), 12)));
    for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(get(together[i]).ids.size(), 12u);
}

TEST_F(EngineTest, StopIdsEndWithoutATokenOfTheirOwn) {
    start({});
    const auto request = greedy(test::random_tokens(5, 256, 1), 16);
    const Outcome whole = solo(request);
    auto stopping = request;
    stopping.stop_ids = {whole.ids[7]};
    const auto first = std::find(whole.ids.begin(), whole.ids.end(), whole.ids[7]);
    const Outcome cut = solo(stopping);
    EXPECT_EQ(cut.ids, std::vector<TokenId>(whole.ids.begin(), first));
    EXPECT_EQ(cut.end.reason, FinishReason::stop);
}

TEST_F(EngineTest, TheContextBoundsPromptAndAnswer) {
    start({});
    const auto refused = engine_->submit(greedy(test::random_tokens(300, 256, 1), 8), {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message.find("300"), std::string::npos);
    EXPECT_NE(refused.error().message.find("256"), std::string::npos);
    EXPECT_FALSE(engine_->submit(greedy({}, 8), {}).ok());
    EXPECT_FALSE(engine_->submit(greedy({1, 256}, 8), {}).ok());

    const Outcome cut = solo(greedy(test::random_tokens(250, 256, 1), 100));
    EXPECT_EQ(cut.ids.size(), 6u);
    EXPECT_EQ(cut.end.reason, FinishReason::length);
}

TEST_F(EngineTest, TheQueueIsBoundedAndCancelFreesAPlaceAtOnce) {
    start({.sequences_max = 1, .queue_max = 2});
    experts_.close();
    auto running = submit(greedy(test::random_tokens(4, 256, 1), 200));
    experts_.wait_for_round();  // it left the queue
    auto first = submit(greedy(test::random_tokens(4, 256, 2), 4));
    auto second = submit(greedy(test::random_tokens(4, 256, 3), 4));
    const auto refused = engine_->submit(greedy({1}, 4), {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::overloaded);

    engine_->cancel(first.id);
    auto third = submit(greedy(test::random_tokens(4, 256, 4), 4));
    engine_->cancel(running.id);
    experts_.open();
    EXPECT_EQ(get(first).end.reason, FinishReason::cancelled);

    const Outcome cancelled = get(running);
    EXPECT_EQ(cancelled.end.reason, FinishReason::cancelled);
    EXPECT_LE(cancelled.ids.size(), 1u);  // one step at most after the call
    EXPECT_EQ(get(second).ids.size(), 4u);
    EXPECT_EQ(get(third).ids.size(), 4u);

    engine_->cancel(third.id);  // long over: nothing happens
    EXPECT_EQ(solo(greedy({5}, 3)).ids.size(), 3u);
}

// One client's thirty requests stood in front of another's only one.
TEST_F(EngineTest, ClientsThatWaitTakeTurns) {
    start({.sequences_max = 1});
    experts_.close();
    std::mutex mutex;
    std::string order;
    std::vector<std::future<void>> ended;
    const auto ask = [&](char client) {
        auto request = greedy({1, 2, 3}, 1);
        request.client = client;
        auto done = std::make_shared<std::promise<void>>();
        ended.push_back(done->get_future());
        EXPECT_TRUE(engine_
                        ->submit(request, {.on_token = {},
                                           .on_end =
                                               [&, client, done](const GenerationEnd&) {
                                                   {
                                                       const std::lock_guard lock(mutex);
                                                       order += client;
                                                   }
                                                   done->set_value();
                                               }})
                        .ok());
    };
    ask('a');
    experts_.wait_for_round();  // it left the queue
    for (const char client : std::string("aaaabbca")) ask(client);
    experts_.open();
    for (auto& one : ended) one.get();
    EXPECT_EQ(order, "aabcabaaa");
}

TEST_F(EngineTest, AdmissionWaitsForKeyValuePages) {
    const KvCache probe(package_->config(), {16, 0});
    start({.sequences_max = 8, .kv_bytes_max = 3 * probe.page_bytes()});
    const auto refused = engine_->submit(greedy(test::random_tokens(60, 256, 1), 8), {});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("48"), std::string::npos);

    std::vector<Pending> pending;
    // two pages each: one at a time
    for (std::uint32_t i = 0; i < 4; ++i)
        pending.push_back(submit(greedy(test::random_tokens(20, 256, i), 12)));
    for (auto& one : pending) EXPECT_EQ(get(one).ids.size(), 12u);
    EXPECT_EQ(engine_->counters().running_max, 1u);
    EXPECT_EQ(engine_->counters().kv_pages, 3u);
}

TEST_F(EngineTest, SequencesGrowIntoTheBudgetAndStepBackWithoutATrace) {
    const KvCache probe(package_->config(), {16, 0});
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 5; ++i) {
        requests.push_back(greedy(test::random_tokens(10 + i, 256, i), 60));
        if (i % 2 == 1) requests.back().sampling = {.temperature = 0.9, .seed = i};
    }
    requests[4].prompt_logprobs = true;
    start({});
    std::vector<Outcome> alone;

    for (const auto& request : requests) alone.push_back(solo(request));
    engine_.reset();
    // two of five whole sequences
    start({.sequences_max = 5, .step_rows_max = 24, .kv_bytes_max = 9 * probe.page_bytes()});
    experts_.close();
    std::vector<Pending> together;

    for (const auto& request : requests) together.push_back(submit(request));
    experts_.open();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Outcome outcome = get(together[i]);
        EXPECT_EQ(outcome.ids, alone[i].ids) << i;
        EXPECT_EQ(outcome.logprobs, alone[i].logprobs) << i;
        const auto &scores = outcome.end.prompt_logprobs, &wanted = alone[i].end.prompt_logprobs;
        ASSERT_EQ(scores.size(), wanted.size()) << i;
        for (std::size_t token = 0; token < scores.size(); ++token)
            EXPECT_EQ(scores[token].logprob, wanted[token].logprob) << i;
        EXPECT_EQ(outcome.end.stats.completion_tokens, 60u);
    }
    const EngineCounters counters = engine_->counters();
    EXPECT_GE(counters.running_max, 3u);
    EXPECT_GT(counters.preempted, 0u);
    EXPECT_EQ(counters.prompt_tokens, 10u + 11 + 12 + 13 + 14);
    EXPECT_EQ(counters.kv_pages_used, 0u);
}

// Exact ones beside lossy ones, with room for two of five, so that answers are computed again.
TEST_F(EngineTest, LossyAnswersChangeNothingBesideThem) {
    const KvCache probe(package_->config(), {16, 0});
    NothingStandsIn nothing, other;  // two ways, each with rows of its own in a step
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 5; ++i) {
        requests.push_back(greedy(test::random_tokens(10 + i, 256, i), 60));
        requests.back().logprobs = true;
        if (i % 2 == 0) requests.back().speculator = i == 2 ? &other : &nothing;
    }
    start({});
    std::vector<Outcome> alone;
    for (const auto& request : requests) alone.push_back(solo(request));
    EXPECT_EQ(nothing.positions_min, 10u);  // prompts are exact

    GenerationRequest exact = requests[0];
    exact.speculator = nullptr;
    const Outcome unlike = solo(exact);
    EXPECT_NE(unlike.logprobs, alone[0].logprobs);
    EXPECT_EQ(unlike.logprobs[0], alone[0].logprobs[0]);

    engine_.reset();
    start({.sequences_max = 5, .step_rows_max = 24, .kv_bytes_max = 9 * probe.page_bytes()});
    experts_.close();
    std::vector<Pending> together;
    for (const auto& request : requests) together.push_back(submit(request));
    experts_.open();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Outcome outcome = get(together[i]);
        EXPECT_EQ(outcome.ids, alone[i].ids) << i;
        EXPECT_EQ(outcome.logprobs, alone[i].logprobs) << i;
        EXPECT_EQ(outcome.end.stats.speculative, i % 2 == 0);
    }
    EXPECT_GT(engine_->counters().preempted, 0u);
}

// The next turn of a talk takes over the question's pages, and none of a lossy answer's.
TEST_F(EngineTest, ALossyAnswersPagesAreNotTakenOver) {
    NothingStandsIn nothing;
    start({});
    for (const bool lossy : {true, false}) {
        GenerationRequest request = greedy(test::random_tokens(32, 256, lossy), 40);
        if (lossy) request.speculator = &nothing;
        const Outcome answer = solo(request);
        ASSERT_EQ(answer.ids.size(), 40u);
        GenerationRequest next = greedy(request.prompt, 4);
        next.prompt.insert(next.prompt.end(), answer.ids.begin(), answer.ids.end());
        EXPECT_EQ(solo(next).end.stats.cached_tokens, lossy ? 32u : 64u);
    }

    // So it is with one that may lack answers, whether it did or not.
    GenerationRequest request = greedy(test::random_tokens(32, 256, 7), 40);
    request.late_wait = 1s, request.late_pairs_max = 1;
    const Outcome answer = solo(request);
    GenerationRequest next = greedy(request.prompt, 4);
    next.prompt.insert(next.prompt.end(), answer.ids.begin(), answer.ids.end());
    EXPECT_EQ(solo(next).end.stats.cached_tokens, 32u);
}

// Three MoE layers, one late answer each: seven are left out of three steps, and then no more.
TEST_F(EngineTest, LateAnswersAreLeftOutUpToTheRequestsMostAndChangeNothingBesideIt) {
    LateExperts late(experts_);
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 4; ++i) {
        requests.push_back(greedy(test::random_tokens(10 + i, 256, i), 20));
        requests.back().logprobs = true;
    }
    start({.prefix_cache = false});
    std::vector<Outcome> exact;
    for (const auto& request : requests) exact.push_back(solo(request));

    for (const std::size_t i : {1u, 3u})
        requests[i].late_wait = 1ms, requests[i].late_pairs_max = 7;
    engine_ = std::make_unique<Engine>(*decoder_, late,
                                       EngineOptions{.step_rows_max = 12, .prefix_cache = false});
    experts_.close();
    std::vector<Pending> together;
    for (const auto& request : requests) together.push_back(submit(request));
    experts_.open();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Outcome outcome = get(together[i]);
        const bool lacks = i % 2 == 1;
        EXPECT_EQ(outcome.end.stats.pairs_late, lacks ? 7u : 0u) << i;
        EXPECT_EQ(outcome.logprobs[0], exact[i].logprobs[0]) << "the prompt lacks nothing";
        EXPECT_EQ(outcome.logprobs == exact[i].logprobs, !lacks) << i;
        if (!lacks) {
            EXPECT_EQ(outcome.ids, exact[i].ids) << i;
        }
    }
}

// As where the hub's layers run on its GPU.
TEST_F(EngineTest, LossyAnswersAreRefusedByADeviceThatKnowsNoGuesses) {
    test::LogitsOnly device(*decoder_);
    Engine engine(device, experts_, {});
    NothingStandsIn nothing;
    GenerationRequest request = greedy({1, 2, 3}, 4);
    request.speculator = &nothing;
    EXPECT_EQ(engine.submit(request, {}).error().code, ErrorCode::unsupported);
}

TEST_F(EngineTest, AShortPromptDoesNotWaitForALongOne) {
    start({.sequences_max = 2, .step_rows_max = 16});
    experts_.close();
    auto held = submit(greedy(test::random_tokens(4, 256, 3), 1));  // until both are in
    experts_.wait_for_round();
    std::atomic<bool> long_began{false}, short_was_first{false};
    std::promise<void> long_done, short_done;

    const auto hear = [](std::function<void()> first, std::promise<void>& done) {
        return GenerationSink{.on_token =
                                  [first](const TokenEvent& event) {
                                      if (event.index == 0) first();
                                  },
                              .on_end = [&done](const GenerationEnd&) { done.set_value(); }};
    };
    ASSERT_TRUE(engine_
                    ->submit(greedy(test::random_tokens(200, 256, 1), 2),
                             hear([&] { long_began = true; }, long_done))
                    .ok());
    ASSERT_TRUE(engine_
                    ->submit(greedy(test::random_tokens(12, 256, 2), 2),
                             hear([&] { short_was_first = !long_began; }, short_done))
                    .ok());

    experts_.open();
    long_done.get_future().wait();
    short_done.get_future().wait();
    EXPECT_TRUE(short_was_first);
    get(held);
}

// Side by side all of them were done when the last one was.
TEST_F(EngineTest, ShortPromptsThatComeTogetherAreDoneOneAfterTheOther) {
    start({.sequences_max = 4, .step_rows_max = 16});
    experts_.close();
    auto held = submit(greedy(test::random_tokens(4, 256, 9), 1));
    experts_.wait_for_round();

    std::vector<std::uint64_t> steps;  // in which each had its first token; the engine's thread
    std::vector<std::promise<void>> done(3);
    for (std::uint32_t i = 0; i < 3; ++i)
        ASSERT_TRUE(engine_
                        ->submit(greedy(test::random_tokens(16, 256, i), 1),
                                 {.on_token =
                                      [&](const TokenEvent&) {
                                          steps.push_back(engine_->counters().steps);
                                      },
                                  .on_end = [&done, i](const auto&) { done[i].set_value(); }})
                        .ok());
    experts_.open();
    for (auto& one : done) one.get_future().wait();
    get(held);
    EXPECT_EQ(steps, (std::vector<std::uint64_t>{steps[0], steps[0] + 1, steps[0] + 2}));
}

TEST_F(EngineTest, ALongPromptIsNotHeldBackByManyShortOnes) {
    constexpr std::uint32_t num_short = 40;
    start({.sequences_max = num_short + 2, .step_rows_max = 16});
    experts_.close();
    auto held = submit(greedy(test::random_tokens(4, 256, 99), 1));
    experts_.wait_for_round();

    std::uint32_t short_before_long = 0, short_done = 0;  // the engine's thread
    std::promise<void> all;
    std::uint32_t open = num_short + 1;
    const auto on_end = [&](const auto&) {
        if (--open == 0) all.set_value();
    };
    ASSERT_TRUE(
        engine_
            ->submit(greedy(test::random_tokens(80, 256, 98), 1),
                     {.on_token = [&](const TokenEvent&) { short_before_long = short_done; },
                      .on_end = on_end})
            .ok());
    for (std::uint32_t i = 0; i < num_short; ++i)
        ASSERT_TRUE(
            engine_
                ->submit(greedy(test::random_tokens(16, 256, i), 1),
                         {.on_token = [&](const TokenEvent&) { ++short_done; }, .on_end = on_end})
                .ok());
    experts_.open();
    all.get_future().wait();
    get(held);
    EXPECT_GE(short_before_long, num_short / 4);
    EXPECT_LE(short_before_long, num_short / 2);
}

// A step is counted to last so long that a second one has ample time to come.
TEST_F(EngineTest, WhoComesTogetherBeginsTogether) {
    ExpertsWithAClock timed(local_);
    engine_ = std::make_unique<Engine>(
        *decoder_, timed,
        EngineOptions{.sequences_max = 2,
                      .clock = [&timed] { return timed.now + 100'000 * (timed.now - TimePoint{}); },
                      .prefix_cache = false});
    (void)solo(greedy(test::random_tokens(3, 256, 1), 4));  // nothing is known yet
    timed.step_rows.clear();
    Pending first = submit(greedy(test::random_tokens(3, 256, 2), 4)),
            second = submit(greedy(test::random_tokens(5, 256, 3), 4));
    (void)get(first);
    (void)get(second);
    EXPECT_EQ(timed.step_rows, (std::vector<std::uint32_t>{8, 2, 2, 2}));
}

// A thousand-token prompt froze everybody else's answers: each step took 256 of its rows.
TEST_F(EngineTest, APromptBesideADecodingSequenceComesInChunksOfItsTime) {
    ExpertsWithAClock timed(local_);
    std::vector<double> lateness;  // the engine's thread
    engine_ = std::make_unique<Engine>(
        *decoder_, timed,
        EngineOptions{.sequences_max = 2,
                      .clock = [&timed] { return timed.now; },
                      .on_step =
                          [&lateness](const StepShape& shape, Duration expected, Duration took) {
                              if (shape.decode_rows > 0 && shape.prompt_rows > 0)
                                  lateness.push_back(to_ms(took) / to_ms(expected));
                          },
                      .prefix_cache = false});
    const auto prompt = greedy(test::random_tokens(120, 256, 2), 1);
    Pending late;
    auto talker_done = std::make_shared<std::promise<void>>();
    ASSERT_TRUE(
        engine_
            ->submit(greedy(test::random_tokens(4, 256, 1), 200),
                     {.on_token =
                          [&](const TokenEvent& event) {
                              if (event.index == 3) late = submit(prompt);
                          },
                      .on_end = [talker_done](const GenerationEnd&) { talker_done->set_value(); }})
            .ok());
    talker_done->get_future().wait();
    const Outcome beside = get(late);

    // A decode row costs 2.5 ms a layer and a prompt's row 0.5: five of them are one step more.
    const std::size_t steps = 200;
    ASSERT_GE(timed.step_rows.size(), steps);
    std::size_t with_prompt = 0, rows = 0;
    for (std::size_t step = 1; step < steps; ++step) {
        EXPECT_LE(timed.step_rows[step], 1u + 8) << "step " << step;
        if (timed.step_rows[step] > 1) rows += timed.step_rows[step] - 1, ++with_prompt;
    }
    EXPECT_EQ(rows, 120u);
    EXPECT_GE(with_prompt, 120u / 6);
    EXPECT_LE(with_prompt, 120u / 4);
    // Its steps last as long as expected, once a few were seen.
    ASSERT_EQ(lateness.size(), with_prompt);
    for (std::size_t step = 4; step < lateness.size(); ++step)
        EXPECT_NEAR(lateness[step], 1, 0.05) << step;

    // Alone it fills the step, and says the same.
    timed.step_rows.clear();
    const Outcome alone = solo(prompt);
    EXPECT_EQ(timed.step_rows.front(), 120u);
    EXPECT_EQ(alone.ids, beside.ids);
}

TEST_F(EngineTest, ACancelEndsAStalledStepForTheOneAndTheOthersGoOn) {
    start({.sequences_max = 2});
    const auto request = greedy(test::random_tokens(4, 256, 2), 30);
    const Outcome alone = solo(request);
    experts_.stall(true);
    auto a = submit(greedy(test::random_tokens(40, 256, 1), 30));
    auto b = submit(request);

    auto c = submit(greedy(test::random_tokens(5, 256, 4), 3));  // waits for a place
    experts_.wait_for_stall();
    engine_->cancel(a.id);
    EXPECT_EQ(get(a).end.reason, FinishReason::cancelled);  // while the stall goes on

    experts_.wait_for_stall();
    engine_->cancel(b.id);
    EXPECT_EQ(get(b).end.reason, FinishReason::cancelled);

    auto again = submit(request);
    experts_.stall(false);
    const Outcome outcome = get(again);
    EXPECT_EQ(outcome.end.reason, FinishReason::length);
    EXPECT_EQ(outcome.ids, alone.ids);
    EXPECT_EQ(get(c).end.reason, FinishReason::length);
    EXPECT_GE(engine_->counters().steps_stopped, 2u);
    EXPECT_EQ(engine_->counters().kv_pages_used, 0u);
}

// Whoever submits and hangs up without end delays a long step, but does not keep it from ending.
TEST_F(EngineTest, CancelsWithoutEndDoNotStarveALongStep) {
    start({.sequences_max = 2});
    const auto request = greedy(test::random_tokens(4, 256, 2), 2);
    const Outcome alone = solo(request);
    // of each of three layers: far beyond the first patience
    experts_.delay(150ms);
    auto victim = submit(request);
    std::uint64_t cancels = 0;

    while (victim.outcome.wait_for(0s) != std::future_status::ready) {
        auto nuisance = submit(greedy(test::random_tokens(4, 256, 3), 30));
        do experts_.wait_for_round();
        while (engine_->counters().running < 2 &&
               victim.outcome.wait_for(0s) != std::future_status::ready);
        engine_->cancel(nuisance.id);
        get(nuisance);
        ++cancels;
    }
    EXPECT_EQ(get(victim).ids, alone.ids);
    EXPECT_GE(engine_->counters().steps_stopped, 2u);
    EXPECT_LT(cancels, 100u);
}

TEST_F(EngineTest, AStepWhosePartsBecameTooLargeIsBegunAgain) {
    start({.sequences_max = 2});
    const auto request = greedy(test::random_tokens(6, 256, 2), 5);
    const Outcome alone = solo(request);
    experts_.fail_next(ErrorCode::num_tokens_range);
    const Outcome outcome = solo(request);
    EXPECT_EQ(outcome.end.reason, FinishReason::length);
    EXPECT_EQ(outcome.ids, alone.ids);
}

TEST_F(EngineTest, AnEngineThatStopsDoesNotWaitForAStalledStep) {
    start({});
    experts_.stall(true);
    auto pending = submit(greedy(test::random_tokens(4, 256, 1), 30));
    experts_.wait_for_stall();
    engine_.reset();
    EXPECT_EQ(get(pending).end.reason, FinishReason::cancelled);
    experts_.stall(false);
}

TEST_F(EngineTest, AFailedRoundEndsThatStepsSequencesAndNoOther) {
    start({.sequences_max = 2});
    experts_.close();
    auto a = submit(greedy(test::random_tokens(4, 256, 1), 30));
    experts_.wait_for_round();
    auto b = submit(greedy(test::random_tokens(4, 256, 2), 30));
    experts_.fail_next();
    experts_.open();
    const Outcome failed = get(a);
    EXPECT_EQ(failed.end.reason, FinishReason::error);
    EXPECT_EQ(failed.end.error.code, ErrorCode::unavailable);
    EXPECT_NE(failed.end.error.message.find("expert 3"), std::string::npos);
    EXPECT_EQ(get(b).ids.size(), 30u);
    EXPECT_EQ(engine_->counters().kv_pages_used, 0u);
}

TEST_F(EngineTest, PromptLogprobsAndLogprobsAreTheModels) {
    start({.step_rows_max = 7});
    auto request = greedy(test::random_tokens(20, 256, 1), 3);
    request.prompt_logprobs = request.logprobs = true;
    request.top_logprobs = 5;
    const Outcome outcome = solo(request);
    ASSERT_EQ(outcome.end.prompt_logprobs.size(), 19u);

    KvCache cache(package_->config(), {16, 8});
    KvCache::Sequence sequence(cache);
    const StepRows rows{.kv = &sequence, .tokens = request.prompt, .all_logits = true};
    const auto step = decoder_->step({&rows, 1}, local_);
    ASSERT_TRUE(step.ok());

    std::vector<float> logprobs(256);
    for (std::size_t i = 0; i < 19; ++i) {
        log_softmax(std::span(step->logits).subspan(i * 256, 256), logprobs);
        const SampledToken& scored = outcome.end.prompt_logprobs[i];
        EXPECT_EQ(scored.id, request.prompt[i + 1]);
        EXPECT_NEAR(scored.logprob, logprobs[request.prompt[i + 1]], 1e-5);
        ASSERT_EQ(scored.top.size(), 5u);
        EXPECT_NEAR(scored.top[0].logprob, *std::max_element(logprobs.begin(), logprobs.end()),
                    1e-5);
    }
    log_softmax(std::span(step->logits).subspan(19 * 256, 256), logprobs);
    EXPECT_NEAR(outcome.logprobs[0], *std::max_element(logprobs.begin(), logprobs.end()), 1e-5);
    EXPECT_EQ(solo([&] {
                  auto none = request;
                  none.max_tokens = 0;
                  return none;
              }())
                  .ids.size(),
              0u);
}

TEST_F(EngineTest, DrainRefusesTheNewAndEndsTheOld) {
    start({});
    experts_.close();
    auto pending = submit(greedy(test::random_tokens(4, 256, 1), 25));
    engine_->drain();
    const auto refused = engine_->submit(greedy({1}, 4), {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
    EXPECT_FALSE(engine_->idle());
    experts_.open();
    EXPECT_EQ(get(pending).ids.size(), 25u);
}

TEST_F(EngineTest, StoppingEndsWhatRunsAndWhatWaits) {
    start({.sequences_max = 1});
    experts_.stall(true);  // an open round would let the first end before the engine stops
    auto a = submit(greedy(test::random_tokens(4, 256, 1), 200));
    experts_.wait_for_stall();
    auto b = submit(greedy(test::random_tokens(4, 256, 1), 200));
    engine_.reset();
    EXPECT_EQ(get(a).end.reason, FinishReason::cancelled);
    EXPECT_EQ(get(b).end.reason, FinishReason::cancelled);
    experts_.stall(false);
}

}  // namespace
}  // namespace moex
