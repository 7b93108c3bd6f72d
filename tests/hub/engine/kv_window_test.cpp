// Tests pages of models whose layers have windows: the rows that a window sees are right under any
// history, the memory follows the formula, and texts are those of a cache with room for everything.
#include <algorithm>
#include <fstream>
#include <future>
#include <vector>

#include <rapidcheck.h>
#include <nlohmann/json.hpp>

#include "hub/engine/engine.h"
#include "hub/engine/kv_cache.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

// Layer 0 has no window unless `all`, layer 1 has one.
ModelConfig window_config(std::uint32_t window, bool all = false) {
    ModelConfig config = test::tiny_config();
    config.num_layers = 2;
    config.layers.resize(2);
    config.head_dim = 3;
    config.layers[1].window = window;
    if (all) config.layers[0].window = window;
    return config;
}

float value_of(std::span<const TokenId> tokens, std::uint32_t layer) {
    std::uint32_t value = 17;
    for (const TokenId id : tokens) value = (value * 31 + id) % 65521;
    return static_cast<float>(value) + static_cast<float>(layer) * 0.25f;
}

struct Talk {
    explicit Talk(KvCache& cache) : kv(cache) {}
    KvCache::Sequence kv;
    std::vector<TokenId> tokens;

    bool compute() {
        kv.adopt(tokens);
        const std::uint32_t first = kv.num_tokens(),
                            end = static_cast<std::uint32_t>(tokens.size());
        if (!kv.reserve(end)) return false;
        for (std::uint32_t p = first; p < end; ++p)
            for (std::uint32_t layer = 0; layer < 2; ++layer) {
                const float value = value_of(std::span(tokens).first(p + 1), layer);
                const std::vector<float> row(kv.k(layer, p).size(), value);
                kv.store(layer, p, row, row);
            }
        kv.commit(end - first);
        return true;
    }
    void publish() {
        kv.publish(std::span(tokens).first(kv.num_tokens()),
                   std::vector<std::vector<std::uint64_t>>(tokens.size() + 1));
    }
    // Returns true if every row that the next token sees has the value of its tokens.
    bool is_whole(const ModelConfig& config) const {
        const std::uint32_t end = kv.num_tokens();
        for (std::uint32_t layer = 0; layer < 2; ++layer) {
            const std::uint32_t window = config.layers[layer].window;
            const std::uint32_t first = window > 0 && end + 1 > window ? end + 1 - window : 0;
            for (std::uint32_t p = first; p < end; ++p)
                if (kv.k(layer, p)[0] != value_of(std::span(tokens).first(p + 1), layer) ||
                    kv.v(layer, p)[0] != kv.k(layer, p)[0])
                    return false;
        }
        return true;
    }
};

TEST(KvWindowTest, EveryWindowReadsItsOwnTokensUnderAnyHistory) {
    EXPECT_TRUE(rc::check([] {
        const std::uint32_t page_tokens = *rc::gen::inRange(1, 5), num_pages = 14;
        const ModelConfig config = window_config(*rc::gen::inRange(1, 12),
                                                 *rc::gen::arbitrary<bool>());
        KvCache cache(config, {.page_tokens = page_tokens, .num_pages = num_pages});
        const std::uint64_t budget = num_pages * cache.page_bytes();
        {
            std::vector<std::unique_ptr<Talk>> talks;
            for (int i = 0; i < 3; ++i) talks.push_back(std::make_unique<Talk>(cache));
            const int num_operations = *rc::gen::inRange(1, 60);
            for (int operation = 0; operation < num_operations; ++operation) {
                std::unique_ptr<Talk>& talk = talks[*rc::gen::inRange(0, 3)];
                switch (*rc::gen::inRange(0, 6)) {
                    case 0:
                    case 1: {
                        // few different tokens, so that texts often begin alike
                        for (int more = *rc::gen::inRange(1, 8); more > 0; --more)
                            talk->tokens.push_back(*rc::gen::inRange(0, 2));
                        if (!talk->compute()) talk->tokens.resize(talk->kv.num_tokens());
                        break;
                    }
                    case 2: talk->publish(); break;
                    case 3: talk->kv.forget_unseen(); break;
                    case 4: {
                        const std::uint32_t kept = *rc::gen::inRange<std::uint32_t>(
                            0, talk->kv.num_tokens() + 1);
                        talk->kv.roll_back(kept);
                        RC_ASSERT(talk->kv.num_tokens() == kept || talk->kv.num_tokens() == 0);
                        talk->tokens.resize(talk->kv.num_tokens());
                        break;
                    }
                    case 5: {  // a text of which another one takes over a part
                        auto next = std::make_unique<Talk>(cache);
                        next->tokens = talks[*rc::gen::inRange(0, 3)]->tokens;
                        next->tokens.resize(next->tokens.size() / 2);
                        if (!next->compute()) next->tokens.resize(next->kv.num_tokens());
                        talk = std::move(next);
                        break;
                    }
                }
                for (const auto& one : talks) RC_ASSERT(one->is_whole(config));
                RC_ASSERT(cache.used_bytes() <= budget);
            }
        }
        RC_ASSERT(cache.pages_free() == num_pages);
    }));
}

TEST(KvWindowTest, MemoryOfALongTextIsThatOfTheFormula) {
    constexpr std::uint32_t window = 32, page_tokens = 8, rows = 16, length = 2'000;
    const ModelConfig config = window_config(window);
    KvCache cache(config, {.page_tokens = page_tokens, .num_pages = 200});
    const std::uint64_t part = cache.page_bytes() / 2;  // of the layer with a window, and without
    // 250 first parts, and the second parts of the last 32 positions and of a step
    const std::uint32_t most_room = cache.room_for(length, rows);
    EXPECT_LT(most_room, 130u + (window + rows) / page_tokens);
    EXPECT_GT(cache.tokens_max(rows), 3'000u);
    EXPECT_EQ(cache.room_for(8, rows), 1u);

    KvCache::Sequence kv(cache);
    for (std::uint32_t at = 0; at < length; at += rows) {
        ASSERT_TRUE(kv.reserve(at + rows)) << at;
        kv.commit(rows);
        EXPECT_LE(cache.used_bytes(), cache.room_for(at + rows, rows) * cache.page_bytes());
        kv.forget_unseen();
    }
    EXPECT_EQ(cache.used_bytes(), 250 * part + (window / page_tokens) * part);
    EXPECT_GE(200 - cache.pages_free() + 1, 127u);

    // a text of the longest length fits, and not one page more
    kv.roll_back(0);
    const auto most = static_cast<std::uint32_t>(cache.tokens_max(rows));
    for (std::uint32_t at = 0; at + rows <= most; at += rows) {
        ASSERT_TRUE(kv.reserve(at + rows)) << at;
        kv.commit(rows);
        kv.forget_unseen();
    }

    // Where all layers have windows, memory does not grow with the text.
    KvCache all(window_config(window, true), {.page_tokens = page_tokens, .num_pages = 10});
    KvCache::Sequence endless(all);
    for (std::uint32_t at = 0; at < 1'200; at += page_tokens) {
        ASSERT_TRUE(endless.reserve(at + page_tokens)) << at;
        endless.commit(page_tokens);
        endless.forget_unseen();
        EXPECT_LE(all.used_bytes(), 5 * all.page_bytes());
    }
}

// A device that stores the rows of layer 0 in pages, and those of layer 1, which has a window, in
// slots.
struct SlotDevice {
    SlotDevice(std::uint32_t num_pages, std::uint32_t num_slots, std::uint32_t page_tokens)
        : pages(num_pages, std::vector<float>(page_tokens)),
          slots(num_slots, std::vector<float>(page_tokens)) {}

    std::vector<float>& part(KvPageMover::Part one) {
        return (one.is_window ? slots : pages).at(one.number);
    }
    KvPageMover mover() {
        using Part = KvPageMover::Part;
        return {.num_window_slots = static_cast<std::uint32_t>(slots.size()),
                .copy = [this](Part from, Part to) { part(to) = part(from); },
                .read = [](Part, std::span<std::byte>) { return Status{}; },
                .write = [](Part, ByteView) { return Status{}; }};
    }
    std::vector<std::vector<float>> pages, slots;
};

// A text whose rows a device stores.
struct DeviceTalk {
    DeviceTalk(KvCache& cache, SlotDevice& with) : kv(cache), device(with) {}
    KvCache::Sequence kv;
    SlotDevice& device;
    std::vector<TokenId> tokens;

    float& row(std::uint32_t layer, std::uint32_t position) {
        const std::uint32_t index = position / kv.page_tokens();
        std::vector<std::uint32_t> slots;
        kv.list_window_slots(slots);
        return device
            .part(layer == 0 ? KvPageMover::Part{kv.pages()[index]}
                             : KvPageMover::Part{slots.at(index), true})
            .at(position % kv.page_tokens());
    }
    bool compute() {
        kv.adopt(tokens);
        const std::uint32_t first = kv.num_tokens(),
                            end = static_cast<std::uint32_t>(tokens.size());
        if (!kv.reserve(end)) return false;
        for (std::uint32_t p = first; p < end; ++p)
            for (std::uint32_t layer = 0; layer < 2; ++layer)
                row(layer, p) = value_of(std::span(tokens).first(p + 1), layer);
        kv.commit(end - first);
        return true;
    }
    void publish() {
        kv.publish(std::span(tokens).first(kv.num_tokens()),
                   std::vector<std::vector<std::uint64_t>>(tokens.size() + 1));
    }
    // Returns true if every row that the next token sees has the value of its tokens.
    bool is_whole(std::uint32_t window) {
        const std::uint32_t end = kv.num_tokens(), seen = end + 1 > window ? end + 1 - window : 0;
        for (std::uint32_t p = 0; p < end; ++p)
            for (std::uint32_t layer = 0; layer < 2; ++layer)
                if ((layer == 0 || p >= seen) &&
                    row(layer, p) != value_of(std::span(tokens).first(p + 1), layer))
                    return false;
        return true;
    }
};

TEST(KvWindowTest, SlotsOfADeviceHaveWhatWindowsSeeUnderAnyHistory) {
    EXPECT_TRUE(rc::check([] {
        const std::uint32_t page_tokens = *rc::gen::inRange(1, 5), num_pages = 20,
                            window = *rc::gen::inRange(1, 12), num_slots = *rc::gen::inRange(4, 15);
        SlotDevice device(num_pages, num_slots, page_tokens);
        KvCache cache(
            window_config(window),
            {.page_tokens = page_tokens, .num_pages = num_pages, .mover = device.mover()});
        {
            std::vector<std::unique_ptr<DeviceTalk>> talks;
            for (int i = 0; i < 3; ++i)
                talks.push_back(std::make_unique<DeviceTalk>(cache, device));
            const int num_operations = *rc::gen::inRange(1, 60);
            for (int operation = 0; operation < num_operations; ++operation) {
                std::unique_ptr<DeviceTalk>& talk = talks[*rc::gen::inRange(0, 3)];
                switch (*rc::gen::inRange(0, 6)) {
                    case 0:
                    case 1: {
                        for (int more = *rc::gen::inRange(1, 8); more > 0; --more)
                            talk->tokens.push_back(*rc::gen::inRange(0, 2));
                        if (!talk->compute()) talk->tokens.resize(talk->kv.num_tokens());
                        break;
                    }
                    case 2: talk->publish(); break;
                    case 3: talk->kv.forget_unseen(); break;
                    case 4:
                        talk->kv.roll_back(
                            *rc::gen::inRange<std::uint32_t>(0, talk->kv.num_tokens() + 1));
                        talk->tokens.resize(talk->kv.num_tokens());
                        break;
                    case 5: {
                        auto next = std::make_unique<DeviceTalk>(cache, device);
                        next->tokens = talks[*rc::gen::inRange(0, 3)]->tokens;
                        next->tokens.resize(next->tokens.size() / 2);
                        if (!next->compute()) next->tokens.resize(next->kv.num_tokens());
                        talk = std::move(next);
                        break;
                    }
                }
                for (const auto& one : talks) RC_ASSERT(one->is_whole(window));
                RC_ASSERT(cache.used_bytes() <= cache.bytes_max());
            }
        }
        // No page and no slot is lost.
        RC_ASSERT(cache.pages_free() == num_pages);
        KvCache::Sequence last(cache);
        RC_ASSERT(last.reserve(num_slots * page_tokens));
        RC_ASSERT(!last.reserve((num_slots + 1) * page_tokens));
    }));
}

// 250 pages and the slots of one window suffice for 2,000 tokens.
TEST(KvWindowTest, LongTextNeedsTheSlotsOfOneWindow) {
    constexpr std::uint32_t window = 32, page_tokens = 8, rows = 16, slots = 7;
    SlotDevice device(250, slots, page_tokens);
    KvCache cache(window_config(window),
                  {.page_tokens = page_tokens, .num_pages = 250, .mover = device.mover()});
    EXPECT_EQ(cache.tokens_max(rows), 2'000u);
    EXPECT_EQ(cache.bytes_max(), (250 + slots) * cache.page_bytes() / 2);
    EXPECT_TRUE(cache.has_room(2'000, 0, rows, {}));
    EXPECT_FALSE(cache.has_room(2'001, 0, rows, {}));
    EXPECT_FALSE(cache.has_room(100, 0, rows, {1, 1})) << "no slot for another sequence";
    {
        // A text whose begin was taken over has the slots of its windows already.
        KvCache::Sequence begun(cache);
        ASSERT_TRUE(begun.reserve(40));
        begun.commit(40);
        begun.forget_unseen();
        EXPECT_TRUE(cache.has_room(2'000, 40, rows, {}));
        EXPECT_FALSE(cache.has_room(2'000, 40, rows, {1, 1}));
    }
    KvCache::Sequence kv(cache);
    for (std::uint32_t at = 0; at < 2'000; at += rows) {
        ASSERT_TRUE(kv.reserve(at + rows)) << at;
        kv.commit(rows);
        kv.forget_unseen();
    }
    EXPECT_EQ(cache.pages_free(), 0u);
}

class GptOssEngineTest : public testing::Test {
  protected:
    GptOssEngineTest() {
        const auto checkpoint = repository() / "tests/golden/families/gpt-oss-mxfp4";
        PackOptions options;
        options.expert_dtype = ExpertDtype::f32;
        options.hub_f32 = true;
        const auto report = pack_checkpoint(checkpoint, folder_.path() / "package", options,
                                            test::compute_threads(), {});
        if (!report.ok()) throw std::runtime_error(report.error().message);
        package_ = ModelPackage::open(folder_.path() / "package").value();
        decoder_ = Decoder::create(package_, test::compute_threads()).value();
        experts_.emplace(package_, test::compute_threads(), ExpertRounding{});
        std::ifstream in(checkpoint / "golden.json");
        golden_ = nlohmann::json::parse(in);
    }

    std::vector<std::vector<TokenId>> run(const std::vector<GenerationRequest>& requests,
                                          const EngineOptions& options) {
        std::vector<std::vector<TokenId>> answers(requests.size());
        std::vector<std::promise<GenerationEnd>> ends(requests.size());
        Engine engine(*decoder_, *experts_, options);
        const auto submit = [&](std::size_t i) {
            EXPECT_TRUE(
                engine
                    .submit(
                        requests[i],
                        {.on_token =
                             [&, i](const TokenEvent& event) {
                                 answers[i].push_back(event.token.id);
                             },
                         .on_end = [&, i](const GenerationEnd& end) { ends[i].set_value(end); }})
                    .ok());
        };
        for (std::size_t i = 0; i < requests.size(); ++i) submit(i);
        for (auto& end : ends) EXPECT_NE(end.get_future().get().reason, FinishReason::error);
        counters_ = engine.counters();
        return answers;
    }

    test::TemporaryFolder folder_{"kv-window"};
    std::shared_ptr<const ModelPackage> package_;
    std::unique_ptr<Decoder> decoder_;
    std::optional<LocalExperts> experts_;
    nlohmann::json golden_;
    EngineCounters counters_;
};

// The prompts have up to 97 tokens and windows of 16 positions.
TEST_F(GptOssEngineTest, GreedyTextsBeyondTheWindowAreTheGoldenOnes) {
    std::vector<GenerationRequest> requests;
    for (const auto& entry : golden_) {
        GenerationRequest request;
        request.prompt = entry.at("ids").get<std::vector<TokenId>>();
        request.sampling.temperature = 0;
        request.max_tokens = 24;
        requests.push_back(request);
    }
    const auto answers = run(requests, {.step_rows_max = 8, .page_tokens = 4});
    std::size_t compared = 0;
    for (std::size_t i = 0; i < answers.size(); ++i) {
        const auto greedy = golden_[i].at("greedy").get<std::vector<TokenId>>();
        const auto margin = golden_[i].at("greedy_margin").get<std::vector<double>>();
        for (std::size_t j = 0; j < greedy.size() && margin[j] > 2e-3; ++j, ++compared)
            EXPECT_EQ(answers[i][j], greedy[j]) << i << ' ' << j;
    }
    EXPECT_GT(compared, 60u);
}

// The first prompt has read few of its tokens when the second one asks for room.
TEST_F(GptOssEngineTest, PromptsThatBeginTogetherPreemptNoneOfThem) {
    const KvCache probe(package_->config(), {.page_tokens = 4});
    constexpr std::uint32_t num_tokens = 97, rows = 8;
    const std::uint32_t room = probe.room_for(num_tokens + 4, rows);
    std::vector<GenerationRequest> requests(3);
    for (std::uint32_t i = 0; i < 3; ++i) {
        requests[i].prompt = test::random_tokens(num_tokens, package_->config().vocab_size, i);
        requests[i].sampling.temperature = 0;
        requests[i].max_tokens = 4;
    }
    EngineOptions options{.sequences_max = 3,
                          .step_rows_max = rows,
                          .kv_bytes_max = (3 * room / 2) * probe.page_bytes(),
                          .page_tokens = 4,
                          .prefix_cache = false};
    const auto answers = run(requests, options);
    EXPECT_EQ(counters_.preempted, 0u);
    EXPECT_EQ(counters_.running_max, 1u);
    // Room for two is used by two.
    options.kv_bytes_max = (2 * room + 2) * probe.page_bytes();
    EXPECT_EQ(run(requests, options), answers);
    EXPECT_EQ(counters_.preempted, 0u);
    EXPECT_EQ(counters_.running_max, 2u);
}

// Little room, so that sequences are preempted, parts are dropped, and prefixes are taken over.
TEST_F(GptOssEngineTest, TextsInLittleRoomEqualThoseInMuchRoom) {
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 120; ++i) {
        GenerationRequest request;
        request.prompt = test::random_tokens(20 + i % 5 * 20, package_->config().vocab_size, i % 4);
        const auto own = test::random_tokens(1 + i % 7, package_->config().vocab_size, i);
        request.prompt.insert(request.prompt.end(), own.begin(), own.end());
        request.sampling.seed = i;
        request.max_tokens = 30 + i % 60;
        requests.push_back(request);
    }
    const EngineOptions much{.queue_max = 200, .page_tokens = 4, .prefix_cache = false};
    const auto wanted = run(requests, much);
    EXPECT_EQ(counters_.preempted, 0u);

    const KvCache probe(package_->config(), {.page_tokens = 4});
    EngineOptions little{.sequences_max = 6,
                         .queue_max = 200,
                         .step_rows_max = 16,
                         .kv_bytes_max = 50 * probe.page_bytes(),
                         .page_tokens = 4};
    EXPECT_EQ(run(requests, little), wanted);
    EXPECT_GT(counters_.preempted, 0u);
    EXPECT_GT(counters_.cached_tokens, 0u);
    EXPECT_GT(counters_.kv_tokens, std::uint64_t{counters_.kv_pages} * 4);
}

}  // namespace
}  // namespace moex
