// Tests that drafts change no token of an answer of a single sequence, on a Vulkan device (lavapipe
// if there is no GPU). The drafts propose the right tokens, wrong ones, random ones, those of a
// text that differs here and there, and the n-grams that "this device" uses.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "hub/commands/gpu/gpu_model.h"
#include "hub/commands/gpu/package_weights.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/gpu/requests.h"
#include "tests/support/posted_loop.h"
#include "web-worker/decoder/greedy_loop.h"
#include "web-worker/decoder/sampled_loop.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/local/gpu_sequence.h"
#include "web-worker/local/local_drafts.h"
#include "web-worker/local/sampler_chooser.h"

namespace moex {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t vocab_size = 256;

// Proposes what a function says, whatever it costs.
class ToldDrafts : public TokenDrafts {
  public:
    // Returns the token to propose for a position of the answer.
    using Guess = std::function<TokenId(std::size_t)>;
    explicit ToldDrafts(Guess guess) : guess_(std::move(guess)) {}

    TokenIds propose(std::uint32_t tokens_max) override {
        proposed_.clear();
        for (std::uint32_t i = 0; i < tokens_max; ++i) proposed_.push_back(guess_(drawn_ + i));
        return proposed_;
    }
    // Takes all numbers of rows in turn, 0 as well.
    std::uint32_t num_paying() override {
        return turn_++ % static_cast<std::uint32_t>(proposed_.size() + 1);
    }
    void record(TokenIds drawn, std::uint32_t num_rows, std::chrono::nanoseconds) override {
        EXPECT_LE(drawn.size(), num_rows + 1u);
        drawn_ += drawn.size();
    }

  private:
    Guess guess_;
    std::size_t drawn_ = 0;
    std::uint32_t turn_ = 0;
    std::vector<TokenId> proposed_;
};

struct DrawnAnswer {
    std::vector<TokenId> tokens;
    AnswerEnd how = AnswerEnd::length;
    std::uint32_t held = 0;  // tokens that the decoder holds behind the answer
    DraftCounts counts;
};

struct AskedText {
    std::vector<TokenId> prompt;
    SamplingOptions sampling;
    std::vector<TokenId> stop_ids;
    std::uint32_t max_tokens = 16;
    std::size_t cancel_at = 1000;
};

// A MoE layer and a dense one.
std::shared_ptr<const ModelPackage> small_package() {
    ModelConfig config = test::tiny_config();
    config.num_layers = 2;
    config.layers = plain_layers({}, std::vector<std::uint8_t>{1, 0});
    static const std::shared_ptr<const ModelPackage> package = test::synth(config, "small");
    return package;
}

// A decoder for one sequence, as in a browser tab.
class OneSequence {
  public:
    explicit OneSequence(GpuDecoderOptions options = {.draft_rows = 8, .likeliest = true},
                         std::shared_ptr<const ModelPackage> package = small_package())
        : device(must(gpu::open_vulkan_device({}, loop.poster()))) {
        const DecoderModel model = must(decoder_model_of(*package));
        PackageWeights weights(package, model);
        bool finished = false;
        GpuDecoder::create(*device, model, options, weights,
                           [&](Result<std::unique_ptr<GpuDecoder>> made) {
                               finished = true;
                               decoder = must(std::move(made));
                           });
        if (!finished) loop.run_until(finished);
        sequence.emplace(*decoder);
    }

    DrawnAnswer answer(const AskedText& asked, TokenDrafts* drafts, bool issues_ahead = false) {
        decoder->rewind(0);
        return go_on(asked, asked.prompt, drafts, issues_ahead);
    }
    // Answers after the tokens that the decoder holds; `fed` are the other tokens of the prompt.
    DrawnAnswer go_on(const AskedText& asked, std::span<const TokenId> fed, TokenDrafts* drafts,
                      bool issues_ahead = false) {
        DrawnAnswer out;
        bool finished = false;
        AnswerLoop* running = nullptr;
        const AnswerLoop::Events events{.on_tokens =
                                            [&](std::span<const std::uint32_t> ids) {
                                                out.tokens.insert(out.tokens.end(), ids.begin(),
                                                                  ids.end());
                                                if (out.tokens.size() >= asked.cancel_at)
                                                    running->cancel();
                                            },
                                        .on_end =
                                            [&](Result<AnswerEnd> how) {
                                                finished = true;
                                                out.how = must(std::move(how));
                                            }};
        std::unique_ptr<AnswerLoop> answering;
        if (issues_ahead)
            answering = std::make_unique<GreedyLoop>(*decoder,
                                                     GreedyOptions{.max_tokens = asked.max_tokens,
                                                                   .reading_max = 1h,
                                                                   .stop_ids = asked.stop_ids,
                                                                   .drafts = drafts},
                                                     events);
        else
            answering = std::make_unique<SampledLoop>(
                *sequence,
                SampledOptions{
                    .max_tokens = asked.max_tokens, .stop_ids = asked.stop_ids, .drafts = drafts},
                std::make_unique<SamplerChooser>(Sampler(asked.sampling, asked.prompt)), events);
        running = answering.get();
        answering->start(fed);
        if (!finished) loop.run_until(finished);
        out.held = decoder->num_tokens();
        out.counts = answering->draft_counts();
        return out;
    }

    test::PostedLoop loop;
    std::unique_ptr<gpu::Device> device;
    std::unique_ptr<GpuDecoder> decoder;
    std::optional<GpuSequence> sequence;
};

// The drafts of each kind for a question whose answer is `tokens`.
std::map<std::string, ToldDrafts::Guess> guesses(const std::vector<TokenId>& tokens,
                                                 std::uint32_t seed) {
    const auto right = [tokens](std::size_t i) { return i < tokens.size() ? tokens[i] : 1; };
    const auto random = std::make_shared<std::mt19937>(seed);
    return {{"right", right},
            {"wrong", [right](std::size_t i) { return (right(i) + 1) % vocab_size; }},
            {"random", [random](std::size_t) { return (*random)() % vocab_size; }},
            {"now and then right", [right, random](std::size_t i) {
                 return (*random)() % 4 == 0 ? (*random)() % vocab_size : right(i);
             }}};
}

// A prompt that repeats itself, so that n-grams find something.
std::vector<TokenId> repeating_prompt(std::uint32_t seed) {
    std::vector<TokenId> prompt = test::random_tokens(5 + seed % 9, 40, seed);
    const std::vector<TokenId> once = prompt;
    prompt.insert(prompt.end(), once.begin(), once.end());
    prompt.insert(prompt.end(), once.begin(), once.begin() + 3);
    return prompt;
}

SamplingOptions sampling_of(std::uint32_t seed) {
    SamplingOptions options{.temperature = std::array{0.0, 0.8, 1.2}[seed % 3], .seed = seed};
    switch (seed / 3 % 6) {
        case 0: options.sample_top_k = 20; break;  // from the likeliest tokens
        case 1: options.top_p = 0.9; break;        // from all logits, as all that follow
        case 2: options.repetition_penalty = 1.3; break;
        case 3: options.presence_penalty = 0.8, options.frequency_penalty = 0.4; break;
        case 4: options.min_p = 0.05, options.logit_bias = {{3, 2.0f}, {5, -100.0f}}; break;
        case 5: options.sample_top_k = 64, options.top_p = 0.95; break;
    }
    return options;
}

// Returns the part of an answer without drafts up to a stop token at place `index`.
DrawnAnswer stopped_at(const DrawnAnswer& plain, AskedText& asked, std::size_t index) {
    asked.stop_ids = {plain.tokens[index]};
    DrawnAnswer out = plain;
    out.tokens.erase(std::find(out.tokens.begin(), out.tokens.end(), plain.tokens[index]),
                     out.tokens.end());
    out.how = AnswerEnd::stop;
    out.held = static_cast<std::uint32_t>(asked.prompt.size() + out.tokens.size());
    return out;
}

void expect_same(const DrawnAnswer& drafted, const DrawnAnswer& plain) {
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(drafted.how, plain.how);
    EXPECT_EQ(drafted.held, plain.held);
}

// Counts what the runs of a test accepted, so that a test that drafts nothing fails.
struct Totals {
    std::uint64_t answers = 0, drafted = 0, accepted = 0;
    void add(const DraftCounts& counts) {
        ++answers;
        drafted += counts.drafted_tokens;
        accepted += counts.accepted_tokens;
    }
};

TEST(DraftedAnswersTest, DraftsOfAnyKindChangeNoToken) {
    OneSequence tab;
    std::map<std::string, Totals> totals;
    LocalDrafts ngrams;
    for (std::uint32_t seed = 0; seed < 216; ++seed) {
        SCOPED_TRACE(text("seed ", seed));
        AskedText question{.prompt = repeating_prompt(seed), .sampling = sampling_of(seed)};
        DrawnAnswer plain = tab.answer(question, nullptr);
        ASSERT_EQ(plain.tokens.size(), question.max_tokens);
        // every other answer has a stop token in its middle
        if (seed % 2 == 1) plain = stopped_at(plain, question, 6 + seed % 7);
        const auto kinds = guesses(plain.tokens, seed);
        const auto& [kind, guess] = *std::next(kinds.begin(), seed / 2 % kinds.size());
        ToldDrafts drafts(guess);
        const DrawnAnswer told = tab.answer(question, &drafts);
        expect_same(told, plain);
        totals[kind].add(told.counts);
        ngrams.begin(question.prompt, LocalDrafts::Steps::waited_for, 1 + seed % 7);
        const DrawnAnswer drafted = tab.answer(question, &ngrams);
        expect_same(drafted, plain);
        totals["ngram"].add(drafted.counts);
    }
    for (const auto& [kind, total] : totals) {
        std::cout << kind << ": " << total.answers << " answers, " << total.drafted
                  << " tokens drafted, " << total.accepted << " accepted\n";
        EXPECT_GT(total.drafted, 100u);
    }
    EXPECT_EQ(totals["wrong"].accepted, 0u);
    EXPECT_GT(totals["right"].accepted, totals["now and then right"].accepted);
    EXPECT_GT(totals["now and then right"].accepted, totals["random"].accepted);
    EXPECT_GT(totals["ngram"].accepted, 100u);
}

// Steps that are issued ahead are drained before a draft, and issued again after it.
TEST(DraftedAnswersTest, DraftsAmongStepsIssuedAheadChangeNoToken) {
    OneSequence tab;
    std::map<std::string, Totals> totals;
    for (std::uint32_t seed = 0; seed < 24; ++seed) {
        SCOPED_TRACE(text("seed ", seed));
        AskedText question{
            .prompt = repeating_prompt(seed), .sampling = {.temperature = 0}, .max_tokens = 30};
        DrawnAnswer plain = tab.answer(question, nullptr, true);
        if (seed % 2 == 1) {
            plain = stopped_at(plain, question, 5 + seed % 20);
            // A loop that issues steps ahead leaves the last token out, at a stop as well.
            plain.held -= plain.tokens.empty() ? 0 : 1;
        }
        const auto kinds = guesses(plain.tokens, seed);
        const auto& [kind, guess] = *std::next(kinds.begin(), seed / 2 % kinds.size());
        ToldDrafts drafts(guess);
        const DrawnAnswer told = tab.answer(question, &drafts, true);
        expect_same(told, plain);
        totals[kind].add(told.counts);
        LocalDrafts ngrams;
        ngrams.begin(question.prompt, LocalDrafts::Steps::issued_ahead, 7);
        const DrawnAnswer drafted = tab.answer(question, &ngrams, true);
        expect_same(drafted, plain);
        totals["ngram"].add(drafted.counts);
    }
    for (const auto& [kind, total] : totals) {
        std::cout << kind << ": " << total.answers << " answers, " << total.drafted
                  << " tokens drafted, " << total.accepted << " accepted\n";
        EXPECT_GT(total.drafted, 50u);
    }
    EXPECT_EQ(totals["wrong"].accepted, 0u);
    EXPECT_GT(totals["ngram"].accepted, 100u);
}

// A draft that is always right, in each step as many rows as there is room for.
class AllRight : public TokenDrafts {
  public:
    explicit AllRight(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}
    TokenIds propose(std::uint32_t tokens_max) override {
        const std::size_t left = tokens_.size() - std::min(drawn_, tokens_.size());
        num_ = static_cast<std::uint32_t>(std::min<std::size_t>(tokens_max, left));
        return TokenIds(tokens_).subspan(std::min(drawn_, tokens_.size()), num_);
    }
    std::uint32_t num_paying() override { return num_; }
    void record(TokenIds drawn, std::uint32_t, std::chrono::nanoseconds) override {
        drawn_ += drawn.size();
    }

  private:
    std::vector<TokenId> tokens_;
    std::size_t drawn_ = 0;
    std::uint32_t num_ = 0;
};

TEST(DraftedAnswersTest, RightDraftsTakeOneStepForAllTheirTokens) {
    OneSequence narrow, wide({.draft_rows = draft_rows_max, .likeliest = true});
    const AskedText question{.prompt = test::random_tokens(9, vocab_size, 4),
                             .sampling = {.temperature = 1, .sample_top_k = 30, .seed = 5},
                             .max_tokens = 49};
    const DrawnAnswer plain = narrow.answer(question, nullptr);
    EXPECT_EQ(plain.counts.steps, 49u);
    EXPECT_EQ(plain.counts.drafts, 0u);
    // The prompt's step draws the first token; each other step draws 8 tokens, or 16.
    for (const auto& [tab, steps] : {std::pair{&narrow, 7u}, std::pair{&wide, 4u}}) {
        AllRight drafts(plain.tokens);
        const DrawnAnswer drafted = tab->answer(question, &drafts);
        expect_same(drafted, plain);
        EXPECT_EQ(drafted.counts.steps, steps);
        EXPECT_EQ(drafted.counts.accepted_tokens + drafted.counts.steps, 49u);
    }
}

// A page has 128 tokens; the context is full when the answer ends.
TEST(DraftedAnswersTest, DraftsStopAtTheEndOfTheContext) {
    OneSequence tab({.context_tokens = 256, .draft_rows = 8, .likeliest = true});
    for (const std::uint32_t length : {121u, 126u, 250u, 255u, 256u}) {
        SCOPED_TRACE(length);
        const AskedText question{.prompt = test::random_tokens(length, vocab_size, length),
                                 .sampling = {.temperature = 0.9, .sample_top_k = 9, .seed = 3},
                                 .max_tokens = 20};
        const DrawnAnswer plain = tab.answer(question, nullptr);
        EXPECT_EQ(plain.tokens.size(), std::min(20u, 256 - length + 1));
        AllRight right(plain.tokens);
        expect_same(tab.answer(question, &right), plain);
        ToldDrafts wrong(guesses(plain.tokens, 1).at("wrong"));
        expect_same(tab.answer(question, &wrong), plain);
    }
}

// Rows of drafts that were not drawn leave nothing behind for the next turn.
TEST(DraftedAnswersTest, TheNextTurnIsThatOfAnAnswerWithoutDrafts) {
    OneSequence tab;
    for (const bool ahead : {false, true})
        for (const std::size_t cancel_at : {7u, 1000u}) {
            AskedText first{.prompt = test::random_tokens(30, vocab_size, 8),
                            .sampling = {.temperature = 0},
                            .max_tokens = 21,
                            .cancel_at = cancel_at};
            AskedText second = first;
            second.cancel_at = 1000;
            const auto both = [&](TokenDrafts* drafts) {
                const DrawnAnswer one = tab.answer(first, drafts, ahead && drafts == nullptr);
                const auto more = test::random_tokens(4, vocab_size, 9);
                return std::pair{one, tab.go_on(second, more, nullptr).tokens};
            };
            const auto [plain, next] = both(nullptr);
            ToldDrafts wrong(guesses(plain.tokens, 1).at("now and then right"));
            const auto [drafted, next_drafted] = both(&wrong);
            if (ahead && cancel_at < 1000) continue;  // tokens in flight at the cancel count
            expect_same(drafted, plain);
            EXPECT_EQ(next_drafted, next);
        }
}

// Where drafts are never right, they are given up; where they are always right, they are used.
// The times are given, not measured.
TEST(DraftedAnswersTest, DraftsAreUsedWhereTheyPay) {
    struct Case {
        double row_share;  // time of a drafted row, in steps
        bool is_right;
        double rows_min, rows_max;  // wanted: mean rows of a step
    };
    for (const Case& one :
         {Case{0.05, true, 4, 7}, Case{0.05, false, 0, 0.5}, Case{1.2, true, 0, 0.3}}) {
        SCOPED_TRACE(text(one.row_share, one.is_right ? " right" : " wrong"));
        LocalDrafts drafts;
        const auto prompt = test::random_tokens(12, 40, 3);
        std::vector<TokenId> all(prompt);
        all.insert(all.end(), prompt.begin(), prompt.end());
        drafts.begin(all, LocalDrafts::Steps::waited_for);
        std::size_t rows = 0;
        constexpr std::size_t num_steps = 400;
        for (std::size_t step = 0; step < num_steps; ++step) {
            const auto proposed = drafts.propose(7);
            const std::uint32_t num = std::min(drafts.num_paying(),
                                               static_cast<std::uint32_t>(proposed.size()));
            rows += num;
            std::vector<TokenId> drawn(proposed.begin(), proposed.begin() + num);
            if (!one.is_right) drawn.clear();
            // The text goes on with the repetition; or it repeats two tokens, behind which a new
            // token follows each time.
            const TokenId wrong = step % 3 == 2 ? 1000 + static_cast<TokenId>(step)
                                                : prompt[step % 3];
            drawn.push_back(!one.is_right           ? wrong
                            : proposed.size() > num ? proposed[num]
                                                    : prompt[0]);
            drafts.record(drawn, num,
                          std::chrono::microseconds(
                              static_cast<std::int64_t>(1000 * (1 + one.row_share * num))));
        }
        const double mean = static_cast<double>(rows) / num_steps;
        EXPECT_GE(mean, one.rows_min);
        EXPECT_LE(mean, one.rows_max);
    }
}

}  // namespace
}  // namespace moex
