// Tests a served shadow together with a model. The model's experts answer only after the shadow has
// become idle.
#include "hub/foresight/shadow/served_shadow.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

using Named = std::set<std::uint16_t>;

// A backend of the model's experts that wants hints, as a swarm does.
class AskedExperts : public ExpertBackend {
  public:
    AskedExperts(LocalExperts& experts, std::function<void(const ExpertBatch&)> on_asked,
                 std::function<void()> before_answer)
        : experts_(experts),
          on_asked_(std::move(on_asked)),
          before_answer_(std::move(before_answer)) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        class Round : public ExpertRound {
          public:
            Round(AskedExperts& owner, const ExpertBatch& batch) : owner_(owner), batch_(batch) {}
            Result<ExpertAnswer> wait(std::stop_token stop) override {
                owner_.before_answer_();
                return owner_.experts_.submit(batch_)->wait(std::move(stop));
            }

          private:
            AskedExperts& owner_;
            ExpertBatch batch_;
        };
        on_asked_(batch);
        return std::make_unique<Round>(*this, batch);
    }
    const char* name() const override { return "asked"; }
    bool wants_hints() const override { return true; }
    void hint(std::span<const ExpertHint> hints) override { on_hints(hints); }
    std::function<void(std::span<const ExpertHint>)> on_hints;

  private:
    LocalExperts& experts_;
    std::function<void(const ExpertBatch&)> on_asked_;
    std::function<void()> before_answer_;
};

// A backend of a shadow's experts that does not answer until let_go() is called or its stop is
// requested.
class HeldExperts : public ExpertBackend {
  public:
    explicit HeldExperts(ExpertBackend& experts) : experts_(experts) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        class Round : public ExpertRound {
          public:
            Round(HeldExperts& owner, const ExpertBatch& batch) : owner_(owner), batch_(batch) {}
            Result<ExpertAnswer> wait(std::stop_token stop) override {
                std::unique_lock lock(owner_.mutex_);
                if (!owner_.changed_.wait(lock, stop, [this] { return owner_.is_free_; }))
                    return Error{ErrorCode::cancelled, "held until the end"};
                return owner_.experts_.submit(batch_)->wait(stop);
            }

          private:
            HeldExperts& owner_;
            ExpertBatch batch_;
        };
        return std::make_unique<Round>(*this, batch);
    }
    const char* name() const override { return "held"; }
    void let_go() {
        const std::lock_guard lock(mutex_);
        is_free_ = true;
        changed_.notify_all();
    }

  private:
    ExpertBackend& experts_;
    std::mutex mutex_;
    std::condition_variable_any changed_;
    bool is_free_ = false;
};

// A backend with answers that are far too large, so that its routes differ from the model's.
class LoudExperts : public ExpertBackend {
  public:
    explicit LoudExperts(ExpertBackend& experts) : experts_(experts) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        return std::make_unique<Round>(experts_.submit(batch), batch.y);
    }
    const char* name() const override { return "loud"; }

  private:
    struct Round : ExpertRound {
        Round(std::unique_ptr<ExpertRound> of, std::span<float> out)
            : round(std::move(of)),
              y(out) {}
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            auto answer = round->wait(stop);
            for (float& value : y) value *= 64;
            return answer;
        }
        std::unique_ptr<ExpertRound> round;
        std::span<float> y;
    };
    ExpertBackend& experts_;
};

TokenId likeliest(std::span<const float> logits) {
    return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

// A fixture with a shadow of the tiny model, which has the MoE layers 0, 2 and 3. If waits_ is set,
// no round is answered before the shadow is idle.
class ServedShadowTest : public testing::Test {
  protected:
    ServedShadowTest()
        : package_(test::tiny_package()),
          local_(package_, test::compute_threads(), {}, Arithmetic::int8),
          asked_(
              local_, [this](const ExpertBatch& batch) { note_asked(batch); },
              [this] {
                  if (waits_ && shadow_) shadow_->wait_until_idle();
              }),
          cache_(package_->config(), kv()),
          threads_(1) {
        decoder_ = Decoder::create(package_, test::compute_threads()).value();
        asked_.on_hints = [this](std::span<const ExpertHint> hints) { note_named(hints); };
    }
    ~ServedShadowTest() override { shadow_.reset(); }
    static KvCacheOptions kv() { return {.page_tokens = 16, .num_pages = 64}; }
    // Starts a shadow that begins each pass with the model's token.
    void serve(ExpertBackend& shadow, std::uint32_t lead, ExpertForesight* fallback = nullptr,
               std::uint32_t copied_max = 512) {
        serve_with(shadow, {.lead = lead, .draws_ahead = false, .copied_max = copied_max},
                   fallback);
    }
    void serve_with(ExpertBackend& shadow, ServedShadowOptions options,
                    ExpertForesight* fallback = nullptr) {
        decoder_->foresee_with(nullptr);
        shadow_.reset();
        options.per_row = package_->config().top_k;
        options.kv = kv();
        shadow_ = std::make_unique<ServedShadow>(
            decoder_->twin(threads_), shadow, fallback, options,
            [this](std::span<const ExpertHint> hints) { note_named(hints); });
        decoder_->foresee_with(shadow_.get());
        const std::lock_guard lock(mutex_);
        named_.clear();
    }
    // Records hints. Called on the shadow's thread or on the model's thread.
    void note_named(std::span<const ExpertHint> hints) {
        const std::lock_guard lock(mutex_);
        for (const ExpertHint& hint : hints) named_[hint.layer].insert(hint.expert);
    }
    void note_asked(const ExpertBatch& batch) {
        const std::lock_guard lock(mutex_);
        asked_of_[batch.layer] = Named(batch.expert_ids.begin(), batch.expert_ids.end());
        foreseen_[batch.layer] = std::exchange(named_[batch.layer], {});
    }
    // Runs the step `batch` and returns the logits of each text's last row.
    std::vector<float> step(std::span<const StepRows> batch) {
        if (shadow_) shadow_->wait_until_idle();
        asked_of_.clear();
        foreseen_.clear();
        auto result = decoder_->step(batch, asked_);
        EXPECT_TRUE(result.ok()) << result.error().message;
        return std::move(result).value().logits;
    }
    std::vector<float> step(KvCache::Sequence& kv, std::span<const TokenId> tokens) {
        const StepRows rows{.kv = &kv, .tokens = tokens};
        return step({&rows, 1});
    }
    // Returns the logits of each token of a text, without waiting for a shadow.
    std::vector<std::vector<float>> unawaited(std::span<const TokenId> text) {
        waits_ = false;
        KvCache::Sequence kv(cache_);
        std::vector<std::vector<float>> logits;
        for (const TokenId& token : text) logits.push_back(step(kv, {&token, 1}));
        return logits;
    }
    // Returns the experts that hints named for a layer before the last step requested this layer.
    // The hints are from the shadow or the fallback.
    Named named(std::uint32_t layer) { return foreseen_[layer]; }
    Named asked(std::uint32_t layer) { return asked_of_[layer]; }
    // Returns true if hints had named all experts that the layer requested.
    bool is_foreseen(std::uint32_t layer) {
        return std::ranges::includes(named(layer), asked(layer));
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts local_;
    AskedExperts asked_;
    std::unique_ptr<Decoder> decoder_;
    KvCache cache_;
    ThreadPool threads_;
    std::mutex mutex_;  // guards named_
    // experts named by hints since the layer was last requested
    std::map<std::uint32_t, Named> named_;
    // requested experts and their hints, in the last step
    std::map<std::uint32_t, Named> asked_of_, foreseen_;
    bool waits_ = true;
    std::unique_ptr<ServedShadow> shadow_;
};

// A shadow with the model's own experts computes the same as the model: wrongly copied keys, or a
// token of another text, would change its hints.
TEST_F(ServedShadowTest, ModelsOwnExpertsGiveExactHints) {
    serve(local_, 2);
    const auto text = test::random_tokens(90, package_->config().vocab_size, 3);
    KvCache::Sequence kv(cache_);
    waits_ = false;  // the shadow does not follow a prompt of many rows
    step(kv, std::span(text).first(40));
    EXPECT_TRUE(named(2).empty());

    waits_ = true;
    for (std::size_t token = 40; token < 80; ++token) {
        step(kv, std::span(text).subspan(token, 1));
        for (const std::uint32_t layer : {2u, 3u})
            EXPECT_EQ(named(layer), asked(layer)) << "token " << token << " layer " << layer;
    }
    EXPECT_EQ(shadow_->counters().steps, 40u);
}

TEST_F(ServedShadowTest, TextAtAReusedAddressIsFollowedByItsOwnKeys) {
    serve(local_, 2);
    for (std::uint32_t text = 0; text < 3; ++text) {
        const auto tokens = test::random_tokens(40, package_->config().vocab_size, text);
        KvCache::Sequence kv(cache_);
        waits_ = false;
        step(kv, std::span(tokens).first(20 + text));
        waits_ = true;
        for (std::size_t token = 20 + text; token < 30; ++token) {
            step(kv, std::span(tokens).subspan(token, 1));
            EXPECT_EQ(named(3), asked(3)) << "text " << text << " token " << token;
        }
    }
}

TEST_F(ServedShadowTest, LeadOfOnePredictsALayerDuringTheOneBefore) {
    serve(local_, 1);
    KvCache::Sequence kv(cache_);
    const auto text = test::random_tokens(8, package_->config().vocab_size, 5);
    for (std::size_t token = 0; token < 8; ++token) {
        step(kv, std::span(text).subspan(token, 1));
        EXPECT_EQ(named(2), asked(2));
        EXPECT_EQ(named(3), asked(3));
    }
}

TEST_F(ServedShadowTest, AnswersKeepTheirBitsWithAWrongShadow) {
    const auto text = test::random_tokens(24, package_->config().vocab_size, 9);
    const auto wanted = unawaited(text);

    LoudExperts loud(local_);
    serve(loud, 2);
    EXPECT_EQ(unawaited(text), wanted);
    waits_ = true;
    KvCache::Sequence awaited(cache_);
    for (std::size_t i = 0; i < text.size(); ++i)
        EXPECT_EQ(step(awaited, std::span(text).subspan(i, 1)), wanted[i]) << i;
    shadow_.reset();  // before its experts
}

// There are more texts than the shadow keeps keys for. The shadow follows each text in the steps
// that have a row of this text.
TEST_F(ServedShadowTest, ManyTextsAreFollowedByTheirOwnKeys) {
    serve(local_, 2);
    const std::size_t num_texts = ServedShadow::sequences_max + 3;
    std::vector<KvCache::Sequence> texts;
    for (std::size_t i = 0; i < num_texts; ++i) texts.emplace_back(cache_);
    for (std::uint32_t round = 0; round < 3; ++round)
        for (std::size_t i = 0; i < num_texts; ++i) {
            const auto token = test::random_tokens(1, package_->config().vocab_size,
                                                   static_cast<std::uint32_t>(100 * round + i));
            step(texts[i], token);
            EXPECT_EQ(named(3), asked(3)) << "text " << i << " round " << round;
        }
}

TEST_F(ServedShadowTest, FallbackGivesHintsUntilKeysAreCopied) {
    struct Fallback : ExpertForesight {
        std::span<const ExpertHint> foresee(const RouteView& seen) override {
            hint.layer = static_cast<std::uint16_t>(seen.layer == 0 ? 2 : 3);
            ++times;
            return {&hint, 1};
        }
        ExpertHint hint;
        int times = 0;
    } fallback;
    const std::uint32_t prompt = 180, copied_max = 64;
    serve(local_, 2, &fallback, copied_max);
    const auto text = test::random_tokens(prompt + 2, package_->config().vocab_size, 1);
    KvCache::Sequence kv(cache_);
    waits_ = false;
    step(kv, std::span(text).first(prompt));
    EXPECT_EQ(fallback.times, 0);
    EXPECT_EQ(shadow_->counters().steps, 0u);

    waits_ = true;
    // during the two layers of this step, 128 positions are copied
    step(kv, std::span(text).subspan(prompt, 1));
    EXPECT_EQ(fallback.times, 3);
    EXPECT_EQ(shadow_->counters().steps, 0u);
    step(kv, std::span(text).subspan(prompt + 1, 1));
    EXPECT_EQ(shadow_->counters().steps, 1u);
    EXPECT_EQ(named(2), asked(2)) << "not by the fallback";
}

// The model's answers are greedy and the shadow has the model's own experts, so that it draws the
// same tokens.
TEST_F(ServedShadowTest, FirstLayerIsPredictedForARightlyDrawnToken) {
    for (const std::uint32_t token_period : {1u, 2u, 16u, 0u})
        for (const std::uint32_t kv_period : {1u, 4u, 0u}) {
            SCOPED_TRACE(text("token ", token_period, " kv ", kv_period));
            serve_with(local_, {.token_period = token_period, .kv_period = kv_period});
            KvCache::Sequence kv(cache_);
            const std::uint32_t num_tokens = 30;
            TokenId token = 7;
            for (std::uint32_t i = 0; i < num_tokens; ++i) {
                token = likeliest(step(kv, {&token, 1}));
                for (const std::uint32_t layer : {0u, 2u, 3u})
                    EXPECT_EQ(named(layer), layer == 0 && i == 0 ? Named() : asked(layer))
                        << "token " << i << " layer " << layer;
            }

            shadow_->wait_until_idle();
            const ServedShadowCounters counts = shadow_->counters();
            EXPECT_EQ(counts.steps, num_tokens);
            EXPECT_EQ(counts.steps_ahead, num_tokens - 1);
            EXPECT_EQ(counts.tokens_drawn, num_tokens - 1);
            EXPECT_EQ(counts.tokens_right, num_tokens - 1);
            EXPECT_EQ(counts.passes_cut, 0u);
            EXPECT_EQ(counts.layers_late, 0u);
            EXPECT_EQ(counts.layers, 3 * num_tokens + 2) << "the first token's first layer is late";
            EXPECT_EQ(counts.departure_us, 0.0);
            // The positions before the last token are copied in whole periods.
            const std::uint32_t before = num_tokens - 1;
            EXPECT_EQ(counts.positions_copied, kv_period == 0 ? 0 : before / kv_period * kv_period);
        }
}

// The shadow drops its pass and begins with the model's token, as if it had drawn nothing.
TEST_F(ServedShadowTest, WrongDrawCostsNothingButHints) {
    const auto text = test::random_tokens(40, package_->config().vocab_size, 11);
    const auto wanted = unawaited(text);

    waits_ = true;
    serve_with(local_, {});
    KvCache::Sequence kv(cache_);
    for (std::size_t i = 0; i < text.size(); ++i) {
        EXPECT_EQ(step(kv, std::span(text).subspan(i, 1)), wanted[i]) << i;
        EXPECT_TRUE(is_foreseen(2)) << i;
        EXPECT_TRUE(is_foreseen(3)) << i;
    }
    const ServedShadowCounters counts = shadow_->counters();
    EXPECT_EQ(counts.steps, text.size());
    EXPECT_EQ(counts.tokens_drawn, text.size() - 1);
    EXPECT_EQ(counts.steps_ahead, counts.tokens_right);
    EXPECT_LT(counts.tokens_right, text.size() / 4);
}

// The text is random, so the tokens that the shadow draws are never the text's. The shadow reads
// one token of the text per period.
TEST_F(ServedShadowTest, TokensAreAlignedOncePerPeriod) {
    const auto text = test::random_tokens(33, package_->config().vocab_size, 13);
    const auto wanted = unawaited(text);

    waits_ = true;
    for (const std::uint32_t token_period : {1u, 2u, 4u, 8u, 16u, 0u})
        for (const std::uint32_t kv_period : {1u, 2u, 0u}) {
            serve_with(local_, {.token_period = token_period, .kv_period = kv_period});
            KvCache::Sequence kv(cache_);
            for (std::size_t i = 0; i < text.size(); ++i)
                EXPECT_EQ(step(kv, std::span(text).subspan(i, 1)), wanted[i]) << i;
            const ServedShadowCounters counts = shadow_->counters();
            EXPECT_EQ(counts.steps, text.size());
            const std::size_t aligned = token_period == 0 ? 1
                                                          : (text.size() - 1) / token_period + 1;
            EXPECT_EQ(counts.steps - counts.steps_ahead, aligned)
                << "token " << token_period << " kv " << kv_period;
        }
}

TEST_F(ServedShadowTest, SeveralTextsAreDrawnAheadAndMayEndOrJoin) {
    serve_with(local_, {});
    constexpr std::size_t num_texts = 3;
    std::vector<KvCache::Sequence> texts;
    for (std::size_t i = 0; i <= num_texts; ++i) texts.emplace_back(cache_);
    std::vector<TokenId> tokens{3, 50, 120, 200};
    const auto decode = [&](std::vector<std::size_t> which) {
        std::vector<StepRows> batch;
        for (const std::size_t i : which)
            batch.push_back({.kv = &texts[i], .tokens = std::span(tokens).subspan(i, 1)});
        const std::vector<float> logits = step(batch);
        const std::size_t vocab_size = package_->config().vocab_size;
        for (std::size_t i = 0; i < which.size(); ++i)
            tokens[which[i]] = likeliest(std::span(logits).subspan(i * vocab_size, vocab_size));
    };

    decode({0, 1, 2});
    for (int i = 0; i < 5; ++i) {
        decode({0, 1, 2});
        EXPECT_EQ(named(0), asked(0)) << i;
    }
    decode({2, 0});  // text 1 has ended: the hints for its row remain as superfluous hints
    EXPECT_TRUE(is_foreseen(0));
    decode({2, 0});
    EXPECT_EQ(named(0), asked(0));
    const std::uint64_t ahead = shadow_->counters().steps_ahead;
    EXPECT_EQ(ahead, 7u);

    // text 3 is new, so the shadow begins again with the model's tokens of all texts
    decode({2, 0, 3});
    EXPECT_EQ(shadow_->counters().steps_ahead, ahead);
    for (const std::uint32_t layer : {2u, 3u}) EXPECT_TRUE(is_foreseen(layer));
    decode({2, 0, 3});
    EXPECT_EQ(named(0), asked(0));
}

// The model reads another prompt between two steps of a text; later the text loses its pages and is
// computed again.
TEST_F(ServedShadowTest, PreemptedTextIsFollowedByItsNewKeys) {
    serve_with(local_, {.kv_period = 4});
    KvCache::Sequence kv(cache_);
    std::vector<TokenId> written{9};
    const auto decode = [&](std::uint32_t count) {
        for (std::uint32_t i = 0; i < count; ++i) {
            written.push_back(likeliest(step(kv, std::span(written).last(1))));
            if (i > 0) {
                EXPECT_EQ(named(0), asked(0)) << "token " << written.size();
            }
            for (const std::uint32_t layer : {2u, 3u})
                EXPECT_TRUE(is_foreseen(layer)) << "token " << written.size();
        }
    };
    decode(20);

    KvCache::Sequence other(cache_);
    const auto prompt = test::random_tokens(40, package_->config().vocab_size, 2);
    step(other, prompt);
    decode(5);

    for (const std::uint32_t num_rows :
         {40u, 5u}) {  // the shadow follows the reading of 5 rows, but not of 40
        const auto before = test::random_tokens(num_rows, package_->config().vocab_size, num_rows);
        kv.roll_back(0);
        step(kv, before);
        written.back() = 9;
        decode(6);
    }
}

// Several rows of a single text in one step may be drafts; it is unknown which of these rows the
// model will keep.
TEST_F(ServedShadowTest, NothingIsDrawnAfterDrafts) {
    serve_with(local_, {});
    KvCache::Sequence kv(cache_);
    TokenId token = 21;
    const auto after = [&](std::span<const TokenId> rows) {
        token = likeliest(step(kv, rows));
        shadow_->wait_until_idle();
    };
    after({&token, 1});
    const std::uint64_t layers = shadow_->counters().layers;
    EXPECT_EQ(layers, 5u) << "layers of this token and the next";
    const std::vector<TokenId> drafts{token, 1, 2};
    after(drafts);
    EXPECT_EQ(shadow_->counters().tokens_right, 1u);
    EXPECT_TRUE(is_foreseen(2));
    EXPECT_TRUE(is_foreseen(3));
    EXPECT_EQ(shadow_->counters().layers, layers + 2);

    kv.roll_back(2);  // roll back, as if the drafts were rejected
    const TokenId other = 77;
    after({&other, 1});
    EXPECT_TRUE(is_foreseen(3));
    after({&token, 1});
    EXPECT_EQ(named(0), asked(0));
}

TEST_F(ServedShadowTest, PassThatTheModelOvertakesIsCut) {
    const auto text = test::random_tokens(6, package_->config().vocab_size, 17);
    const auto wanted = unawaited(text);
    KvCache::Sequence kv(cache_);

    HeldExperts held(local_);
    serve_with(held, {});
    for (std::size_t i = 0; i < text.size(); ++i) {
        const StepRows rows{.kv = &kv, .tokens = std::span(text).subspan(i, 1)};
        // this step does not wait until the shadow is idle
        auto result = decoder_->step({&rows, 1}, asked_);
        ASSERT_TRUE(result.ok());
        EXPECT_EQ(result->logits, wanted[i]) << i;
    }
    held.let_go();
    shadow_->wait_until_idle();
    const ServedShadowCounters counts = shadow_->counters();
    EXPECT_GE(counts.passes_cut, 1u);
    EXPECT_EQ(counts.steps_ahead, 0u);
    EXPECT_EQ(counts.tokens_drawn, 0u);

    waits_ = true;
    TokenId token = likeliest(wanted.back());
    for (int i = 0; i < 3; ++i) {
        token = likeliest(step(kv, {&token, 1}));
        EXPECT_TRUE(is_foreseen(3)) << "the shadow follows again";
    }
    shadow_.reset();  // before its experts
    decoder_->foresee_with(nullptr);
}

}  // namespace
}  // namespace moex
