// Tests pages on disk of a model whose layers have windows: a text goes on with the same bits, and
// the rows that no layer looks at have left the disk.
#include <filesystem>

#include "hub/base/log.h"
#include "hub/engine/kv_cache.h"
#include "hub/state/disk_pages.h"
#include "hub/state/page_files.h"
#include "tests/hub/engine/engine_stage.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// gpt-oss: every second layer sees 16 positions, which are four pages.
class WindowRestartTest : public testing::Test {
  protected:
    static constexpr std::uint32_t page_tokens = 4, window = 16, window_pages = 4;

    WindowRestartTest() : folder_("window-restart") {
        set_log(LogLevel::error);
        PackOptions pack;
        pack.expert_dtype = ExpertDtype::f32;
        pack.hub_f32 = true;
        const auto report = pack_checkpoint(repository() / "tests/golden/families/gpt-oss-mxfp4",
                                            folder_.path() / "package", pack,
                                            test::compute_threads(), {});
        if (!report.ok()) throw std::runtime_error(report.error().message);
        package_ = ModelPackage::open(folder_.path() / "package").value();
        decoder_ = Decoder::create(package_, test::compute_threads()).value();
        experts_.emplace(package_, test::compute_threads(), ExpertRounding{});
    }
    // Begins with an empty cache, as a new process does.
    void restart(EngineOptions options = {}) {
        engine_.reset();
        store_.reset();
        const ModelConfig& config = package_->config();
        disk_.folder = folder_.path() / "pages";
        disk_.source.row_type = KvRowType::f32;
        disk_.source.end_layer = config.num_layers;
        disk_.source.num_kv_heads = config.num_kv_heads;
        disk_.source.head_dim = config.head_dim;
        disk_.source.page_tokens = page_tokens;
        disk_.num_window_layers = 0;
        for (const LayerPlan& plan : config.layers)
            if (plan.window > 0) ++disk_.num_window_layers;
        disk_.window = window;
        disk_.bytes_max = 64u << 20;
        store_ = DiskPages::open(disk_).value();
        store_->wait_until_written();
        options.page_tokens = page_tokens;
        options.step_rows_max = 8;
        options.page_store = store_.get();
        engine_ = std::make_unique<Engine>(*decoder_, *experts_, options);
    }
    Outcome solo(const GenerationRequest& request) {
        Outcome outcome = submit_to(*engine_, request).outcome.get();
        store_->wait_until_written();
        return outcome;
    }
    // The answer to `request` of a hub that keeps nothing must be `found`.
    void expect_as_computed(const GenerationRequest& request, const Outcome& found) {
        restart({.prefix_cache = false});
        const Outcome wanted = solo(request);
        EXPECT_EQ(wanted.end.stats.cached_tokens, 0u);
        EXPECT_EQ(found.ids, wanted.ids);
        EXPECT_EQ(found.logprobs, wanted.logprobs);
    }
    std::vector<FoundPage> found() const { return find_pages(disk_.folder); }
    std::vector<TokenId> tokens(std::uint32_t count, std::uint32_t seed) const {
        return test::random_tokens(count, package_->config().vocab_size, seed);
    }

    test::TemporaryFolder folder_;
    std::shared_ptr<const ModelPackage> package_;
    std::unique_ptr<Decoder> decoder_;
    std::optional<LocalExperts> experts_;
    DiskPagesOptions disk_;
    std::unique_ptr<DiskPages> store_;
    std::unique_ptr<Engine> engine_;  // stops before the store
};

TEST_F(WindowRestartTest, RowsBehindAllWindowsLeaveTheDiskAndTextsGoOn) {
    restart();
    auto request = drawn_request(tokens(150, 1), 21);
    const Outcome first = solo(request);

    // 170 positions were computed: 42 full pages. A window that ends at position 64 or 128 is kept
    // (pages 12-15 and 28-31), and the one at the end: from 168 on, positions 153-167, pages 38-41.
    const auto pages = found();
    EXPECT_EQ(pages.size(), 42u);
    std::uint64_t with_window = 0, bytes = 0;
    for (const FoundPage& page : pages) {
        with_window += page.window_bytes > 0 ? 1 : 0;
        bytes += page.bytes;
    }
    EXPECT_EQ(with_window, 3u * window_pages);
    EXPECT_EQ(store_->counters().bytes, bytes);
    const KvCache probe(package_->config(), {.page_tokens = page_tokens});
    const std::uint64_t rows = 42 * (probe.page_bytes() - probe.window_bytes()) +
                               12 * probe.window_bytes(),
                        header_most = 512;  // of each file
    EXPECT_GE(bytes, rows);
    EXPECT_LE(bytes, rows + (42 + 12) * header_most);

    // The whole conversation is the next prompt.
    request.prompt.insert(request.prompt.end(), first.ids.begin(), first.ids.end());
    request.prompt.push_back(9);
    restart();
    const Outcome again = solo(request);
    EXPECT_EQ(again.end.stats.cached_tokens, 168u);
    EXPECT_EQ(again.end.stats.cached_tokens_disk, 168u);
    EXPECT_EQ(engine_->counters().page_store.pages_refused, 0u);
    expect_as_computed(request, again);
}

// Another text begins alike: it goes on behind the last window that was kept before the difference.
TEST_F(WindowRestartTest, TextWithAnotherEndGoesOnBehindAKeptWindow) {
    restart();
    auto request = drawn_request(tokens(150, 2), 4);
    solo(request);
    request.prompt.resize(140);
    const auto other = tokens(30, 3);
    request.prompt.insert(request.prompt.end(), other.begin(), other.end());
    for (const std::uint32_t from_disk : {128u, 172u}) {
        restart();
        const Outcome found = solo(request);
        EXPECT_EQ(found.end.stats.cached_tokens_disk, from_disk);
        expect_as_computed(request, found);
        // The second time its own end is on disk.
        request.prompt.insert(request.prompt.end(), found.ids.begin(), found.ids.end());
        request.prompt.push_back(9);
    }
}

// A second part that is damaged is refused, and the text is computed.
TEST_F(WindowRestartTest, DamagedSecondPartChangesNoText) {
    restart();
    const auto request = drawn_request(tokens(100, 4), 4);
    solo(request);
    engine_.reset();
    store_.reset();
    for (const auto& entry : fs::recursive_directory_iterator(disk_.folder))
        if (entry.path().extension() == ".window") fs::resize_file(entry.path(), 100);
    restart();
    const Outcome found = solo(request);
    EXPECT_EQ(found.end.stats.cached_tokens_disk, 0u);
    EXPECT_GT(store_->counters().pages_refused, 0u);
    expect_as_computed(request, found);
}

// Little memory, many texts that begin alike, and small fetches: none gets rows of another.
TEST_F(WindowRestartTest, TextsInLittleRoomEqualThoseOfANewHub) {
    const KvCache probe(package_->config(), {.page_tokens = page_tokens});
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 24; ++i) {
        auto prompt = tokens(30 + i % 5 * 25, i % 3);
        const auto own = tokens(3 + i % 7, 50 + i);
        prompt.insert(prompt.end(), own.begin(), own.end());
        requests.push_back(drawn_request(prompt, 6 + i % 9));
    }
    std::vector<Outcome> wanted;
    restart({.prefix_cache = false});
    for (const GenerationRequest& request : requests) wanted.push_back(solo(request));
    std::uint64_t from_disk = 0;
    for (int round = 0; round < 3; ++round) {
        restart({.sequences_max = 4, .kv_bytes_max = 60 * probe.page_bytes()});
        std::vector<Pending> pending;
        for (const GenerationRequest& request : requests)
            pending.push_back(submit_to(*engine_, request));
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const Outcome outcome = pending[i].outcome.get();
            EXPECT_EQ(outcome.ids, wanted[i].ids) << i;
            EXPECT_EQ(outcome.logprobs, wanted[i].logprobs) << i;
            from_disk += outcome.end.stats.cached_tokens_disk;
        }
    }
    EXPECT_GT(from_disk, 500u);
    EXPECT_EQ(store_->counters().pages_refused, 0u);
}

}  // namespace
}  // namespace moex
