// The memory limit: the experts that fit, and the worker's behaviour when the limit is changed.
#include <algorithm>
#include <set>

#include "tests/support/posted_loop.h"
#include "tests/web-worker/stage.h"
#include "web-worker/expert_store.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/span_host.h"

namespace moex {
namespace {

// A test stage: its hub has more experts than fit into the worker, and assigns as many as HELLO
// reports room for.
struct FullStage : Stage {
    explicit FullStage(std::uint64_t limit_bytes, std::uint64_t blobs_an_arena = 0)
        : Stage(limit_bytes) {
        limits = wide_limits;
        if (blobs_an_arena > 0) binding_bytes = blobs_an_arena * stage_blob_bytes;
        core->start();
        room = welcome() / stage_blob_bytes;
        assign(first_experts(room));
        run_until_phase(WorkerPhase::serving);
        phases.clear();
    }
    // Changes the memory limit, and returns the BUDGET that the worker sent.
    Budget move_limit(std::uint64_t limit_bytes) {
        core->set_budget(limit_bytes);
        const Budget told = decode_budget(next(FrameType::budget), limits).value();
        room = told.budget_bytes / stage_blob_bytes;
        return told;
    }
    void expect_no_outage() {
        EXPECT_TRUE(connected);
        EXPECT_EQ(connects, 1);
        EXPECT_EQ(devices_opened, 1);
        for (const WorkerPhase phase : phases)
            EXPECT_TRUE(phase == WorkerPhase::serving || phase == WorkerPhase::downloading)
                << worker_phase_name(phase);
    }
    std::uint64_t room = 0;  // experts
};

// Regression: the memory limit once did not include the buffers of the lanes, which take 256 MB for
// a large model.
TEST(MemoryLimitTest, WeightsAndCallsInFlightStayWithinTheLimitTogether) {
    for (const std::uint64_t limit_bytes : {150'000ull, 400'000ull, 3'000'000ull}) {
        FullStage stage(limit_bytes);
        ASSERT_GT(stage.room, 5u);
        stage.expect_answer(1, 2);

        stage.run_until_shown();
        EXPECT_LE(stage.status().device.buffer_bytes, limit_bytes);
        EXPECT_GE(stage.status().device.buffer_bytes, limit_bytes / 2)
            << "memory that was offered is not used";
    }
}

// Regression: moving the memory slider once dropped all weights, closed the connection, and showed
// that the hub was gone.
TEST(MemoryLimitTest, ASmallerLimitServesOnWithWhatFits) {
    for (const std::uint64_t blobs_an_arena : {0u, 20u, 33u}) {
        FullStage stage(3'000'000, blobs_an_arena);
        const std::uint64_t before = stage.room;
        const int fetches = stage.fetches;

        const Budget told = stage.move_limit(1'000'000);
        EXPECT_LT(stage.room, before / 2);
        EXPECT_EQ(told.dropped.size(), before - stage.room) << "only experts that no longer fit";
        EXPECT_EQ(stage.status().phase, WorkerPhase::serving);

        std::uint32_t sequence_id = 0;
        for (const std::uint16_t expert : first_experts(before))
            if (!std::count(told.dropped.begin(), told.dropped.end(), Unit{0, expert}))
                stage.expect_answer(++sequence_id, expert);
        EXPECT_EQ(sequence_id, stage.room);

        stage.run_until_shown();
        EXPECT_LE(stage.status().device.buffer_bytes, 1'000'000u);
        EXPECT_EQ(stage.status().units_assigned, stage.room);
        EXPECT_EQ(stage.fetches, fetches) << "experts that stay are not loaded again";
        stage.expect_no_outage();
    }
}

TEST(MemoryLimitTest, ALargerLimitKeepsItsArenasAndTakesMore) {
    FullStage stage(400'000);
    const std::uint64_t before = stage.room;

    EXPECT_TRUE(stage.move_limit(3'000'000).dropped.empty());
    EXPECT_GT(stage.room, 4 * before);
    stage.run_until_shown();
    EXPECT_EQ(stage.status().units_ready, before);
    stage.expect_answer(1, 0);

    std::vector<std::uint16_t> more = first_experts(stage.room);
    more.erase(more.begin(), more.begin() + static_cast<std::ptrdiff_t>(before));
    stage.assign(more);
    stage.expect_answer(2, 0);
    stage.expect_answer(3, static_cast<std::uint16_t>(stage.room - 1));
    EXPECT_EQ(stage.fetches, static_cast<int>(stage.room)) << "each expert was fetched once";

    stage.run_until_shown();
    EXPECT_LE(stage.status().device.buffer_bytes, 3'000'000u);
    stage.expect_no_outage();
}

TEST(MemoryLimitTest, ALimitThatIsMovedToAndFroEndsWhereItBegan) {
    FullStage stage(1'000'000, 20);
    const std::uint64_t begin = stage.room;
    for (const std::uint64_t limit_bytes : {300'000u, 2'000'000u, 500'000u, 1'000'000u}) {
        stage.move_limit(limit_bytes);
        stage.assign(first_experts(stage.room));
        stage.expect_answer(1, static_cast<std::uint16_t>(stage.room - 1));
        stage.run_until_shown();
        EXPECT_LE(stage.status().device.buffer_bytes, limit_bytes);
    }
    EXPECT_EQ(stage.room, begin);
    stage.expect_no_outage();
}

// Regression: the call queue once lived longer than its model, and used it.
TEST(MemoryLimitTest, GroupsThatRunOrWaitWhileTheLimitIsMovedAreAnswered) {
    for (const std::uint64_t limit_bytes : {150'000u, 9'000'000u}) {
        FullStage stage(3'000'000);
        stage.device->hold_reads = true;
        for (std::uint32_t id = 1; id <= 5; ++id)
            stage.give(encode_group_dispatch(group_of(id, 0), false));

        stage.move_limit(limit_bytes);
        // The hub sent this group before it received BUDGET.
        stage.give(encode_group_dispatch(group_of(6, 0), false));
        stage.device->release_reads();
        for (std::uint32_t id = 1; id <= 6; ++id) {
            const auto result = decode_group_result(stage.next(FrameType::group_result),
                                                    stage.limits);
            EXPECT_EQ(result->sequence_id, id);
            EXPECT_LE(error_of(result->y, group_of(id, 0)), 1e-6);
        }

        stage.run_until_shown();
        EXPECT_LE(stage.status().device.buffer_bytes, limit_bytes);
        EXPECT_FALSE(stage.has_sent(FrameType::error));
        stage.expect_no_outage();
    }
}

TEST(MemoryLimitTest, ExpertsBeyondASmallerLimitAreReportedAtOnce) {
    FullStage stage(3'000'000);
    const std::uint64_t before = stage.room;
    stage.move_limit(1'000'000);

    // The hub sent this ASSIGN before it received BUDGET.
    stage.give(encode_assign(units_of({static_cast<std::uint16_t>(before)})));
    const auto told = decode_budget(stage.next(FrameType::budget), stage.limits);
    EXPECT_EQ(told->budget_bytes / stage_blob_bytes, stage.room);
    EXPECT_EQ(told->dropped, (std::vector<Unit>{{0, static_cast<std::uint16_t>(before)}}));
    stage.expect_no_outage();
}

TEST(MemoryLimitTest, ManyUnitsAreReleasedInSeveralConsistentFrames) {
    Stage stage(40'000'000);
    stage.limits = wide_limits;
    stage.limits.num_layers = 3;
    stage.core->start();
    stage.welcome();
    constexpr std::uint32_t num_units = 3 * 512;
    for (std::uint16_t layer = 0; layer < 3; ++layer) {
        std::vector<AssignedUnit> units = units_of(first_experts(512));
        for (AssignedUnit& unit : units) unit.layer = layer;
        stage.give(encode_assign(units));
    }
    stage.run_until([&] { return stage.status().units_ready == num_units; });

    stage.core->set_budget(400'000);
    std::size_t held = num_units;
    for (int frame = 0; frame < 2; ++frame) {
        const auto told = decode_budget(stage.next(FrameType::budget), stage.limits);
        held -= told->dropped.size();
        EXPECT_EQ(told->budget_bytes, held * stage_blob_bytes);
    }
    EXPECT_FALSE(stage.has_sent(FrameType::budget));
    stage.run_until_shown();
    EXPECT_EQ(stage.status().units_ready, held);
}

TEST(MemoryLimitTest, HubWithoutBudgetIsNotifiedByAReconnect) {
    Stage stage;
    stage.hub_caps.clear();
    stage.serve({1, 2});
    for (std::uint32_t id = 1; id <= 5; ++id)
        stage.give(encode_group_dispatch(group_of(id, 1), false));
    stage.phases.clear();

    stage.core->set_budget(100 * stage_blob_bytes);
    // The hub sent this group before the connection closed.
    stage.give(encode_group_dispatch(group_of(6, 1), false));
    stage.welcome();
    stage.assign({1, 2});
    stage.expect_answer(1, 2);
    EXPECT_FALSE(stage.has_sent(FrameType::error));
    EXPECT_EQ(stage.fetches, 2) << "the weights stayed";
    EXPECT_EQ(std::count(stage.phases.begin(), stage.phases.end(), WorkerPhase::offline), 0);
}

TEST(MemoryLimitTest, NextHelloReportsALimitMovedWhilePaused) {
    Stage stage;
    stage.serve({1, 2});
    stage.core->pause();
    stage.run_until([&] { return !stage.phases.empty(); });
    stage.core->set_budget(100 * stage_blob_bytes);
    stage.core->resume();
    EXPECT_EQ(stage.welcome() / stage_blob_bytes, 75u) << "a quarter is for calls";
    stage.assign({1, 2});
    EXPECT_FALSE(stage.has_sent(FrameType::budget));
    EXPECT_EQ(stage.fetches, 2);
}

// Regression: HELLO once reported sixteen times the adapter's binding size, and the worker had room
// for half of the experts that were then assigned.
TEST(MemoryLimitTest, WorkerReportsItsAdaptersCapacityAndFetchesNoMore) {
    for (const bool knows_budget : {false, true}) {
        Stage stage;
        stage.limits = wide_limits;
        stage.binding_bytes = stage_blob_bytes * 19 / 10;  // an arena has room for one blob
        if (!knows_budget) stage.hub_caps.clear();
        stage.core->start();
        // The worker does not know the size of a blob when it sends HELLO.
        std::uint64_t room = stage.welcome() / stage_blob_bytes;
        EXPECT_GT(room, ExpertStore::arenas_max);
        room = (knows_budget
                    ? decode_budget(stage.next(FrameType::budget), stage.limits)->budget_bytes
                    : stage.welcome()) /
               stage_blob_bytes;
        EXPECT_EQ(room, ExpertStore::arenas_max);

        stage.give(encode_assign(units_of(first_experts(room + 3))));
        if (knows_budget) {
            const auto told = decode_budget(stage.next(FrameType::budget), stage.limits);
            EXPECT_EQ(told->dropped.size(), 3u);
        } else {
            const auto error = decode_error(stage.next(FrameType::error));
            EXPECT_EQ(error->code, "no_space");
            EXPECT_FALSE(error->fatal);
        }
        stage.run_until([&] { return stage.status().units_ready == room; });
        EXPECT_EQ(stage.status().phase, WorkerPhase::serving);
        EXPECT_EQ(stage.fetches, static_cast<int>(room));
        stage.expect_answer(1, static_cast<std::uint16_t>(room - 1));
    }
}

TEST(MemoryLimitTest, LimitWithoutRoomForOneExpertIsReported) {
    for (const bool moved : {false, true}) {
        Stage stage(moved ? 100 * stage_blob_bytes : stage_blob_bytes);
        if (moved) {
            stage.serve({1});
            stage.core->set_budget(stage_blob_bytes);
        } else {
            stage.core->start();
            stage.welcome();
        }
        stage.run_until_phase(WorkerPhase::failed);
        EXPECT_EQ(stage.status().detail,
                  "The memory limit of 11 kB has no room for one expert of this model, which takes "
                  "11 kB. Raise the limit, then start again.");
        EXPECT_FALSE(stage.connected);
    }
}

// The part for spans of a worker whose test lends buffers itself: a span of a small model has far
// fewer arenas than a store may have.
struct NoSpans : SpanHost {
    void on_frame(const FrameHeader&, ByteView) override {}
    void begin_connection() override {}
    HeldLayers layers() const override { return {}; }
    void set_bytes_max(std::uint64_t) override {}
};

// Regression: the arenas of a span once left fewer for experts than the worker's budget promised.
// The expert that found none ended the worker's GPU.
TEST(MemoryLimitTest, ArenasOfASpanLeaveFewerForExperts) {
    std::optional<SpanContext> span;
    WorkerOptions options;
    options.make_spans = [&](SpanContext context) {
        span.emplace(std::move(context));
        return std::make_unique<NoSpans>();
    };
    constexpr std::uint32_t room = ExpertStore::arenas_max;
    // A quarter of the limit is for calls in flight; the rest has room for an expert more than
    // there are arenas.
    Stage stage((room + 1) * stage_blob_bytes * 4 / 3 + 4, std::move(options));
    stage.limits = wide_limits;
    stage.binding_bytes = stage_blob_bytes * 19 / 10;  // an arena has room for one blob
    stage.hub_caps = {"budget", span_cap, span_once_cap};
    stage.core->start();
    stage.welcome();
    const auto budget = [&] {
        EXPECT_TRUE(stage.has_sent(FrameType::budget));
        if (!stage.has_sent(FrameType::budget)) return Budget{};
        return decode_budget(stage.next(FrameType::budget), stage.limits).value();
    };
    EXPECT_EQ(budget().budget_bytes / stage_blob_bytes, room);
    stage.assign(first_experts(100));

    // The buffer of an expert that the worker does not hold takes an arena.
    const gpu::BufferId buffer =
        stage.device->create_buffer(stage_blob_bytes, gpu::BufferUsage::storage, "span").value();
    ASSERT_TRUE(span->lend({.owner = 1, .first = {0, 300}, .num_units = 1, .buffer = buffer}).ok());
    EXPECT_EQ(budget().budget_bytes / stage_blob_bytes, room - 1);
    stage.give(encode_assign(units_of(first_experts(room))));
    EXPECT_EQ(budget().dropped, (std::vector<Unit>{{0, room - 1}}));
    stage.run_until([&] { return stage.status().units_ready >= room - 1; });
    stage.expect_answer(1, room - 2);

    // All arenas are taken: three experts keep their slots beside the copies of the span.
    ASSERT_TRUE(span->lend({.owner = 1, .first = {0, 0}, .num_units = 3, .buffer = buffer}).ok());
    const Budget full = budget();
    EXPECT_EQ(full.budget_bytes / stage_blob_bytes, room - 2);
    EXPECT_EQ(full.dropped.size(), 1u);
    stage.expect_answer(2, 2);

    span->end_lending(1, true);
    stage.device->destroy_buffer(buffer);
    EXPECT_EQ(budget().budget_bytes / stage_blob_bytes, room);
    stage.expect_answer(3, 1);
    EXPECT_EQ(stage.devices_opened, 1);
}

// Regression: experts that arrived one at a time once took an arena each, and the store had only
// sixteen arenas.
TEST(ExpertStoreTest, ManySmallReservationsFillTheBudget) {
    std::deque<std::function<void()>> unused;
    auto device = gpu::open_vulkan_device(
        {}, [&](std::function<void()> function) { unused.push_back(std::move(function)); });
    ASSERT_TRUE(device.ok()) << device.error().message;
    ExpertStore store(**device, 256, 256 * 1000);
    const Bytes blob(256);
    for (std::uint16_t i = 0; i < 1000; ++i) {
        ASSERT_TRUE(store.reserve(i + 1u).ok());
        ASSERT_TRUE(store.put(Unit{0, i}, blob).ok()) << i;
    }

    EXPECT_LE(store.arenas().size(), ExpertStore::arenas_max);
    EXPECT_EQ(store.put(Unit{1, 0}, blob).error().code, ErrorCode::no_space);
    store.drop(Unit{0, 17});
    EXPECT_TRUE(store.put(Unit{1, 0}, blob).ok());
}

// Each arena has room for one blob.
TEST(ExpertStoreTest, LentArenasCountAmongTheArenas) {
    test::PostedLoop loop;
    const std::unique_ptr<gpu::Device> device = gpu::open_vulkan_device({}, loop.poster()).value();
    constexpr std::uint32_t arenas = ExpertStore::arenas_max, num_lent = 10;
    ExpertStore store(*device, 256, 256 * 1000, {.arena_bytes_max = 256});
    const gpu::BufferId span =
        device->create_buffer(256, gpu::BufferUsage::storage, "span").value();
    const auto lend = [&](std::uint16_t expert) {
        return store.lend({.owner = 1, .first = {1, expert}, .num_units = 1, .buffer = span});
    };
    EXPECT_EQ(store.slots_max(), arenas);
    for (std::uint16_t i = 0; i < num_lent; ++i) EXPECT_EQ(lend(i), 0u);
    EXPECT_EQ(store.slots_max(), arenas - num_lent);
    EXPECT_EQ(store.slots_for(256 * 2000), arenas - num_lent);
    const Bytes blob(256);
    for (std::uint16_t i = 0; i < store.slots_max(); ++i)
        ASSERT_TRUE(store.put(Unit{0, i}, blob).ok()) << i;
    EXPECT_EQ(store.arenas().size(), arenas);
    EXPECT_EQ(store.put(Unit{2, 0}, blob).error().code, ErrorCode::no_space);

    // No arena is left for a further buffer.
    EXPECT_EQ(lend(num_lent), 0u);
    EXPECT_FALSE(store.is_lent({1, num_lent}));
    EXPECT_EQ(store.lend({.owner = 1, .first = {0, 0}, .num_units = 2, .buffer = span}), 2u)
        << "two experts keep their slots";
    EXPECT_FALSE(store.is_lent({0, 0}));

    EXPECT_TRUE(store.end_lending(1, true).empty());
    EXPECT_EQ(store.slots_max(), arenas);
    EXPECT_TRUE(store.put(Unit{2, 0}, blob).ok());
    device->destroy_buffer(span);
}

// Returns the number of arenas of each of six layers with eight experts, which arrive in the order
// of their hashes.
std::vector<std::size_t> arenas_of_layers(std::uint64_t arena_bytes) {
    auto device = gpu::open_vulkan_device({}, [](std::function<void()>) {});
    EXPECT_TRUE(device.ok());
    ExpertStore store(**device, 256, 256 * 48, {.layer_units = 8, .arena_bytes_max = arena_bytes});
    EXPECT_TRUE(store.reserve(48).ok());
    const Bytes blob(256);
    for (std::uint32_t i = 0; i < 48; ++i) {
        const std::uint32_t unit = i * 29 % 48;
        EXPECT_TRUE(store
                        .put(Unit{static_cast<std::uint16_t>(unit / 8),
                                  static_cast<std::uint16_t>(unit % 8)},
                             blob)
                        .ok());
    }

    std::vector<std::size_t> found;
    for (std::uint16_t layer = 0; layer < 6; ++layer) {
        std::set<std::uint32_t> arenas;
        for (std::uint16_t expert = 0; expert < 8; ++expert)
            arenas.insert(store.find(Unit{layer, expert})->arena);
        found.push_back(arenas.size());
    }
    return found;
}

TEST(ExpertStoreTest, ExpertsOfALayerShareAnArena) {
    const std::vector<std::size_t> one_each(6, 1);
    EXPECT_EQ(arenas_of_layers(256 * 48), one_each);
    EXPECT_EQ(arenas_of_layers(256 * 21), one_each) << "two layers per arena";
    EXPECT_EQ(arenas_of_layers(256 * 8), one_each);
}

// A store of eight slots with the experts 0 to 3 of the layers 5 and 6, and a span's buffer with
// those of layer 5.
class LentUnitsTest : public testing::Test {
  protected:
    static constexpr std::uint64_t blob_bytes = 256;
    LentUnitsTest() {
        for (std::uint16_t i = 0; i < 8; ++i)
            EXPECT_TRUE(store_.put(unit(i), Bytes(blob_bytes, static_cast<std::byte>(i))).ok());
        for (std::uint16_t i = 0; i < 4; ++i)
            device_->write_buffer(span_, i * blob_bytes,
                                  Bytes(blob_bytes, static_cast<std::byte>(i)));
    }
    ~LentUnitsTest() override {
        if (!is_given_up_) device_->destroy_buffer(span_);
    }
    static Unit unit(std::uint16_t i) {
        return {static_cast<std::uint16_t>(5 + i / 4), static_cast<std::uint16_t>(i % 4)};
    }
    std::uint64_t bytes_of_device() const { return device_->counters().buffer_bytes; }
    // Returns the first byte of the blob in the unit's place.
    std::uint8_t content(Unit of) {
        const ExpertSlot slot = *store_.find(of);
        const gpu::BufferId out = device_->create_buffer(4, gpu::BufferUsage::readback, "").value();
        gpu::Command copy{.kind = gpu::Command::Kind::copy};
        copy.source = store_.arenas().at(slot.arena);
        copy.source_offset_bytes = slot.blob_word * 4;
        copy.target = out;
        copy.size_bytes = 4;
        device_->submit({&copy, 1});
        bool finished = false;
        std::uint8_t first = 255;
        device_->read_buffer(out, 4, [&](Result<ByteView> bytes) {
            finished = true;
            if (bytes.ok()) first = std::to_integer<std::uint8_t>(bytes->front());
        });
        if (!finished) loop_.run_until(finished);
        device_->destroy_buffer(out);
        return first;
    }
    void expect_right_contents() {
        for (const Unit& one : store_.units())
            EXPECT_EQ(content(one), 4 * (one.layer - 5) + one.expert);
    }

    test::PostedLoop loop_;
    std::unique_ptr<gpu::Device> device_ = gpu::open_vulkan_device({}, loop_.poster()).value();
    ExpertStore store_{*device_, blob_bytes, 8 * blob_bytes, {.layer_units = 4}};
    gpu::BufferId span_ =
        device_->create_buffer(4 * blob_bytes, gpu::BufferUsage::storage, "span").value();
    bool is_given_up_ = false;
    LentUnits lent_{
        .owner = 1, .first = {5, 0}, .num_units = 4, .buffer = span_, .give_up = [this] {
            is_given_up_ = true;
        }};
};

TEST_F(LentUnitsTest, ExpertsOfASpanTakeMemoryOnce) {
    const std::uint64_t before = bytes_of_device();
    EXPECT_EQ(store_.lend(lent_), 4u);
    ASSERT_TRUE(store_.resize(4 * blob_bytes).ok());
    EXPECT_EQ(bytes_of_device(), before - 4 * blob_bytes);
    EXPECT_EQ(store_.slots_max(), 8u);
    EXPECT_EQ(store_.bytes_max(), 8 * blob_bytes);
    EXPECT_EQ(store_.num_units(), 8u);
    expect_right_contents();

    // An expert that is released and assigned again takes no slot either.
    store_.drop(unit(2));
    EXPECT_EQ(store_.slots_max(), 7u);
    EXPECT_EQ(store_.put(Unit{7, 0}, Bytes(blob_bytes)).error().code, ErrorCode::no_space);
    EXPECT_TRUE(store_.put(unit(2), Bytes(blob_bytes)).ok());
    EXPECT_EQ(store_.slots_max(), 8u);
    // Experts that take slots are the first to go.
    const std::vector<Unit> order = store_.units_from_the_end();
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(order[i].layer, i < 4 ? 6 : 5) << i;
}

TEST_F(LentUnitsTest, BufferOfASpanBecomesAnArena) {
    store_.lend(lent_);
    ASSERT_TRUE(store_.resize(4 * blob_bytes).ok());
    ASSERT_TRUE(store_.resize(8 * blob_bytes).ok());
    const std::uint64_t before = bytes_of_device();
    store_.drop(unit(1));
    EXPECT_TRUE(store_.end_lending(1, true).empty());
    EXPECT_EQ(bytes_of_device(), before);
    EXPECT_EQ(store_.arenas().back().value, span_.value);
    EXPECT_TRUE(is_given_up_) << "the store destroys the buffer";
    EXPECT_EQ(store_.num_units(), 7u);
    EXPECT_EQ(store_.slots_max(), 8u);
    expect_right_contents();

    // The place of the dropped expert is a free slot, and the buffer shrinks as every arena does.
    EXPECT_TRUE(store_.put(unit(1), Bytes(blob_bytes, std::byte{1})).ok());
    EXPECT_EQ(bytes_of_device(), before);
    expect_right_contents();
    store_.drop(unit(0));
    store_.drop(unit(7));
    ASSERT_TRUE(store_.resize(6 * blob_bytes).ok());
    EXPECT_EQ(bytes_of_device(), before - 2 * blob_bytes);
    expect_right_contents();
}

// A GPU's binding may have room for more experts than an arena that the store makes.
TEST_F(LentUnitsTest, BufferOfASpanMayExceedTheStoresArenas) {
    ExpertStore small(*device_, blob_bytes, 8 * blob_bytes,
                      {.layer_units = 4, .arena_bytes_max = 3 * blob_bytes});
    for (std::uint16_t i = 0; i < 8; ++i) ASSERT_TRUE(small.put(unit(i), Bytes(blob_bytes)).ok());
    small.lend(lent_);
    ASSERT_TRUE(small.resize(4 * blob_bytes).ok());
    ASSERT_TRUE(small.resize(8 * blob_bytes).ok());
    const std::uint64_t before = bytes_of_device();
    EXPECT_TRUE(small.end_lending(1, true).empty());
    EXPECT_EQ(bytes_of_device(), before);
    std::set<std::pair<std::uint32_t, std::uint32_t>> places;
    for (const Unit one : small.units()) {
        const ExpertSlot slot = *small.find(one);
        places.emplace(slot.arena, slot.blob_word);
        if (one.layer == 5) {
            EXPECT_EQ(small.arenas().at(slot.arena).value, span_.value);
            EXPECT_EQ(slot.blob_word, one.expert * blob_bytes / 4);
        }
    }
    EXPECT_EQ(places.size(), 8u);
}

// The next span of the worker has most of its memory already.
TEST_F(LentUnitsTest, ExpertsMoveToSlotsIfTheirBufferExceedsTheBudget) {
    store_.lend(lent_);
    ASSERT_TRUE(store_.resize(4 * blob_bytes).ok());
    ASSERT_TRUE(store_.resize(7 * blob_bytes).ok());
    const std::uint64_t before = bytes_of_device();
    EXPECT_EQ(store_.end_lending(1, true), std::vector{unit(3)}) << "there are seven slots";
    EXPECT_EQ(bytes_of_device(), before + 3 * blob_bytes);
    EXPECT_EQ(store_.num_units(), 7u);
    EXPECT_EQ(store_.slots_max(), 7u);
    expect_right_contents();
    for (const gpu::BufferId arena : store_.arenas()) EXPECT_NE(arena.value, span_.value);
}

TEST_F(LentUnitsTest, ExpertsOfALostSpanAreDropped) {
    store_.lend(lent_);
    EXPECT_EQ(store_.end_lending(1, false).size(), 4u);
    EXPECT_EQ(store_.num_units(), 4u);
    EXPECT_EQ(store_.slots_max(), 8u);
    expect_right_contents();
}

// The next span is loaded while the earlier one computes its last step.
TEST_F(LentUnitsTest, LaterSpanTakesTheExpertsOver) {
    store_.lend(lent_);
    const gpu::BufferId next =
        device_->create_buffer(4 * blob_bytes, gpu::BufferUsage::storage, "next").value();
    for (std::uint16_t i = 0; i < 4; ++i)
        device_->write_buffer(next, i * blob_bytes, Bytes(blob_bytes, static_cast<std::byte>(i)));
    EXPECT_EQ(store_.lend({.owner = 2, .first = {5, 0}, .num_units = 4, .buffer = next}), 0u)
        << "they have no slots, which would free memory for the later span";
    EXPECT_TRUE(store_.end_lending(1, true).empty());
    EXPECT_EQ(store_.num_units(), 8u);
    expect_right_contents();
    EXPECT_EQ(store_.end_lending(2, false).size(), 4u);
    device_->destroy_buffer(next);
}

TEST(ExpertStoreTest, LargeLayerUsesAsFewArenasAsPossible) {
    EXPECT_EQ(arenas_of_layers(256 * 4), std::vector<std::size_t>(6, 2));
}

}  // namespace
}  // namespace moex
