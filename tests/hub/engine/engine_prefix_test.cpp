// Tests prefixes that one generation takes over from another: fewer rows are computed, and the
// answers have the same bits.
#include "tests/hub/engine/engine_stage.h"

namespace moex {
namespace {

// A backend that answers like the local experts. It reports a worker, counts rows, and waits while
// a test has closed its gate.
class CountingExperts : public ExpertBackend {
  public:
    explicit CountingExperts(LocalExperts& local) : local_(local) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return open_; });
        if (batch.layer == 0) rows_ += batch.num_tokens;
        return std::make_unique<Named>(batch.num_tokens, worker_, local_.submit(batch));
    }
    const char* name() const override { return "counting"; }
    void set_open(bool open) {
        const std::lock_guard lock(mutex_);
        open_ = open;
        changed_.notify_all();
    }
    void set_worker(std::uint64_t worker) {
        const std::lock_guard lock(mutex_);
        worker_ = worker;
    }
    std::uint32_t take_rows() {
        const std::lock_guard lock(mutex_);
        return std::exchange(rows_, 0);
    }

  private:
    struct Named : ExpertRound {
        Named(std::uint32_t tokens, std::uint64_t by, std::unique_ptr<ExpertRound> inner)
            : num_tokens(tokens),
              worker(by),
              round(std::move(inner)) {}
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            Result<ExpertAnswer> answer = round->wait(stop);
            for (std::uint32_t row = 0; answer.ok() && row < num_tokens; ++row)
                answer->row_workers.push_back({.row = row, .worker = worker});
            return answer;
        }
        std::uint32_t num_tokens;
        std::uint64_t worker;
        std::unique_ptr<ExpertRound> round;
    };
    LocalExperts& local_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = true;
    std::uint64_t worker_ = 1;
    std::uint32_t rows_ = 0;
};

class EnginePrefixTest : public testing::Test {
  protected:
    EnginePrefixTest() : package_(test::tiny_package()), local_(package_, threads(), {}) {
        auto created = Decoder::create(package_, threads());
        if (!created.ok()) throw std::runtime_error(created.error().message);
        decoder_ = std::move(created).value();
        start({});
    }
    static ThreadPool& threads() { return test::compute_threads(); }
    void start(EngineOptions options) {
        engine_.reset();
        engine_ = std::make_unique<Engine>(*decoder_, experts_, options);
    }
    Pending submit(GenerationRequest request) { return submit_to(*engine_, std::move(request)); }
    static std::vector<Outcome> get_all(std::vector<Pending>& pending) {
        std::vector<Outcome> outcomes;
        for (Pending& one : pending) outcomes.push_back(one.outcome.get());
        return outcomes;
    }
    Outcome solo(GenerationRequest request) { return submit(std::move(request)).outcome.get(); }
    // Runs the request on a new engine, while the fixture's engine is idle, since both engines use
    // the same decoder.
    Outcome fresh(const GenerationRequest& request, KvDtype kv_dtype) {
        Engine engine(*decoder_, local_, {.kv_dtype = kv_dtype, .prefix_cache = false});
        auto outcome = std::make_shared<Outcome>();
        std::promise<void> done;
        EXPECT_TRUE(
            engine
                .submit(request, {.on_token =
                                      [outcome](const TokenEvent& event) {
                                          outcome->ids.push_back(event.token.id);
                                          outcome->logprobs.push_back(event.token.logprob);
                                      },
                                  .on_end = [&](const GenerationEnd&) { done.set_value(); }})
                .ok());
        done.get_future().wait();
        return *outcome;
    }
    void expect_fresh(const GenerationRequest& request, const Outcome& outcome,
                      KvDtype kv_dtype = KvDtype::f32) {
        const Outcome wanted = fresh(request, kv_dtype);
        EXPECT_EQ(outcome.ids, wanted.ids);
        EXPECT_EQ(outcome.logprobs, wanted.logprobs);
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts local_;
    CountingExperts experts_{local_};
    std::unique_ptr<Decoder> decoder_;
    // declared last, so that the engine stops before the other members are destroyed
    std::unique_ptr<Engine> engine_;
};

TEST_F(EnginePrefixTest, NextTurnComputesOnlyItsNewTokens) {
    auto request = drawn_request(test::random_tokens(150, 256, 1), 21);
    const Outcome first = solo(request);
    EXPECT_EQ(first.end.stats.cached_tokens, 0u);
    EXPECT_EQ(experts_.take_rows(), 150u + 20);

    // The whole conversation of 170 tokens except its last token is cached; its full pages are ten
    // pages of 16 tokens.
    auto next = request;
    next.prompt.insert(next.prompt.end(), first.ids.begin(), first.ids.end());
    const auto question = test::random_tokens(30, 256, 2);
    next.prompt.insert(next.prompt.end(), question.begin(), question.end());
    const Outcome second = solo(next);
    EXPECT_EQ(second.end.stats.cached_tokens, 160u);
    EXPECT_EQ(experts_.take_rows(), 201u - 160 + 20);
    expect_fresh(next, second);

    const EngineCounters counters = engine_->counters();
    EXPECT_EQ(counters.cached_tokens, 160u);
    EXPECT_EQ(counters.prompt_tokens, 150u + 41);
    EXPECT_EQ(counters.kv_pages_used, 0u);
    EXPECT_GT(counters.kv_pages_cached, 10u);
}

TEST_F(EnginePrefixTest, RoundedKeysAndValuesAreSharedBitForBit) {
    const auto request = drawn_request(test::random_tokens(100, 256, 1), 12);
    std::vector<Outcome> outcomes;
    for (const KvDtype dtype : {KvDtype::f16, KvDtype::int8}) {
        start({.kv_dtype = dtype});
        (void)solo(request);
        outcomes.push_back(solo(request));
        EXPECT_EQ(outcomes.back().end.stats.cached_tokens, 96u);
        expect_fresh(request, outcomes.back(), dtype);
    }
    EXPECT_NE(outcomes[0].logprobs, outcomes[1].logprobs);
}

TEST_F(EnginePrefixTest, AChangedTailReusesTheCommonPages) {
    const auto request = drawn_request(test::random_tokens(100, 256, 1), 8);
    (void)solo(request);
    for (const std::size_t changed : {0u, 15u, 16u, 63u, 98u, 99u}) {
        auto other = request;
        other.prompt[changed] ^= 1;
        const Outcome outcome = solo(other);
        EXPECT_EQ(outcome.end.stats.cached_tokens, changed / 16 * 16) << changed;
        expect_fresh(other, outcome);
    }
    // The whole text of the prompt is cached; only its last row is computed, because its logits are
    // needed.
    EXPECT_EQ(solo(request).end.stats.cached_tokens, 96u);
    auto whole_pages = request;
    whole_pages.prompt.resize(96);
    EXPECT_EQ(solo(whole_pages).end.stats.cached_tokens, 80u);
}

TEST_F(EnginePrefixTest, ChoicesOfOnePromptComputeThePromptOnce) {
    experts_.set_open(false);
    std::vector<GenerationRequest> requests;
    std::vector<Pending> pending;
    for (std::uint32_t i = 0; i < 5; ++i) {
        requests.push_back(drawn_request(test::random_tokens(150, 256, 1), 1));
        requests.back().sampling.seed = i;
    }
    for (const auto& request : requests) pending.push_back(submit(request));
    experts_.set_open(true);
    const std::vector<Outcome> outcomes = get_all(pending);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        EXPECT_EQ(outcomes[i].end.stats.cached_tokens, i == 0 ? 0u : 144u);
        expect_fresh(requests[i], outcomes[i]);
    }
    EXPECT_EQ(experts_.take_rows(), 150u + 4 * 6);
}

TEST_F(EnginePrefixTest, FollowerOfACancelledLeaderComputesThePrefix) {
    // the leader's prompt takes ten steps, and the cancel arrives in the first step
    start({.step_rows_max = 16});
    experts_.set_open(false);
    const auto request = drawn_request(test::random_tokens(150, 256, 1), 1);
    std::vector<Pending> pending;
    for (int i = 0; i < 3; ++i) pending.push_back(submit(request));
    engine_->cancel(pending[0].id);
    experts_.set_open(true);
    const std::vector<Outcome> outcomes = get_all(pending);
    EXPECT_EQ(outcomes[0].end.reason, FinishReason::cancelled);
    expect_fresh(request, outcomes[1]);
    expect_fresh(request, outcomes[2]);
}

TEST_F(EnginePrefixTest, ClientsShareNothing) {
    auto request = drawn_request(test::random_tokens(100, 256, 1), 1);
    request.client = "ann";
    (void)solo(request);
    request.client = "bob";
    EXPECT_EQ(solo(request).end.stats.cached_tokens, 0u);
    request.client = "ann";
    EXPECT_EQ(solo(request).end.stats.cached_tokens, 96u);
}

TEST_F(EnginePrefixTest, WorkersOfTheCachedPartAreReported) {
    auto request = drawn_request(test::random_tokens(100, 256, 1), 1);
    experts_.set_worker(5);
    EXPECT_EQ(solo(request).end.stats.workers, (std::vector<std::uint64_t>{5}));
    experts_.set_worker(3);
    EXPECT_EQ(solo(request).end.stats.workers, (std::vector<std::uint64_t>{3, 5}));

    // After forget_worker(5), pages that worker 5 helped to compute are no longer used.
    engine_->forget_worker(5);
    const Outcome outcome = solo(request);
    EXPECT_EQ(outcome.end.stats.cached_tokens, 0u);
    EXPECT_EQ(outcome.end.stats.workers, (std::vector<std::uint64_t>{3}));
}

TEST_F(EnginePrefixTest, RowsOfARejectedWorkerAreComputedAgain) {
    auto request = drawn_request(test::random_tokens(100, 256, 1), 1);
    request.max_tokens = 12;
    experts_.set_worker(3);
    const Outcome plain = solo(request);
    engine_->forget_worker(3);
    experts_.take_rows();

    experts_.set_worker(5);
    Pending pending = submit_to(*engine_, request, [&](std::size_t num_tokens) {
        if (num_tokens != 4) return;
        experts_.set_worker(6);
        engine_->compute_again_without(5);
    });
    const Outcome again = pending.outcome.get();
    EXPECT_EQ(again.ids, plain.ids);
    EXPECT_EQ(engine_->counters().preempted, 1u);
    // The prompt and three tokens, then all of them and the rest.
    EXPECT_EQ(experts_.take_rows(), 103u + 100 + 11);
}

TEST_F(EnginePrefixTest, ScoresOfAPromptAreComputed) {
    auto request = drawn_request(test::random_tokens(100, 256, 1), 1);
    const Outcome plain = solo(request);
    request.prompt_logprobs = true;
    const Outcome scored = solo(request);
    EXPECT_EQ(scored.end.stats.cached_tokens, 0u);
    EXPECT_EQ(scored.ids, plain.ids);
}

TEST_F(EnginePrefixTest, PrefixCacheCanBeTurnedOff) {
    start({.prefix_cache = false});
    const auto request = drawn_request(test::random_tokens(100, 256, 1), 1);
    (void)solo(request);
    EXPECT_EQ(solo(request).end.stats.cached_tokens, 0u);
    EXPECT_EQ(engine_->counters().kv_pages_cached, 0u);
}

// The budget has pages for less than two of six conversations: sharing, eviction and preemption
// change no answer. All requests are queued before the first one continues, and every step lasts
// equally long. So two conversations always end together, even if the machine is busy with other
// work.
TEST_F(EnginePrefixTest, AShortBudgetChangesNoAnswer) {
    const KvCache probe(package_->config(), {16, 0});
    start({.sequences_max = 4,
           .step_rows_max = 24,
           .kv_bytes_max = 16 * probe.page_bytes(),
           .clock = [now = TimePoint{}]() mutable { return now += 1ms; }});
    experts_.set_open(false);
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 12; ++i) {
        requests.push_back(drawn_request(test::random_tokens(40, 256, i % 3), 72));
        const auto tail = test::random_tokens(20 + i, 256, 10 + i % 6);
        requests.back().prompt.insert(requests.back().prompt.end(), tail.begin(), tail.end());
        requests.back().sampling.seed = i % 2;
    }
    std::vector<Pending> pending;
    for (const auto& request : requests) pending.push_back(submit(request));
    experts_.set_open(true);
    const std::vector<Outcome> outcomes = get_all(pending);
    for (std::size_t i = 0; i < requests.size(); ++i) expect_fresh(requests[i], outcomes[i]);
    EXPECT_GT(engine_->counters().cached_tokens, 0u);
    EXPECT_GT(engine_->counters().preempted, 0u);
    EXPECT_EQ(engine_->counters().kv_pages_used, 0u);
}

}  // namespace
}  // namespace moex
