// Tests the engine's side of spans against workers that answer at once, late, wrongly or not.
#include "hub/dispatch/span/span_client.h"

#include <atomic>
#include <map>
#include <thread>

#include <gtest/gtest.h>

namespace moex {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t hidden = 32, kv_size = 8, first_layer = 2, end_layer = 5;
const WireLimits limits{.hidden_size = hidden, .num_layers = 8, .num_experts = 4};

// The layers add 1 to each value; the key of a row is its position, the value is 2.
std::vector<float> computed(std::span<const float> x) {
    std::vector<float> y(x.begin(), x.end());
    for (float& value : y) value += 1;
    return y;
}
Bytes kv_of(std::span<const SpanSequence> sequences) {
    Bytes kv;
    const auto put = [&](float value) {
        const half one = float_to_half(value);
        for (std::uint32_t i = 0; i < kv_size; ++i)
            kv.insert(kv.end(), reinterpret_cast<const std::byte*>(&one),
                      reinterpret_cast<const std::byte*>(&one) + sizeof one);
    };
    for (std::uint32_t layer = first_layer; layer < end_layer; ++layer)
        for (const SpanSequence& one : sequences)
            for (std::uint32_t i = 0; i < one.num_rows; ++i) {
                put(static_cast<float>(one.num_before + i + 1));
                put(2);
            }
    return kv;
}

class SpanClientTest : public testing::Test {
  protected:
    SpanClientTest() {
        options_.on = true;
        options_.kv_size = kv_size;
        options_.checks_min = 2;
        options_.check_period = 1000;
        options_.late_min = 20ms;
        options_.late_max = 50ms;
        options_.kv_bytes_at_once = 20 * span_kv_bytes(3, 1, kv_size);
        board_->add({.id = 1,
                     .worker = 9,
                     .first_layer = first_layer,
                     .end_layer = end_layer,
                     .num_pages = 4,
                     .page_tokens = 128,
                     .rows_max = 4});
    }

    SpanClient make() {
        return {options_,
                hidden,
                board_,
                {.send = [this](std::uint32_t, std::uint32_t step,
                                Bytes frame) { on_frame(step, frame); },
                 .lied = [this](std::uint32_t, std::string why) { lied_ = std::move(why); }}};
    }
    void on_frame(std::uint32_t step, const Bytes& frame) {
        const FrameType type = decode_frame_header(frame)->type;
        ++frames_[type];
        if (type == FrameType::span_step) ++steps_sent_;
        if (type == FrameType::span_kv) brought_ += decode_span_kv(frame, limits)->num_rows;
        if (type != FrameType::span_step || silent_) return;
        const SpanStep asked = *decode_span_step(frame, limits);
        SpanAnswer answer{.step = step,
                          .span = 1,
                          .verdict = verdict_,
                          .num_rows = asked.num_rows(),
                          .num_layers = end_layer - first_layer,
                          .kv_size = kv_size,
                          .x = computed(asked.x),
                          .kv = kv_of(asked.sequences)};
        if (lie_in_x_) answer.x[3] += 100;
        if (lie_in_kv_) answer.kv[1] = std::byte{0x50};
        board_->answer(step, now_steady(), std::move(answer));
    }

    // Runs a step over `rows`, and returns where its layers were computed.
    SpanUse step(SpanClient& client, const std::vector<SpanSequence>& rows, Duration here = 10ms) {
        std::uint32_t num_rows = 0;
        for (const SpanSequence& one : rows) num_rows += one.num_rows;
        const auto plan = client.plan(
            {.sequences = rows,
             .num_rows = num_rows,
             .may_leave = may_leave_,
             .read_kv = [](std::size_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                           std::span<std::byte> out) {
                 std::fill(out.begin(), out.end(), std::byte{0});
             }});
        if (plan.empty()) return SpanUse::here;
        const PlannedSpan& span = plan.front();
        const std::vector<float> x(std::size_t{num_rows} * hidden, 0.5f);
        if (span.use == SpanUse::check)
            client.submit(span, rows, x)->compare(x, computed(x), kv_of(rows));
        if (span.use == SpanUse::away) {
            const auto answer = client.submit(span, rows, x)->wait({});
            answered_ = answer.ok();
            if (answer.ok()) {
                EXPECT_EQ(answer->x, computed(x));
                EXPECT_EQ(answer->kv, kv_of(rows));
                EXPECT_EQ(answer->worker, 9u);
            }
        }
        client.record(span, num_rows, here);
        return span.use;
    }

    SpanOptions options_;
    std::shared_ptr<SpanBoard> board_ = std::make_shared<SpanBoard>();
    std::map<FrameType, int> frames_;
    std::atomic<int> steps_sent_ = 0;
    std::uint32_t brought_ = 0;
    std::string lied_;
    SpanVerdict verdict_ = SpanVerdict::done;
    bool silent_ = false, lie_in_x_ = false, lie_in_kv_ = false, may_leave_ = true,
         answered_ = false;
};

TEST_F(SpanClientTest, NewHolderIsCheckedThenUsed) {
    SpanClient client = make();
    EXPECT_EQ(step(client, {{5, 0, 6}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 6, 1}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 7, 1}}), SpanUse::away);
    EXPECT_TRUE(answered_);
    // Six rows take two frames of at most four.
    EXPECT_EQ(step(client, {{5, 8, 6}}), SpanUse::away);
    EXPECT_EQ(frames_[FrameType::span_step], 2 + 1 + 1 + 2);
    EXPECT_EQ(client.counters().checks, 2u);
    EXPECT_EQ(client.counters().trips, 2u);
    EXPECT_EQ(brought_, 0u);
    client.ended(5);
    client.ended(6);
    EXPECT_EQ(frames_[FrameType::span_end], 1);
}

TEST_F(SpanClientTest, FasterHubKeepsItsLayersAndMeasuresSeldom) {
    SpanClient client = make();
    int checks = 0;
    for (std::uint32_t i = 0; i < 50; ++i)
        checks += step(client, {{5, i, 1}}, 1us) == SpanUse::check;
    EXPECT_GE(checks, 1);
    EXPECT_LE(checks, 3);
    EXPECT_EQ(client.counters().trips, 0u);
}

TEST_F(SpanClientTest, LiesInRowsOrKeysEndTheSpan) {
    for (const bool in_kv : {false, true}) {
        lied_.clear();
        lie_in_x_ = !in_kv;
        lie_in_kv_ = in_kv;
        SpanClient client = make();
        EXPECT_EQ(step(client, {{5, 0, 2}}), SpanUse::check);
        EXPECT_EQ(step(client, {{5, 2, 1}}), SpanUse::check);
        EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::here);
        EXPECT_FALSE(lied_.empty()) << in_kv;
        EXPECT_EQ(client.counters().lies, 1u);
        EXPECT_EQ(step(client, {{5, 4, 1}}), SpanUse::here);
    }
}

TEST_F(SpanClientTest, LateAnswerSuspendsTheSpan) {
    SpanClient client = make();
    step(client, {{5, 0, 2}});
    step(client, {{5, 2, 1}});
    silent_ = true;
    EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::away);
    EXPECT_FALSE(answered_);
    EXPECT_EQ(step(client, {{5, 4, 1}}), SpanUse::here);
    EXPECT_EQ(client.counters().late, 1u);
}

TEST_F(SpanClientTest, LostHolderFailsTheStepAtOnce) {
    options_.late_min = options_.late_max = 1h;
    SpanClient client = make();
    step(client, {{5, 0, 2}});
    step(client, {{5, 2, 1}});
    silent_ = true;
    std::jthread leaver([&] {
        while (steps_sent_ < 3) std::this_thread::yield();
        board_->remove(1);
    });
    EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::away);
    EXPECT_FALSE(answered_);
    EXPECT_EQ(step(client, {{5, 4, 1}}), SpanUse::here);
    EXPECT_EQ(client.counters().failed, 1u);
}

TEST_F(SpanClientTest, MissingKeysAndValuesAreBroughtInParts) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    step(client, {{5, 1, 1}});
    // A sequence of 50 tokens that the hub computed: 20 rows are sent before each step.
    EXPECT_EQ(step(client, {{6, 50, 1}}), SpanUse::here);
    EXPECT_EQ(step(client, {{6, 51, 1}}), SpanUse::here);
    EXPECT_EQ(step(client, {{6, 52, 1}}), SpanUse::away);
    EXPECT_EQ(brought_, 52u);
    // Rows that the hub computes are missing afterwards.
    may_leave_ = false;
    EXPECT_EQ(step(client, {{6, 53, 2}}), SpanUse::here);
    may_leave_ = true;
    EXPECT_EQ(step(client, {{6, 55, 1}}), SpanUse::away);
    EXPECT_EQ(brought_, 54u);
}

TEST_F(SpanClientTest, SequencesBeyondTheRoomStayHere) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    step(client, {{5, 1, 1}});
    // Four pages: sequence 5 has one, sequence 6 wants four.
    EXPECT_EQ(step(client, {{6, 500, 1}}), SpanUse::here);
    EXPECT_EQ(brought_, 0u);
}

TEST_F(SpanClientTest, RefusedStepIsComputedHere) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    step(client, {{5, 1, 1}});
    verdict_ = SpanVerdict::unknown_sequence;
    EXPECT_EQ(step(client, {{5, 2, 1}}), SpanUse::away);
    EXPECT_FALSE(answered_);
    // Everything is brought again.
    verdict_ = SpanVerdict::done;
    EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::away);
    EXPECT_TRUE(answered_);
    EXPECT_EQ(brought_, 3u);
}

}  // namespace
}  // namespace moex
