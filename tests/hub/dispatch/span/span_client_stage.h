// A SpanClient with a worker that holds layers 2 to 4 of eight, and answers at once, late, wrongly
// or not, as a test says. Its layers add 1 to each value.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hub/dispatch/span/span_client.h"

namespace moex {

class SpanClientTest : public testing::Test {
  protected:
    static constexpr std::uint32_t hidden = 32, kv_size = 8, first_layer = 2, end_layer = 5;
    static inline const WireLimits limits{.hidden_size = hidden, .num_layers = 8, .num_experts = 4};

    // The layers add 1 to each value; the key of a row is its position, the value is 2.
    static std::vector<float> computed(std::span<const float> x) {
        std::vector<float> y(x.begin(), x.end());
        for (float& value : y) value += 1;
        return y;
    }
    static Bytes kv_of(const SpanOptions& options, std::span<const SpanSequence> sequences) {
        Bytes kv;
        const auto put = [&](float value, std::uint32_t count = kv_size) {
            const half one = float_to_half(value);
            for (std::uint32_t i = 0; i < count; ++i)
                kv.insert(kv.end(), reinterpret_cast<const std::byte*>(&one),
                          reinterpret_cast<const std::byte*>(&one) + sizeof one);
        };
        for (std::uint32_t layer = first_layer; layer < end_layer; ++layer)
            for (const SpanSequence& one : sequences)
                for (std::uint32_t i = 0; i < one.num_rows; ++i) {
                    if (options.is_delta(layer)) {
                        for (std::size_t part = 0; part < options.delta_row_parts.size(); ++part)
                            put(static_cast<float>(part + 1),
                                static_cast<std::uint32_t>(options.delta_row_parts[part]));
                        continue;
                    }
                    put(static_cast<float>(one.num_before + i + 1));
                    put(2);
                }
        return kv;
    }

    SpanClientTest() {
        options_.on = true;
        options_.kv_size = kv_size;
        options_.check = {.to_prove = 2, .rate = 0, .doubted_checks = 4};
        options_.late_min = 20ms;
        options_.late_max = 50ms;
        options_.kv_bytes_at_once = 20 * span_kv_bytes(3, 1, kv_size);
        add_holder();
    }
    void add_holder(const std::string& key = {}, std::uint32_t sequences_max = 0) {
        board_->remove(1);
        board_->add({.id = 1,
                     .worker = 9,
                     .worker_key = key,
                     .first_layer = first_layer,
                     .end_layer = end_layer,
                     .num_pages = 4,
                     .page_tokens = 128,
                     .rows_max = 4,
                     .sequences_max = sequences_max});
    }

    SpanClient make() {
        return {options_,
                hidden,
                board_,
                {.send = [this](std::uint32_t span, std::uint32_t step,
                                Bytes frame) { on_frame(span, step, frame); },
                 .lied =
                     [this](std::uint32_t span, std::string why) {
                         lied_ = std::move(why);
                         board_->remove(span);
                     },
                 .set_aside =
                     [this](std::uint32_t span, std::string why) {
                         set_aside_ = std::move(why);
                         board_->remove(span);
                     },
                 .late = [this](std::uint32_t span, TimePoint) { late_.push_back(span); }}};
    }
    // Adds a second worker that holds the same layers.
    void add_standby() {
        board_->add({.id = 2,
                     .worker = 10,
                     .first_layer = first_layer,
                     .end_layer = end_layer,
                     .num_pages = 4,
                     .page_tokens = 128,
                     .rows_max = 4});
    }
    void on_frame(std::uint32_t span, std::uint32_t step, const Bytes& frame) {
        const FrameType type = decode_frame_header(frame)->type;
        ++frames_[type];
        bytes_[type] += frame.size();
        if (type == FrameType::span_step) ++steps_sent_, ++steps_of_[span];
        if (type == FrameType::span_kv) brought_ += decode_span_kv(frame, limits)->num_rows;
        if (type == FrameType::span_state) states_.push_back(*decode_span_state(frame, limits));
        if (type != FrameType::span_step || silent_ || span == silent_span_) return;
        const SpanStep asked = *decode_span_step(frame, limits);
        SpanAnswer answer{.step = step,
                          .span = span,
                          .verdict = verdict_,
                          .num_rows = asked.num_rows(),
                          .num_layers = end_layer - first_layer,
                          .kv_size = kv_size,
                          .row_values = is_recurrent() ? 2 * kv_size + 2 * delta_row_values : 0,
                          .x = computed(asked.x),
                          .kv = kv_of(options_, asked.sequences)};
        // Another expert was chosen: a vector of the same size was added, in another direction.
        if (strays_)
            for (std::size_t i = 0; i < answer.x.size(); ++i)
                answer.x[i] += i % 2 == 0 ? 0.9f : -0.9f;
        if (lies_next_) ++lies_told_;
        if (lie_in_x_ || span == lying_span_ || std::exchange(lies_next_, false))
            answer.x[3] += 100;
        // The sign and exponent of the first value of a key, or of a value vector.
        if (lie_in_k_) answer.kv[1] = std::byte{0x50};
        if (lie_in_v_) answer.kv[kv_size * sizeof(half) + 1] = std::byte{0x50};
        // The sign of b in the last row: a small part of all that a layer keeps.
        if (lie_in_delta_) answer.kv[answer.kv.size() - 3] ^= std::byte{0x80};
        if (holds_answers_) return static_cast<void>(held_answers_.emplace(step, answer));
        const bool is_done = verdict_ == SpanVerdict::done;
        const std::uint64_t bytes = is_done ? encode_span_answer(answer, hidden).size() : 0;
        board_->answer(step, now_steady(), std::move(answer), bytes);
    }

    // Runs a step over `rows`, and returns where its layers were computed.
    SpanUse step(SpanClient& client, const std::vector<SpanSequence>& rows, Duration here = 10s) {
        std::uint32_t num_rows = 0;
        for (const SpanSequence& one : rows) num_rows += one.num_rows;
        const SpanBatch batch{
            .sequences = rows,
            .num_rows = num_rows,
            .may_leave = may_leave_,
            .read_kv = [this](std::size_t, std::uint32_t, std::uint32_t, std::uint32_t,
                              std::uint32_t, std::span<std::byte> out) -> Status {
                if (reads_left_ == 0) return Error{ErrorCode::device_lost, "the GPU was lost"};
                --reads_left_;
                std::fill(out.begin(), out.end(), std::byte{0});
                return {};
            },
            .read_state = [&](std::size_t index,
                              std::uint32_t layer) -> Result<std::vector<float>> {
                if (reads_left_ == 0) return Error{ErrorCode::device_lost, "the GPU was lost"};
                --reads_left_;
                return std::vector<float>(options_.state_floats,
                                          static_cast<float>(100 * layer + rows[index].num_before));
            }};
        const auto plan = client.plan(batch);
        if (plan.empty()) return SpanUse::here;
        const PlannedSpan& span = plan.front();
        with_own_weights_ += span.with_own_weights;
        EXPECT_TRUE(span.use == SpanUse::check || !span.with_own_weights);
        const std::vector<float> x(std::size_t{num_rows} * hidden, 0.5f);
        if (span.use == SpanUse::check)
            client.submit(span, rows, x)->compare(x, computed(x), kv_of(options_, rows));
        if (span.use == SpanUse::away) {
            auto answer = client.submit(span, rows, x)->wait({});
            answered_ = answer.ok();
            if (!answer.ok())
                if (const auto again = client.submit_again(span, batch, x)) {
                    answer = again->wait({});
                    answered_again_ = answer.ok();
                }
            if (answer.ok() && answer->x != computed(x)) ++wrong_used_;
            if (answer.ok() && wrong_used_ == 0) {
                EXPECT_EQ(answer->kv, kv_of(options_, rows));
                EXPECT_EQ(answer->worker, answered_again_ ? 10 : worker_);
            }
        }
        client.record(span, num_rows, here);
        return span.use;
    }

    // Two of the three layers have a gated delta rule from here on.
    static constexpr std::uint32_t delta_row_values = 46;
    bool is_recurrent() const { return !options_.layer_is_delta.empty(); }
    void become_recurrent() {
        options_.layer_is_delta = {0, 0, 0, 1, 1, 0, 0, 0};
        options_.delta_row_parts = {2, 2, 40, 1, 1};
        options_.state_floats = 10;
    }

    SpanOptions options_;
    std::shared_ptr<SpanBoard> board_ = std::make_shared<SpanBoard>();
    std::map<FrameType, int> frames_;
    std::map<FrameType, std::uint64_t> bytes_;
    std::map<std::uint32_t, int> steps_of_;  // by span
    std::vector<std::uint32_t> late_;
    std::uint32_t silent_span_ = 0, lying_span_ = 0;
    std::uint64_t worker_ = 9;
    int wrong_used_ = 0, lies_told_ = 0, with_own_weights_ = 0;
    bool lies_next_ = false;
    int reads_left_ = 1'000'000;  // of keys, values and states, until the device is lost
    std::atomic<int> steps_sent_ = 0;
    std::uint32_t brought_ = 0;
    std::vector<SpanState> states_;
    std::map<std::uint32_t, SpanAnswer> held_answers_;  // by step
    bool holds_answers_ = false;
    std::string lied_, set_aside_;
    SpanVerdict verdict_ = SpanVerdict::done;
    bool silent_ = false, lie_in_x_ = false, lie_in_k_ = false, lie_in_v_ = false,
         lie_in_delta_ = false, strays_ = false, may_leave_ = true, answered_ = false,
         answered_again_ = false;
};

}  // namespace moex
