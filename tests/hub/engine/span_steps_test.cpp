// Tests that a step fails if the device cannot read what a worker of a span lacks. The store of
// this test is that of a device that was lost: it reads a number of times, and then fails.
#include "hub/engine/span_steps.h"

#include <gtest/gtest.h>

#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

class LosableStore : public SpanKvStore {
  public:
    Status read(std::span<const SequenceRow>, std::uint32_t, std::uint32_t,
                std::span<std::byte> out) override {
        MOEX_TRY(next());
        std::fill(out.begin(), out.end(), std::byte{1});
        return {};
    }
    Status write(std::span<const SequenceRow>, std::uint32_t, std::uint32_t, ByteView) override {
        return {};
    }
    Result<std::vector<float>> state_before_step(const SequenceRow&, std::uint32_t) override {
        MOEX_TRY(next());
        return std::vector<float>(4, 1.0f);
    }
    Status take_kept(std::size_t, std::span<const SequenceRow>, std::uint32_t, ByteView) override {
        return {};
    }

    int reads_left = 0;

  private:
    Status next() {
        if (reads_left == 0) return Error{ErrorCode::device_lost, "the GPU was lost"};
        --reads_left;
        return {};
    }
};

// Reads keys, values and the state of a layer in each plan, and again for a step that was not
// answered. It fails to answer.
class ReadingBackend : public SpanBackend {
  public:
    std::vector<PlannedSpan> plan(const SpanBatch& batch) override {
        read(batch);
        return {{1, first_layer, first_layer + 2, SpanUse::away}};
    }
    std::unique_ptr<SpanRound> submit(const PlannedSpan&, std::span<const SpanSequence>,
                                      std::span<const float>) override {
        return std::make_unique<LateRound>();
    }
    std::unique_ptr<SpanRound> submit_again(const PlannedSpan&, const SpanBatch& batch,
                                            std::span<const float>) override {
        read(batch);
        return nullptr;
    }
    void record(const PlannedSpan&, std::uint32_t, Duration) override {}
    void ended(std::uint64_t) override {}

    std::uint32_t first_layer = 0;  // with a gated delta rule; the next one has keys
    std::size_t row_bytes = 0;
    bool has_kv = false, has_state = false;

  private:
    struct LateRound : SpanRound {
        Result<SpanResult> wait(std::stop_token) override {
            return Error{ErrorCode::timeout, "no answer"};
        }
        void compare(std::span<const float>, std::span<const float>, Bytes) override {}
    };
    void read(const SpanBatch& batch) {
        Bytes kv(3 * row_bytes);
        has_kv = batch.read_kv(0, first_layer, first_layer + 2, 0, 3, kv).ok();
        has_state = batch.read_state(0, first_layer).ok();
    }
};

class SpanStepsTest : public testing::Test {
  protected:
    SpanStepsTest() {
        while (!config_.has_keys(backend_.first_layer + 1)) ++backend_.first_layer;
        backend_.row_bytes = 2 * sizeof(half) * config_.num_kv_heads * config_.head_dim;
        steps_.use(&backend_);
    }

    const ModelConfig config_ = test::hybrid_config();
    KvCache cache_{config_, {.page_tokens = 16, .num_pages = 4}};
    KvCache::Sequence sequence_{cache_};
    const std::vector<SequenceRow> rows_{{&sequence_, 3, 5}};
    LosableStore store_;
    ReadingBackend backend_;
    SpanSteps steps_{config_, &store_};
};

TEST_F(SpanStepsTest, StepFailsWhereKeysOrAStateCannotBeRead) {
    for (const int reads : {0, 1}) {
        store_.reads_left = reads;
        const Status begun = steps_.begin(rows_, 1, true);
        ASSERT_FALSE(begun.ok()) << reads;
        EXPECT_EQ(begun.error().code, ErrorCode::device_lost);
        EXPECT_EQ(backend_.has_kv, reads == 1);
        EXPECT_FALSE(backend_.has_state);
        EXPECT_FALSE(steps_.starts(backend_.first_layer)) << "no row is sent";
    }
    store_.reads_left = 2;
    ASSERT_TRUE(steps_.begin(rows_, 1, true).ok());
    EXPECT_TRUE(backend_.has_kv && backend_.has_state);
    EXPECT_TRUE(steps_.starts(backend_.first_layer));
}

// A standby is asked for a step that was not answered only with what could be read. The hub
// computes the layers instead.
TEST_F(SpanStepsTest, StandbyGetsNothingThatCouldNotBeRead) {
    for (const int reads : {2, 4}) {
        store_.reads_left = reads;
        ASSERT_TRUE(steps_.begin(rows_, 1, true).ok());
        std::vector<float> x(config_.hidden_size, 0.5f);
        const std::uint32_t first = backend_.first_layer;
        ASSERT_TRUE(steps_.leave(0, first, rows_, x));
        StepResult result;
        const auto layers = steps_.come_back(0, first + 2, rows_, x, result, 0, {});
        ASSERT_TRUE(layers.ok() && layers->has_value());
        EXPECT_EQ((*layers)->first, first);
        EXPECT_EQ((*layers)->end, first + 2);
        EXPECT_EQ(backend_.has_kv && backend_.has_state, reads == 4);
    }
}

}  // namespace
}  // namespace moex
