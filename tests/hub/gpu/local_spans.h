// The parts of tests of spans: a worker's decoder that computes some layers of a model beside the
// hub's, over the same wire messages as between processes, on a Vulkan device (lavapipe if there is
// no GPU).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include "hub/commands/gpu/span_layers.h"
#include "hub/engine/scores.h"
#include "hub/engine/span_backend.h"
#include "protocol/half_rows.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/gpu/requests.h"
#include "tests/support/posted_loop.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/spans/span_decoder.h"
#include "web-worker/spans/span_weights.h"

namespace moex {

using Range = std::pair<std::uint32_t, std::uint32_t>;

// A package, and the blobs of its layers, all of which are hashed.
struct SpannedModel {
    explicit SpannedModel(std::shared_ptr<const ModelPackage> opened)
        : package(std::move(opened)),
          layers(must(SpanLayers::open(package, {}))) {
        while (!layers->layer(package->config().num_layers - 1)) std::this_thread::yield();
    }
    std::shared_ptr<const ModelPackage> package;
    std::unique_ptr<SpanLayers> layers;
};

// Eight layers: the layers 2 and 5 attend, the others have a gated delta rule.
inline const SpannedModel& hybrid_model() {
    static const test::TemporaryFolder folder("span-hybrid");
    static const SpannedModel model([] {
        must(synth_package(must(synth_shape("tiny-hybrid")), "tiny-hybrid", 3,
                           folder.path() / "package", {}, test::compute_threads(), {}));
        return must(ModelPackage::open(folder.path() / "package"));
    }());
    return model;
}

// A worker's part: the spans of one GPU.
class Holder {
  public:
    Holder() : device_(must(gpu::open_vulkan_device({}, loop_.poster()))) {}

    std::unique_ptr<SpanDecoder> load(const SpannedModel& model, Range range,
                                      std::uint32_t pages = 8) {
        std::vector<Bytes> blobs;
        for (std::uint32_t layer = range.first; layer < range.second; ++layer)
            blobs.push_back(*model.layers->find(model.layers->layer(layer)->blob));
        SpanWeights weights = must(SpanWeights::of_layers(std::move(blobs), range.first));
        for (std::uint32_t i = 0; i < weights.layers().size(); ++i)
            for (std::uint32_t expert = 0; expert < weights.layers()[i].experts.size(); ++expert) {
                const ByteView blob = must(
                    model.package->blob(weights.layers()[i].experts[expert]));
                weights.add_expert(i, expert, Bytes(blob.begin(), blob.end()));
            }
        constexpr std::uint32_t context_tokens = 512;
        bool finished = false;
        std::unique_ptr<GpuDecoder> decoder;
        const DecoderModel span = weights.model(context_tokens);
        const std::uint32_t sequences_max = span.has_delta() ? 4 : 0;
        GpuDecoder::create(*device_, span,
                           {.rows_max = 16,
                            .pages = pages,
                            .state_slots = SpanStates::num_slots(sequences_max),
                            .journals = sequences_max,
                            .kv_kind = KvKind::f16},
                           weights, [&](Result<std::unique_ptr<GpuDecoder>> made) {
                               finished = true;
                               decoder = must(std::move(made));
                           });
        if (!finished) loop_.run_until(finished);
        return std::make_unique<SpanDecoder>(std::move(decoder), context_tokens, sequences_max);
    }

    SpanAnswer step(SpanDecoder& span, const SpanStep& step) {
        bool finished = false;
        std::optional<Result<SpanAnswer>> answer;
        span.step(step, [&](Result<SpanAnswer> came) {
            finished = true;
            answer.emplace(std::move(came));
        });
        if (!finished) loop_.run_until(finished);
        return must(std::move(*answer));
    }

  private:
    test::PostedLoop loop_;
    std::unique_ptr<gpu::Device> device_;
};

inline Holder& holder() {
    static Holder one;
    return one;
}

// Sends every step through the given spans. Each message is encoded and decoded, as on a wire.
class LocalSpans : public SpanBackend {
  public:
    LocalSpans(const SpannedModel& model, const std::vector<Range>& ranges)
        : config_(model.package->config()) {
        for (const Range& range : ranges) spans_[range] = {holder().load(model, range), {}, {}};
        limits_.hidden_size = config_.hidden_size;
        limits_.num_layers = config_.num_layers;
        limits_.num_experts = config_.num_experts;
    }

    std::vector<PlannedSpan> plan(const SpanBatch& batch) override {
        std::vector<PlannedSpan> plan;
        for (auto& [range, held] : spans_) {
            plan.push_back({range.first, range.first, range.second, use_});
            if (use_ == SpanUse::here) continue;
            for (std::size_t i = 0; i < batch.sequences.size(); ++i) bring(range, held, batch, i);
        }
        return plan;
    }

    std::unique_ptr<SpanRound> submit(const PlannedSpan& planned,
                                      std::span<const SpanSequence> sequences,
                                      std::span<const float> x) override {
        auto& held = spans_.at({planned.first_layer, planned.end_layer});
        const std::uint32_t hidden = limits_.hidden_size;
        SpanStep step{.step = ++steps_,
                      .span = planned.id,
                      .dtype = dtype_,
                      .sequences = {sequences.begin(), sequences.end()},
                      .x = {x.begin(), x.end()}};
        for (const SpanSequence& one : sequences) {
            held.known[one.id] = one.num_before + one.num_rows;
            held.states_from[one.id] = one.num_before +
                                       (one.num_rows <= span_kept_rows ? 0 : one.num_rows);
        }
        const SpanStep received = must(decode_span_step(encode_span_step(step, hidden), limits_));
        const SpanAnswer answer = must(decode_span_answer(
            encode_span_answer(holder().step(*held.decoder, received), hidden), limits_));
        EXPECT_EQ(answer.verdict, SpanVerdict::done);
        ++trips_;
        return std::make_unique<Round>(*this, answer, fails_);
    }
    void record(const PlannedSpan&, std::uint32_t, Duration took) override {
        EXPECT_GT(took.count(), 0);
    }
    void ended(std::uint64_t sequence) override {
        for (auto& [range, held] : spans_) held.decoder->end({&sequence, 1});
    }

    SpanUse use_ = SpanUse::away;
    bool fails_ = false;
    Dtype dtype_ = Dtype::f32;  // of the rows of the residual stream, both ways
    double tolerance_ = 1e-2;   // of checks
    std::uint32_t trips_ = 0, brought_ = 0, compared_ = 0, states_ = 0;

  private:
    struct Held {
        std::unique_ptr<SpanDecoder> decoder;
        std::map<std::uint64_t, std::uint32_t> known, states_from;
    };
    class Round : public SpanRound {
      public:
        Round(LocalSpans& spans, SpanAnswer answer, bool fails)
            : spans_(spans),
              answer_(std::move(answer)),
              fails_(fails) {}
        Result<SpanResult> wait(std::stop_token) override {
            if (fails_) return Error{ErrorCode::timeout, "the answer is late"};
            return SpanResult{answer_.x, answer_.kv, 7, true};
        }
        // The hub's own arithmetic differs from the GPU's by its order of sums and by f16 keys.
        void compare(std::span<const float> before, std::span<const float> x, Bytes kv) override {
            double difference = 0, change = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                difference += std::pow(double{x[i]} - answer_.x[i], 2);
                change += std::pow(double{x[i]} - before[i], 2);
            }
            EXPECT_LT(std::sqrt(difference / change), spans_.tolerance_);
            EXPECT_LT(kv_difference(kv), spans_.tolerance_);
            ++spans_.compared_;
        }

      private:
        double kv_difference(ByteView kv) const {
            EXPECT_EQ(kv.size(), answer_.kv.size());
            std::vector<float> here(kv.size() / sizeof(half)), there(here.size());
            floats_of_halves(kv.data(), here.size(), here.data());
            floats_of_halves(answer_.kv.data(), there.size(), there.data());
            double difference = 0, size = 0;
            for (std::size_t i = 0; i < here.size(); ++i) {
                difference += std::pow(double{here[i]} - there[i], 2);
                size += std::pow(double{here[i]}, 2);
            }
            return std::sqrt(difference / size);
        }
        LocalSpans& spans_;
        SpanAnswer answer_;
        bool fails_;
    };

    void bring(const Range& range, Held& held, const SpanBatch& batch, std::size_t index) {
        const SpanSequence& one = batch.sequences[index];
        const std::uint32_t known = held.known[one.id];
        std::uint32_t num_delta = 0;
        for (std::uint32_t layer = range.first; layer < range.second; ++layer)
            num_delta += config_.has_keys(layer) ? 0 : 1;
        if (num_delta > 0 && one.num_before > 0 &&
            (known < one.num_before || held.states_from[one.id] > one.num_before))
            bring_state(range, held, batch, index, num_delta);
        if (known >= one.num_before || num_delta == range.second - range.first) return;
        SpanKv kv{.span = range.first,
                  .sequence = one.id,
                  .first = known,
                  .num_rows = one.num_before - known,
                  .num_layers = range.second - range.first - num_delta,
                  .kv_size = config_.num_kv_heads * config_.head_dim};
        kv.rows.resize(span_kv_bytes(kv.num_layers, kv.num_rows, kv.kv_size));
        EXPECT_TRUE(
            batch.read_kv(index, range.first, range.second, known, kv.num_rows, kv.rows).ok());
        EXPECT_EQ(held.decoder->take_kv(must(decode_span_kv(encode_span_kv(kv), limits_))),
                  SpanVerdict::done);
        brought_ += kv.num_rows;
    }

    void bring_state(const Range& range, Held& held, const SpanBatch& batch, std::size_t index,
                     std::uint32_t num_delta) {
        const SpanSequence& one = batch.sequences[index];
        SpanState state{.span = range.first,
                        .sequence = one.id,
                        .num_tokens = one.num_before,
                        .num_layers = num_delta};
        for (std::uint32_t layer = range.first; layer < range.second; ++layer) {
            if (config_.has_keys(layer)) continue;
            state.floats = must(batch.read_state(index, layer));
            EXPECT_EQ(held.decoder->take_state(
                          must(decode_span_state(encode_span_state(state), limits_))),
                      SpanVerdict::done);
            ++state.index;
        }
        ++states_;
    }

    const ModelConfig& config_;
    std::map<Range, Held> spans_;
    WireLimits limits_;
    std::uint32_t steps_ = 0;
};

// The hub's decoder over a model, in exact arithmetic, with keys and values as f32.
class SpanTest : public testing::Test {
  protected:
    explicit SpanTest(const SpannedModel& model)
        : model_(model),
          experts_(model.package, test::compute_threads(), {}, Arithmetic::exact),
          decoder_(must(Decoder::create(model.package, test::compute_threads()))),
          cache_(config(), {.page_tokens = 16, .num_pages = 64}) {}
    const ModelConfig& config() const { return model_.package->config(); }

    std::vector<float> step(KvCache::Sequence& kv, std::span<const TokenId> tokens) {
        const StepRows rows{.kv = &kv, .tokens = tokens, .all_logits = true};
        return must(decoder_->step({&rows, 1}, experts_)).logits;
    }
    // Returns the logits of every row of a text that is computed `chunk` tokens at a time.
    std::vector<float> logits(SpanBackend* spans, std::span<const TokenId> ids,
                              std::size_t chunk = 7, KvDtype dtype = KvDtype::f32) {
        decoder_->use_spans(spans);
        KvCache cache(config(), {.page_tokens = 16, .num_pages = 64, .dtype = dtype});
        KvCache::Sequence kv(cache);
        std::vector<float> all;
        for (std::size_t i = 0; i < ids.size(); i += chunk) {
            const auto part = step(kv, ids.subspan(i, std::min(chunk, ids.size() - i)));
            all.insert(all.end(), part.begin(), part.end());
        }
        if (spans != nullptr) spans->ended(kv.id());
        decoder_->use_spans(nullptr);
        return all;
    }
    std::vector<float> row(const std::vector<float>& logits, std::size_t index) const {
        const std::size_t size = config().vocab_size;
        return {logits.begin() + static_cast<std::ptrdiff_t>(index * size),
                logits.begin() + static_cast<std::ptrdiff_t>((index + 1) * size)};
    }
    // Returns the log-probabilities of the tokens after each row, with keys and values in f16.
    std::vector<float> logprobs(SpanBackend* spans, std::span<const TokenId> ids) {
        const std::size_t size = config().vocab_size;
        std::vector<float> all = logits(spans, ids, 16, KvDtype::f16);
        for (std::size_t r = 0; r < ids.size(); ++r) {
            const auto row = std::span(all).subspan(r * size, size);
            log_softmax(row, row);
        }
        return all;
    }
    // Returns the greedy text behind a prompt.
    std::vector<TokenId> greedy(SpanBackend* spans, std::span<const TokenId> prompt,
                                std::size_t num_tokens) {
        decoder_->use_spans(spans);
        KvCache::Sequence kv(cache_);
        std::vector<TokenId> text;
        std::vector<float> last = step(kv, prompt);
        while (text.size() < num_tokens) {
            const auto row = last.end() - config().vocab_size;
            text.push_back(static_cast<TokenId>(std::max_element(row, last.end()) - row));
            last = step(kv, std::span(text).last(1));
        }
        if (spans != nullptr) spans->ended(kv.id());
        decoder_->use_spans(nullptr);
        return text;
    }
    // Returns the likeliest token after each row of `logits`.
    std::vector<TokenId> likeliest(const std::vector<float>& logits) const {
        const std::size_t size = config().vocab_size;
        std::vector<TokenId> all;
        for (auto row = logits.begin(); row < logits.end(); row += static_cast<long>(size))
            all.push_back(
                static_cast<TokenId>(std::max_element(row, row + static_cast<long>(size)) - row));
        return all;
    }

    const SpannedModel& model_;
    LocalExperts experts_;
    std::unique_ptr<Decoder> decoder_;
    KvCache cache_;
};

}  // namespace moex
