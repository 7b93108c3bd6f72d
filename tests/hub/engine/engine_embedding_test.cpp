// Tests embeddings of the engine: the mean of rows after the final norm has the same bits however
// the prompt is cut into chunks and whatever requests run at the same time.
#include <cmath>
#include <future>
#include <latch>

#include "hub/engine/engine.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

using Tokens = std::vector<TokenId>;

class EngineEmbeddingTest : public testing::Test {
  protected:
    EngineEmbeddingTest()
        : package_(test::tiny_package()),
          local_(package_, test::compute_threads(), {}),
          decoder_(Decoder::create(package_, test::compute_threads()).value()) {}

    void start(EngineOptions options) {
        engine_ = std::make_unique<Engine>(*decoder_, local_, options);
    }
    std::future<GenerationEnd> submit(GenerationRequest request) {
        auto done = std::make_shared<std::promise<GenerationEnd>>();
        const auto id = engine_->submit(
            std::move(request),
            {.on_token = {}, .on_end = [done](const GenerationEnd& end) { done->set_value(end); }});
        EXPECT_TRUE(id.ok());
        return done->get_future();
    }
    static GenerationRequest embedding(Tokens prompt) {
        GenerationRequest request;
        request.prompt = std::move(prompt);
        request.hidden_mean = true;
        return request;
    }

    // The slow reference of an embedding: it runs each token in a separate step and computes the
    // mean over all rows.
    std::vector<float> mean_by_hand(const Tokens& prompt) {
        KvCache cache(package_->config(), {16, 16});
        KvCache::Sequence sequence(cache);
        std::vector<double> sum(package_->config().hidden_size);
        for (const TokenId& token : prompt) {
            const StepRows rows[] = {{.kv = &sequence,
                                      .tokens = std::span(&token, 1),
                                      .no_logits = true,
                                      .hidden = true}};
            const auto result = decoder_->step(rows, local_);
            EXPECT_TRUE(result.ok() && result->logits.empty());
            for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += result->hidden[i];
        }

        std::vector<float> mean;
        for (const double one : sum)
            mean.push_back(static_cast<float>(one / static_cast<double>(prompt.size())));
        return mean;
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts local_;
    std::unique_ptr<Decoder> decoder_;
    // declared last, so that the engine stops before the other members are destroyed
    std::unique_ptr<Engine> engine_;
};

TEST_F(EngineEmbeddingTest, HeadReadsTheRowAfterTheFinalNorm) {
    KvCache cache(package_->config(), {16, 16});
    KvCache::Sequence sequence(cache);
    const Tokens prompt = test::random_tokens(9, 256, 1);
    const StepRows rows[] = {
        {.kv = &sequence, .tokens = prompt, .all_logits = true, .hidden = true}};
    const auto result = decoder_->step(rows, local_);
    ASSERT_TRUE(result.ok());

    // With tied embeddings, a token's logit is the product of the row and the token's embedding.
    const ModelConfig& config = package_->config();
    ASSERT_EQ(result->hidden.size(), prompt.size() * config.hidden_size);
    const TensorView embeddings = package_->tensor("model.embed_tokens.weight").value();
    std::vector<float> of_token(config.hidden_size);
    for (std::size_t row = 0; row < prompt.size(); ++row)
        for (const TokenId token : {0u, 100u, 255u}) {
            tensor_to_float(embeddings, std::uint64_t{token} * config.hidden_size, of_token);
            double logit = 0;
            for (std::size_t i = 0; i < of_token.size(); ++i)
                logit += double{of_token[i]} * result->hidden[row * config.hidden_size + i];
            EXPECT_NEAR(result->logits[row * config.vocab_size + token], logit, 1e-4);
        }
}

TEST_F(EngineEmbeddingTest, EmbeddingBitsDoNotDependOnChunksOrNeighbours) {
    std::vector<Tokens> prompts;
    std::vector<std::vector<float>> wanted;
    for (const std::uint32_t length : {1u, 2u, 17u, 40u, 100u}) {
        prompts.push_back(test::random_tokens(length, 256, length));
        wanted.push_back(mean_by_hand(prompts.back()));
    }
    prompts.push_back(prompts.back());  // two equal prompts: an embedding takes over no prefix
    wanted.push_back(wanted.back());
    GenerationRequest chat;
    chat.prompt = test::random_tokens(30, 256, 5);
    chat.max_tokens = 40;
    chat.sampling.temperature = 0;
    chat.prompt_logprobs = true;

    start({});
    const GenerationEnd chat_alone = submit(chat).get();
    for (std::size_t i = 0; i < prompts.size(); ++i)
        EXPECT_EQ(submit(embedding(prompts[i])).get().hidden_mean, wanted[i]) << i;

    engine_.reset();
    start({.step_rows_max = 7});
    auto beside = submit(chat);
    std::vector<std::future<GenerationEnd>> together;
    for (const Tokens& prompt : prompts) together.push_back(submit(embedding(prompt)));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        const GenerationEnd end = together[i].get();
        EXPECT_EQ(end.hidden_mean, wanted[i]) << i;
        EXPECT_EQ(end.reason, FinishReason::length);
        EXPECT_EQ(end.stats.completion_tokens, 0u);
        EXPECT_EQ(end.stats.prompt_tokens, prompts[i].size());
    }
    const GenerationEnd chat_beside = beside.get();
    EXPECT_TRUE(chat_beside.hidden_mean.empty());
    ASSERT_EQ(chat_beside.prompt_logprobs.size(), chat_alone.prompt_logprobs.size());
    for (std::size_t i = 0; i < chat_alone.prompt_logprobs.size(); ++i)
        EXPECT_EQ(chat_beside.prompt_logprobs[i].logprob, chat_alone.prompt_logprobs[i].logprob);
}

TEST_F(EngineEmbeddingTest, PoolingTakesTheLastOrTheFirstRow) {
    const Tokens prompt = test::random_tokens(23, 256, 8);
    const std::size_t hidden_size = package_->config().hidden_size;
    KvCache cache(package_->config(), {16, 16});
    KvCache::Sequence sequence(cache);
    const StepRows rows[] = {
        {.kv = &sequence, .tokens = prompt, .no_logits = true, .hidden = true}};
    const auto result = decoder_->step(rows, local_);
    ASSERT_TRUE(result.ok());
    const auto first = result->hidden.begin(), last = result->hidden.end();

    start({.step_rows_max = 5});
    GenerationRequest request = embedding(prompt);
    request.pooling = Pooling::last;
    EXPECT_EQ(submit(request).get().hidden_mean,
              std::vector<float>(last - static_cast<std::ptrdiff_t>(hidden_size), last));
    request.pooling = Pooling::first;
    EXPECT_EQ(submit(request).get().hidden_mean,
              std::vector<float>(first, first + static_cast<std::ptrdiff_t>(hidden_size)));
    EXPECT_EQ(submit(embedding(prompt)).get().hidden_mean, mean_by_hand(prompt));
}

TEST_F(EngineEmbeddingTest, PreemptedEmbeddingIsNotAddedTwice) {
    const KvCache probe(package_->config(), {16, 0});
    const Tokens prompt = test::random_tokens(60, 256, 3);
    const std::vector<float> wanted = mean_by_hand(prompt);

    // The cache has pages for the embedded text and three more pages. The chat, which is the older
    // request, takes all pages before the embedding ends.
    start({.step_rows_max = 2, .kv_bytes_max = 7 * probe.page_bytes()});
    GenerationRequest chat;
    chat.prompt = test::random_tokens(20, 256, 5);
    chat.max_tokens = 90;
    chat.sampling.temperature = 0;

    // The chat's first token waits until the text has been submitted, so that chat and embedding
    // run at the same time.
    std::latch both_are_in(1);
    std::promise<GenerationEnd> chat_ended;
    ASSERT_TRUE(
        engine_
            ->submit(chat, {.on_token = [&](const TokenEvent&) { both_are_in.wait(); },
                            .on_end = [&](const GenerationEnd& end) { chat_ended.set_value(end); }})
            .ok());
    auto beside = submit(embedding(prompt));
    both_are_in.count_down();
    EXPECT_EQ(beside.get().hidden_mean, wanted);
    EXPECT_EQ(chat_ended.get_future().get().stats.completion_tokens, 90u);
    EXPECT_GT(engine_->counters().preempted, 0u);
}

TEST_F(EngineEmbeddingTest, DeviceWithoutHiddenRowsRefusesEmbeddings) {
    test::LogitsOnly device(*decoder_);
    Engine engine(device, local_, {});
    const auto id = engine.submit(embedding({1, 2, 3}), {});
    ASSERT_FALSE(id.ok());
    EXPECT_EQ(id.error().code, ErrorCode::unsupported);
    EXPECT_NE(id.error().message.find("logits only"), std::string::npos) << id.error().message;
}

}  // namespace
}  // namespace moex
