// Tests an engine with pages on disk: a text after a restart, an eviction or a preemption has the
// same bits, and only the tokens without a page are computed.
#include <atomic>
#include <filesystem>

#include "hub/base/log.h"
#include "hub/state/disk_pages.h"
#include "tests/hub/engine/engine_stage.h"

namespace moex {
namespace {

// Holds pages that were read back, until they are given. Worker 7 has taken part in each, and in
// pages that are kept while `is_by_liar`.
class HeldPages : public KvPageStore {
  public:
    explicit HeldPages(KvPageStore& store) : store_(store) {}
    bool keep(const FullPage& page) override {
        FullPage kept = page;
        if (is_by_liar) kept.workers = liars_;
        return store_.keep(kept);
    }
    std::uint64_t fetch(PageWish wish) override {
        wish.done = [this, done = std::move(wish.done)](FetchedPages pages) {
            if (is_given_) return done(std::move(pages));
            for (StoredPage& page : pages.pages) page.workers = {7};
            give_ = [done, pages = std::make_shared<FetchedPages>(std::move(pages))] {
                done(std::move(*pages));
            };
            were_read_.set_value();
        };
        return store_.fetch(std::move(wish));
    }
    void drop_fetches() override { store_.drop_fetches(); }
    void forget_worker(std::uint64_t worker) override { store_.forget_worker(worker); }
    PageStoreCounters counters() const override { return store_.counters(); }

    void wait_until_read() { were_read_.get_future().wait(); }
    void give() {
        is_given_ = true;
        give_();
    }

    std::atomic<bool> is_by_liar = false;

  private:
    KvPageStore& store_;
    const std::vector<std::uint64_t> liars_{7};
    std::promise<void> were_read_;
    std::function<void()> give_;
    std::atomic<bool> is_given_ = false;
};

class EngineRestartTest : public testing::TestWithParam<KvDtype> {
  protected:
    EngineRestartTest()
        : package_(test::tiny_package()),
          folder_("engine-restart"),
          local_(package_, test::compute_threads(), {}) {
        set_log(LogLevel::error);
        auto created = Decoder::create(package_, test::compute_threads());
        if (!created.ok()) throw std::runtime_error(created.error().message);
        decoder_ = std::move(created).value();
    }
    // Begins with an empty cache, as a new process does.
    void restart(EngineOptions options = {}) {
        engine_.reset();
        store_.reset();
        const ModelConfig& config = package_->config();
        DiskPagesOptions disk;
        disk.folder = folder_.path() / "pages";
        disk.source.row_type = GetParam() == KvDtype::f32   ? KvRowType::f32
                               : GetParam() == KvDtype::f16 ? KvRowType::f16
                                                            : KvRowType::int8;
        disk.source.end_layer = config.num_layers;
        disk.source.num_kv_heads = config.num_kv_heads;
        disk.source.head_dim = config.head_dim;
        disk.source.page_tokens = options.page_tokens;
        disk.bytes_max = 64u << 20;
        auto store = DiskPages::open(disk);
        ASSERT_TRUE(store.ok()) << store.error().message;
        store_ = *std::move(store);
        store_->wait_until_written();
        options.kv_dtype = GetParam();
        if (holds_pages_) held_ = std::make_unique<HeldPages>(*store_);
        options.page_store = holds_pages_ ? static_cast<KvPageStore*>(held_.get()) : store_.get();
        engine_ = std::make_unique<Engine>(*decoder_, experts_, options);
    }
    Pending submit(GenerationRequest request, std::function<void(std::size_t)> on_token = {}) {
        return submit_to(*engine_, std::move(request), std::move(on_token));
    }
    Outcome solo(GenerationRequest request) { return submit(std::move(request)).outcome.get(); }
    void expect_same(const Outcome& outcome, const Outcome& wanted) {
        EXPECT_EQ(outcome.ids, wanted.ids);
        EXPECT_EQ(outcome.logprobs, wanted.logprobs);
    }

    std::shared_ptr<const ModelPackage> package_;
    test::TemporaryFolder folder_;
    LocalExperts local_;
    GatedExperts experts_{local_};
    std::unique_ptr<Decoder> decoder_;
    std::unique_ptr<DiskPages> store_;
    bool holds_pages_ = false;
    std::unique_ptr<HeldPages> held_;
    std::unique_ptr<Engine> engine_;  // stops before the store
};

TEST_P(EngineRestartTest, TextAfterARestartHasTheSameBits) {
    restart();
    const auto request = drawn_request(test::random_tokens(150, 256, 1), 21);
    const Outcome first = solo(request);
    EXPECT_EQ(first.end.stats.cached_tokens_disk, 0u);

    // The whole conversation is the next prompt. It has 171 tokens; keys and values of 170 were
    // computed, which are ten full pages.
    auto next = request;
    next.prompt.insert(next.prompt.end(), first.ids.begin(), first.ids.end());
    next.prompt.push_back(9);
    restart({.prefix_cache = false});
    const Outcome wanted = solo(next);
    EXPECT_EQ(wanted.end.stats.cached_tokens, 0u);

    restart();
    const Outcome again = solo(next);
    EXPECT_EQ(again.end.stats.cached_tokens, 160u);
    EXPECT_EQ(again.end.stats.cached_tokens_disk, 160u);
    expect_same(again, wanted);
    EXPECT_EQ(engine_->counters().cached_tokens_disk, 160u);
    EXPECT_EQ(engine_->counters().prompt_tokens, 12u);
    EXPECT_EQ(engine_->counters().page_store.pages_read, 10u);

    // Now the pages are in the KV cache of this process, so none is read from disk.
    const Outcome third = solo(next);
    EXPECT_EQ(third.end.stats.cached_tokens, 160u);
    EXPECT_EQ(third.end.stats.cached_tokens_disk, 0u);
    expect_same(third, wanted);
}

// A page that is full while its sequence still runs is on disk before the sequence ends.
TEST_P(EngineRestartTest, PagesOfARunningSequenceAreKept) {
    restart();
    std::promise<void> far;
    auto pending = submit(drawn_request(test::random_tokens(33, 256, 2), 200),
                          [&](std::size_t count) {
                              if (count == 40) far.set_value();
                          });
    far.get_future().wait();
    experts_.close();
    store_->wait_until_written();
    // 33 + 39 tokens have rows at the fortieth token; the pages of earlier steps were offered.
    EXPECT_GE(store_->counters().pages_written, 4u);
    experts_.open();
    engine_->cancel(pending.id);
    pending.outcome.get();
}

TEST_P(EngineRestartTest, EvictedPagesReturnFromDisk) {
    const KvCache probe(package_->config(), {16, 0, GetParam()});
    restart({.kv_bytes_max = 14 * probe.page_bytes()});
    const auto request = drawn_request(test::random_tokens(170, 256, 3), 5);
    const Outcome first = solo(request);
    solo(drawn_request(test::random_tokens(200, 256, 4), 5));  // needs nearly all pages
    store_->wait_until_written();
    const Outcome again = solo(request);
    EXPECT_EQ(again.end.stats.cached_tokens, 160u);
    EXPECT_GE(again.end.stats.cached_tokens_disk, 100u);
    expect_same(again, first);
}

TEST_P(EngineRestartTest, RequestThatForbidsItLeavesNoPage) {
    restart();
    auto request = drawn_request(test::random_tokens(100, 256, 5), 20);
    request.stores_pages = false;
    solo(request);
    store_->wait_until_written();
    EXPECT_EQ(store_->counters().pages, 0u);
    request.stores_pages = true;
    solo(request);
    store_->wait_until_written();
    EXPECT_EQ(store_->counters().pages, 7u);
}

TEST_P(EngineRestartTest, ManySequencesAndCancelsGetTheirOwnText) {
    restart();
    std::vector<GenerationRequest> requests;
    std::vector<Outcome> wanted;
    for (std::uint32_t i = 0; i < 6; ++i) {
        auto prompt = test::random_tokens(60, 256, 6);
        const auto own = test::random_tokens(40 + 9 * i, 256, 7 + i);
        prompt.insert(prompt.end(), own.begin(), own.end());
        requests.push_back(drawn_request(prompt, 12));
        wanted.push_back(solo(requests.back()));
    }
    for (int round = 0; round < 3; ++round) {
        restart();
        std::vector<Pending> pending;
        for (const GenerationRequest& request : requests) pending.push_back(submit(request));
        if (round > 0) engine_->cancel(pending[static_cast<std::size_t>(round)].id);
        std::uint64_t from_disk = 0;
        for (std::size_t i = 0; i < pending.size(); ++i) {
            const Outcome outcome = pending[i].outcome.get();
            from_disk += outcome.end.stats.cached_tokens_disk;
            if (outcome.end.reason == FinishReason::cancelled) continue;
            expect_same(outcome, wanted[i]);
        }
        EXPECT_GT(from_disk, 0u);
    }
}

// A worker's lie is found during a step. The step's own pages are offered to the store after that.
// In an earlier version they stayed there.
TEST_P(EngineRestartTest, PagesThatAStepOffersAfterALieWasFoundAreDeleted) {
    for (const std::uint64_t liar : {6, 7}) {
        std::filesystem::remove_all(folder_.path() / "pages");
        holds_pages_ = true;
        restart();
        auto request = drawn_request(test::random_tokens(33, 256, 11), 60);
        // The step that draws token 16 fills the third page.
        const Outcome outcome = submit(request, [&](std::size_t count) {
                                    held_->is_by_liar = count == 16;
                                    if (count == 16) engine_->forget_worker(liar);
                                }).outcome.get();
        EXPECT_EQ(outcome.ids.size(), 60u);
        store_->wait_until_written();
        EXPECT_EQ(store_->counters().pages, liar == 7 ? 2u : 5u);
    }
}

// A worker's lie is found after the store has read its pages, and steps of another text follow
// before the pages arrive. In an earlier version they were used.
TEST_P(EngineRestartTest, PagesOfALiarThatArriveLateAreNotUsed) {
    restart();
    const auto request = drawn_request(test::random_tokens(150, 256, 9), 5);
    const Outcome wanted = solo(request);
    for (const std::uint64_t liar : {6, 7}) {
        holds_pages_ = true;
        restart();
        // The other text waits at its first token for the request, and at its third for the lie.
        std::promise<void> decodes, may_go_on, is_forgotten, has_gone_on;
        auto short_request = drawn_request(test::random_tokens(9, 256, 10), 100);
        short_request.stores_pages = false;
        auto other = submit(short_request, [&](std::size_t count) {
            if (count == 1) {
                decodes.set_value();
                may_go_on.get_future().wait();
            }
            if (count == 3) is_forgotten.get_future().wait();
            if (count == 5) has_gone_on.set_value();
        });
        decodes.get_future().wait();
        auto pending = submit(request);
        may_go_on.set_value();
        held_->wait_until_read();
        engine_->forget_worker(liar);
        is_forgotten.set_value();
        has_gone_on.get_future().wait();
        held_->give();
        const Outcome outcome = pending.outcome.get();
        EXPECT_EQ(outcome.end.stats.cached_tokens_disk, liar == 7 ? 0u : 144u);
        expect_same(outcome, wanted);
        engine_->cancel(other.id);
        other.outcome.get();
        engine_.reset();
    }
}

TEST_P(EngineRestartTest, EngineStopsWhilePagesAreRead) {
    restart();
    const auto request = drawn_request(test::random_tokens(200, 256, 8), 3);
    solo(request);
    for (int round = 0; round < 10; ++round) {
        restart();
        auto pending = submit(request);
        engine_.reset();
        EXPECT_NE(pending.outcome.get().end.reason, FinishReason::error);
    }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EngineRestartTest,
                         testing::Values(KvDtype::f32, KvDtype::f16, KvDtype::int8),
                         [](const auto& info) { return std::string(kv_dtype_name(info.param)); });

}  // namespace
}  // namespace moex
