// A shadow beside a model whose experts answer only when the shadow has said what it can.
#include "hub/foresight/served_shadow.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "hub/foresight/fewer_experts.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

using Named = std::set<std::uint16_t>;

// The model's experts, asked for hints as a swarm would be; each round waits for an event.
class AskedExperts : public ExpertBackend {
  public:
    AskedExperts(LocalExperts& experts, std::function<void(const ExpertBatch&)> before_answer)
        : experts_(experts),
          before_answer_(std::move(before_answer)) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        class Round : public ExpertRound {
          public:
            Round(AskedExperts& owner, const ExpertBatch& batch) : owner_(owner), batch_(batch) {}
            Result<ExpertAnswer> wait(std::stop_token stop) override {
                owner_.before_answer_(batch_);
                return owner_.experts_.submit(batch_)->wait(std::move(stop));
            }

          private:
            AskedExperts& owner_;
            ExpertBatch batch_;
        };
        asked[batch.layer] = Named(batch.expert_ids.begin(), batch.expert_ids.end());
        return std::make_unique<Round>(*this, batch);
    }
    const char* name() const override { return "asked"; }
    bool wants_hints() const override { return true; }
    void hint(std::span<const ExpertHint> hints) override {
        for (const ExpertHint& hint : hints) hinted[hint.layer].insert(hint.expert);
    }

    std::map<std::uint32_t, Named> asked, hinted;  // of the last step, by layer

  private:
    LocalExperts& experts_;
    std::function<void(const ExpertBatch&)> before_answer_;
};

// The tiny model's MoE layers are 0, 2 and 3.
class ServedShadowTest : public testing::Test {
  protected:
    ServedShadowTest()
        : package_(test::tiny_package()),
          local_(package_, test::compute_threads(), {}, Arithmetic::int8),
          asked_(local_,
                 [this](const ExpertBatch& batch) {
                     if (waits_) wait_for_hints(batch.layer);
                 }),
          cache_(package_->config(), kv()),
          threads_(1) {
        decoder_ = Decoder::create(package_, test::compute_threads()).value();
    }
    static KvCacheOptions kv() { return {.page_tokens = 16, .num_pages = 64}; }
    void serve(ExpertBackend& shadow, std::uint32_t lead, ExpertForesight* otherwise = nullptr,
               std::uint32_t copied_max = 512) {
        shadow_ = std::make_unique<ServedShadow>(
            decoder_->twin(threads_), shadow, otherwise,
            ServedShadowOptions{.per_row = package_->config().top_k,
                                .lead = lead,
                                .kv = kv(),
                                .copied_max = copied_max},
            [this](std::span<const ExpertHint> hints) {
                const std::lock_guard lock(mutex_);
                for (const ExpertHint& hint : hints) told_[hint.layer].insert(hint.expert);
                told_some_.notify_all();
            });
        decoder_->foresee_with(shadow_.get());
    }
    // Until the shadow has named the next MoE layer behind this one.
    void wait_for_hints(std::uint32_t layer) {
        if (layer == 3) return;
        const std::uint32_t next = layer == 0 ? 2 : 3;
        std::unique_lock lock(mutex_);
        told_some_.wait(lock, [&] { return told_.contains(next) || asked_.hinted.contains(next); });
    }
    std::vector<float> step(KvCache::Sequence& kv, std::span<const TokenId> tokens) {
        if (shadow_) shadow_->wait_until_idle();
        asked_.asked.clear();
        asked_.hinted.clear();
        {
            const std::lock_guard lock(mutex_);
            told_.clear();
        }
        const StepRows rows{.kv = &kv, .tokens = tokens};
        auto result = decoder_->step({&rows, 1}, asked_);
        EXPECT_TRUE(result.ok()) << result.error().message;
        return std::move(result).value().logits;
    }
    // Of a layer, whoever said it.
    Named named(std::uint32_t layer) {
        const std::lock_guard lock(mutex_);
        Named all = asked_.hinted[layer];
        all.insert(told_[layer].begin(), told_[layer].end());
        return all;
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts local_;
    AskedExperts asked_;
    std::unique_ptr<Decoder> decoder_;
    KvCache cache_;
    ThreadPool threads_;
    std::mutex mutex_;
    std::condition_variable told_some_;
    std::map<std::uint32_t, Named> told_;  // by the shadow's thread
    bool waits_ = true;
    std::unique_ptr<ServedShadow> shadow_;
};

// With the model's own experts it is the model: keys that were copied wrong, or a token of another
// text, would show.
TEST_F(ServedShadowTest, WithTheModelsOwnExpertsItNamesWhatTheModelAsks) {
    serve(local_, 2);
    const auto text = test::random_tokens(90, package_->config().vocab_size, 3);
    KvCache::Sequence kv(cache_);
    waits_ = false;  // a prompt of many rows is not followed
    step(kv, std::span(text).first(40));
    EXPECT_TRUE(named(2).empty());

    waits_ = true;
    for (std::size_t token = 40; token < 80; ++token) {
        step(kv, std::span(text).subspan(token, 1));
        for (const std::uint32_t layer : {2u, 3u})
            EXPECT_EQ(named(layer), asked_.asked[layer]) << "token " << token << " layer " << layer;
    }
    EXPECT_EQ(shadow_->counters().steps, 40u);
}

TEST_F(ServedShadowTest, ATextThatTakesThePlaceOfAnotherIsFollowedByItsOwnKeys) {
    serve(local_, 2);
    for (std::uint32_t text = 0; text < 3; ++text) {
        const auto tokens = test::random_tokens(40, package_->config().vocab_size, text);
        KvCache::Sequence kv(cache_);
        waits_ = false;
        step(kv, std::span(tokens).first(20 + text));
        waits_ = true;
        for (std::size_t token = 20 + text; token < 30; ++token) {
            step(kv, std::span(tokens).subspan(token, 1));
            EXPECT_EQ(named(3), asked_.asked[3]) << "text " << text << " token " << token;
        }
    }
}

TEST_F(ServedShadowTest, WithALeadOfOneALayerIsNamedWhileTheOneBeforeIsAwaited) {
    serve(local_, 1);
    KvCache::Sequence kv(cache_);
    const auto text = test::random_tokens(8, package_->config().vocab_size, 5);
    for (std::size_t token = 0; token < 8; ++token) {
        step(kv, std::span(text).subspan(token, 1));
        EXPECT_EQ(named(2), asked_.asked[2]);
        EXPECT_EQ(named(3), asked_.asked[3]);
    }
}

TEST_F(ServedShadowTest, AnswersAreTheSameToTheBitWhateverTheShadowSays) {
    const auto text = test::random_tokens(24, package_->config().vocab_size, 9);
    std::vector<std::vector<float>> wanted;
    KvCache::Sequence alone(cache_), followed(cache_);
    waits_ = false;
    for (const TokenId& token : text) wanted.push_back(step(alone, {&token, 1}));

    const auto fewer = make_fewer_experts(local_, 1);
    serve(*fewer, 2);
    for (std::size_t i = 0; i < text.size(); ++i)
        EXPECT_EQ(step(followed, std::span(text).subspan(i, 1)), wanted[i]) << i;
    waits_ = true;
    KvCache::Sequence awaited(cache_);
    for (std::size_t i = 0; i < text.size(); ++i)
        EXPECT_EQ(step(awaited, std::span(text).subspan(i, 1)), wanted[i]) << i;
    shadow_.reset();  // before its experts
}

// Of more texts than it keeps keys of, each is followed in its turn.
TEST_F(ServedShadowTest, ManyTextsAreFollowedEachByItsOwnKeys) {
    serve(local_, 2);
    const std::size_t num_texts = ServedShadow::sequences_max + 3;
    std::vector<KvCache::Sequence> texts;
    for (std::size_t i = 0; i < num_texts; ++i) texts.emplace_back(cache_);
    for (std::uint32_t round = 0; round < 3; ++round)
        for (std::size_t i = 0; i < num_texts; ++i) {
            const auto token = test::random_tokens(1, package_->config().vocab_size,
                                                   static_cast<std::uint32_t>(100 * round + i));
            step(texts[i], token);
            EXPECT_EQ(named(3), asked_.asked[3]) << "text " << i << " round " << round;
        }
}

TEST_F(ServedShadowTest, WhoNamesOtherwiseIsAskedUntilTheKeysAreThere) {
    struct Otherwise : ExpertForesight {
        std::span<const ExpertHint> foresee(const RouteView& seen) override {
            hint.layer = static_cast<std::uint16_t>(seen.layer == 0 ? 2 : 3);
            ++times;
            return {&hint, 1};
        }
        ExpertHint hint;
        int times = 0;
    } otherwise;
    const std::uint32_t prompt = 180, copied_max = 64;
    serve(local_, 2, &otherwise, copied_max);
    const auto text = test::random_tokens(prompt + 2, package_->config().vocab_size, 1);
    KvCache::Sequence kv(cache_);
    waits_ = false;
    step(kv, std::span(text).first(prompt));
    EXPECT_EQ(otherwise.times, 0);
    EXPECT_EQ(shadow_->counters().steps, 0u);

    waits_ = true;
    step(kv, std::span(text).subspan(prompt, 1));  // two layers: 128 positions
    EXPECT_EQ(otherwise.times, 3);
    EXPECT_EQ(shadow_->counters().steps, 0u);
    step(kv, std::span(text).subspan(prompt + 1, 1));
    EXPECT_EQ(shadow_->counters().steps, 1u);
    EXPECT_EQ(named(2), asked_.asked[2]) << "not by who names otherwise";
}

}  // namespace
}  // namespace moex
