// Tests the steps of models with a gated delta rule on a Vulkan device: how a text is cut, texts
// beside it, drafts that are rolled back, steps that fail, copies of states and preemption change
// no bit; and the golden files of both families hold for several texts at once.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <future>
#include <iostream>
#include <map>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hub/commands/gpu/gpu_device.h"
#include "hub/commands/gpu/gpu_steps.h"
#include "hub/draft/head_draft.h"
#include "hub/engine/decoder.h"
#include "hub/engine/engine.h"
#include "hub/engine/local_experts.h"
#include "hub/engine/scores.h"
#include "hub/model/pack/packer.h"
#include "hub/model/package/draft_head.h"
#include "tests/hub/engine/engine_stage.h"
#include "tests/hub/engine/known_drafts.h"
#include "tests/hub/gpu/hybrid_packages.h"
#include "tests/hub/gpu/requests.h"
#include "tests/support/repository.h"
#include "web-worker/gpu/device_decorator.h"

namespace moex {
namespace {

struct Kind {
    const char* family = "";  // a folder of tests/golden/families
    bool holds_experts = false;
};
constexpr Kind kinds[] = {{"qwen35-moe", true}, {"qwen35-moe", false}, {"qwen3-next", true}};

GenerationRequest request_of(std::uint32_t i, std::uint32_t vocab_size) {
    GenerationRequest request = drawn_request(
        test::random_tokens(1 + i * 7919 % 41, vocab_size, i % 11), 1 + i * 31 % 28);
    request.sampling.temperature = i % 3 == 0 ? 0 : 0.9;
    request.sampling.seed = i;
    request.client = text("client ", i % 3);
    return request;
}

// Works like the real device for `submits_left` submissions; then its data is lost.
class BreakingDevice : public gpu::DeviceDecorator {
  public:
    BreakingDevice(std::unique_ptr<gpu::Device> device, gpu::PostFunction post,
                   std::uint32_t& submits_left)
        : DeviceDecorator(*device),
          owned_(std::move(device)),
          post_(std::move(post)),
          submits_left_(submits_left) {}
    void submit(std::span<const gpu::Command> commands) override {
        is_lost_ = is_lost_ || submits_left_-- == 0;
        if (!is_lost_) device_.submit(commands);
    }
    void write_buffer(gpu::BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) override {
        if (!is_lost_) device_.write_buffer(buffer, offset_bytes, bytes);
    }
    void read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        if (!is_lost_) return device_.read_buffer(buffer, size_bytes, std::move(done));
        post_([done = std::move(done)] { done(Error{ErrorCode::device_lost, "it broke"}); });
    }

  private:
    std::unique_ptr<gpu::Device> owned_;
    gpu::PostFunction post_;
    std::uint32_t& submits_left_;
    bool is_lost_ = false;
};

class HybridStepsTest : public testing::TestWithParam<Kind> {
  protected:
    HybridStepsTest()
        : package_(test::golden_package(GetParam().family)),
          local_(package_, test::compute_threads(), {}, Arithmetic::exact),
          experts_(local_),
          steps_(open()) {}

    std::unique_ptr<GpuSteps> open(std::uint32_t sequences_max = 4) {
        return must(open_gpu_steps(package_, test::compute_threads(),
                                   {.device = "0",
                                    .holds_experts = GetParam().holds_experts,
                                    .sequences_max = sequences_max,
                                    .step_rows_max = 64,
                                    .micro_batches_max = 3}));
    }
    std::uint32_t vocab_size() const { return package_->config().vocab_size; }
    std::vector<TokenId> tokens(std::size_t count, std::uint32_t seed) const {
        return test::random_tokens(count, vocab_size(), seed);
    }
    static nlohmann::json golden() {
        std::ifstream in(repository() / "tests/golden/families" / GetParam().family /
                         "golden.json");
        return nlohmann::json::parse(in);
    }
    KvCacheOptions pages() {
        KvCacheOptions options = steps_->kv_pages();
        options.num_pages = std::min(options.num_pages, 16u);
        options.mover = steps_->page_mover();
        options.slots = steps_->state_slots();
        return options;
    }
    std::vector<float> step(std::span<const StepRows> batch, std::uint32_t micro_batches = 1) {
        return must(steps_->run(batch, experts_, micro_batches, {})).logits;
    }
    // The logits of all rows of a text that is computed alone, token by token.
    std::vector<float> alone(std::span<const TokenId> ids) {
        KvCache cache(package_->config(), pages());
        KvCache::Sequence sequence(cache);
        std::vector<float> all;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const StepRows rows{.kv = &sequence, .tokens = ids.subspan(i, 1)};
            const auto logits = step({&rows, 1});
            all.insert(all.end(), logits.begin(), logits.end());
        }
        return all;
    }
    EngineOptions engine_options(std::uint32_t num_pages) const {
        const KvCacheOptions kv = steps_->kv_pages();
        const KvCache probe(package_->config(), {kv.page_tokens, 0, kv.dtype});
        return {.sequences_max = 4,
                .queue_max = 1000,
                .step_rows_max = 64,
                .kv_bytes_max = num_pages * probe.page_bytes() + steps_->state_slots().all_bytes(),
                .page_tokens = kv.page_tokens,
                .kv_dtype = kv.dtype,
                .step_stretch_max = 1e6};
    }
    std::vector<Outcome> run(std::span<const GenerationRequest> requests, EngineOptions options) {
        Engine engine(*steps_, experts_, options);
        std::vector<Pending> pending;
        for (const GenerationRequest& one : requests) pending.push_back(submit_to(engine, one));
        std::vector<Outcome> outcomes;
        for (Pending& one : pending) outcomes.push_back(one.outcome.get());
        counters_ = engine.counters();
        return outcomes;
    }
    static void expect_equal(const std::vector<Outcome>& outcomes,
                             const std::vector<Outcome>& wanted) {
        ASSERT_EQ(outcomes.size(), wanted.size());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            ASSERT_EQ(outcomes[i].end.reason, FinishReason::length)
                << outcomes[i].end.error.message;
            ASSERT_EQ(outcomes[i].ids, wanted[i].ids) << i;
            ASSERT_EQ(outcomes[i].logprobs, wanted[i].logprobs) << i;
        }
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts local_;
    GatedExperts experts_;
    std::unique_ptr<GpuSteps> steps_;
    EngineCounters counters_;
};

INSTANTIATE_TEST_SUITE_P(Models, HybridStepsTest, testing::ValuesIn(kinds));

// Three texts grow side by side. Each step has random parts of them, some with wrong tokens at
// their end that are rolled back; and some steps fail before they are computed.
TEST_P(HybridStepsTest, CutsNeighboursRollBacksAndFailuresChangeNoBit) {
    constexpr std::uint32_t num_tokens = 140, num_texts = 3;
    std::vector<std::vector<TokenId>> texts;
    std::vector<std::vector<float>> wanted;
    for (std::uint32_t i = 0; i < num_texts; ++i) {
        texts.push_back(tokens(num_tokens, i));
        wanted.push_back(alone(texts.back()));
    }

    std::mt19937 generator(1);
    const auto random = [&](std::uint32_t end) {
        return static_cast<std::uint32_t>(generator()) % end;
    };
    for (int trial = 0; trial < 4; ++trial) {
        KvCache cache(package_->config(), pages());
        std::vector<KvCache::Sequence> sequences;
        for (std::uint32_t i = 0; i < num_texts; ++i) sequences.emplace_back(cache);
        const auto is_whole = [&](const KvCache::Sequence& one) {
            return one.num_tokens() == num_tokens;
        };
        while (!std::ranges::all_of(sequences, is_whole)) {
            std::vector<StepRows> batch;
            std::vector<std::vector<TokenId>> rows;
            std::vector<std::uint32_t> members, right;
            for (std::uint32_t i = 0; i < num_texts; ++i) {
                const std::uint32_t done = sequences[i].num_tokens(), left = num_tokens - done;
                const bool drafts = random(2) == 0;
                const std::uint32_t count = std::min(left, drafts ? 1 + random(5) : random(41));
                if (count == 0) continue;
                const auto first = texts[i].begin() + done;
                rows.emplace_back(first, first + count);
                for (std::uint32_t wrong = drafts ? random(5) : 0; wrong > 0; --wrong)
                    rows.back().push_back(random(vocab_size()));
                members.push_back(i);
                right.push_back(count);
            }
            for (std::size_t k = 0; k < members.size(); ++k)
                batch.push_back(
                    {.kv = &sequences[members[k]], .tokens = rows[k], .all_logits = random(3) > 0});
            if (batch.empty()) continue;
            const std::uint32_t parts = 1 + random(3);
            if (!GetParam().holds_experts && random(3) == 0) {
                experts_.fail_next();
                ASSERT_FALSE(steps_->run(batch, experts_, parts, {}).ok());
            }
            const std::vector<float> logits = step(batch, parts);
            std::size_t at = 0;
            for (std::size_t k = 0; k < batch.size(); ++k) {
                const std::size_t i = members[k], count = right[k], all = rows[k].size();
                const std::size_t done = sequences[i].num_tokens() - all;
                for (std::size_t row = batch[k].all_logits ? 0 : all - 1; row < all; ++row) {
                    if (row < count)
                        ASSERT_EQ(std::memcmp(logits.data() + at,
                                              wanted[i].data() + (done + row) * vocab_size(),
                                              4 * vocab_size()),
                                  0)
                            << "trial " << trial << ", text " << i << ", token " << done + row;
                    at += vocab_size();
                }
                if (count < all) sequences[i].roll_back(static_cast<std::uint32_t>(done + count));
                ASSERT_EQ(sequences[i].num_tokens(), done + count);
            }
        }
    }
}

TEST_P(HybridStepsTest, TextsGoOnFromCopiesOfEarlierStates) {
    auto first = drawn_request(tokens(300, 1), 100), second = first, third = first;
    const auto question = tokens(20, 2);
    second.prompt.insert(second.prompt.end(), question.begin(), question.end());
    third.prompt.resize(290);
    EngineOptions options = engine_options(16);
    options.prefix_cache = false;
    const auto answer = run({&first, 1}, options);
    GenerationRequest next = first;
    next.prompt.insert(next.prompt.end(), answer[0].ids.begin(), answer[0].ids.end());
    next.prompt.insert(next.prompt.end(), question.begin(), question.end());
    const auto cold_second = run({&second, 1}, options), cold_third = run({&third, 1}, options),
               cold_next = run({&next, 1}, options);

    // The prompt's end has a copy at 256, and that of the answer at 384.
    options.prefix_cache = true;
    Engine engine(*steps_, experts_, options);
    const auto one = [&](const GenerationRequest& request) {
        auto pending = submit_to(engine, request);
        return pending.outcome.get();
    };
    expect_equal({one(first)}, answer);
    for (const auto& [request, wanted, cached] :
         {std::tuple(&second, &cold_second, 256u), std::tuple(&third, &cold_third, 256u),
          std::tuple(&next, &cold_next, 384u)}) {
        const Outcome found = one(*request);
        expect_equal({found}, *wanted);
        EXPECT_EQ(found.end.stats.cached_tokens, cached);
    }
    const KvMemory memory = engine.counters().memory;
    EXPECT_GT(memory.state_copies, 0u);
    EXPECT_LE(memory.state_copies, engine.counters().memory_max.state_copies);
}

TEST_P(HybridStepsTest, DraftsAndPreemptionChangeNoText) {
    constexpr std::uint32_t count = 24;
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < count; ++i) requests.push_back(request_of(i, vocab_size()));
    EngineOptions options = engine_options(16);
    options.prefix_cache = false;
    std::vector<Outcome> wanted;
    for (const GenerationRequest& one : requests) wanted.push_back(run({&one, 1}, options).front());

    KnownTexts random(KnownTexts::Says::random), wrong(KnownTexts::Says::wrong);
    for (std::uint32_t i = 0; i < count; ++i)
        for (KnownTexts* known : {&random, &wrong})
            known->know(requests[i].prompt, requests[i].sampling.seed, 0, wanted[i].ids);
    options.prefix_cache = true;
    for (KnownTexts* known : {&random, &wrong}) {
        options.draft_sources = {known};
        options.draft_tokens = 16;
        expect_equal(run(requests, options), wanted);
        if (HasFatalFailure()) return;
        EXPECT_GT(counters_.drafted_tokens, 0u);
        EXPECT_EQ(counters_.accepted_tokens > 0, known == &random);
        EXPECT_LE(counters_.drafted_tokens, 8 * counters_.drafts);
    }
}

TEST_P(HybridStepsTest, PreemptedTextsAreComputedAgain) {
    const GenerationRequest requests[] = {drawn_request(tokens(124, 9), 30),
                                          drawn_request(tokens(125, 10), 12)};
    EngineOptions options = engine_options(16);
    options.prefix_cache = false;
    std::vector<Outcome> wanted;
    for (const GenerationRequest& one : requests) wanted.push_back(run({&one, 1}, options).front());
    for (const bool shares : {false, true}) {
        options = engine_options(3);
        options.prefix_cache = shares;
        expect_equal(run(requests, options), wanted);
        EXPECT_GE(counters_.preempted, 1u);
    }
}

// Rows after the final norm have the same bits in every step, beside rows that return logits and
// rows that return nothing; and they are near those of the cores.
TEST_P(HybridStepsTest, RowsAfterTheFinalNormAreThoseOfTheText) {
    const auto a = tokens(70, 1), b = tokens(40, 2);
    const std::size_t size = package_->config().hidden_size;
    const auto decoder = must(Decoder::create(package_, test::compute_threads()));
    const auto rows_of = [&](StepDevice& device, const KvCacheOptions& options,
                             std::span<const TokenId> ids, std::size_t chunk) {
        KvCache cache(package_->config(), options);
        KvCache::Sequence sequence(cache);
        std::vector<float> all;
        for (std::size_t i = 0; i < ids.size(); i += chunk) {
            const StepRows rows{.kv = &sequence,
                                .tokens = ids.subspan(i, std::min(chunk, ids.size() - i)),
                                .no_logits = true,
                                .hidden = true};
            const auto result = must(device.run({&rows, 1}, experts_, 1, {}));
            all.insert(all.end(), result.hidden.begin(), result.hidden.end());
        }
        return all;
    };
    const auto wanted_a = rows_of(*steps_, pages(), a, 1),
               wanted_b = rows_of(*steps_, pages(), b, 1);
    const auto on_cores = rows_of(*decoder, {16, 16, KvDtype::f32}, a, 70);
    ASSERT_EQ(wanted_a.size(), on_cores.size());
    float worst = 0;
    for (std::size_t i = 0; i < on_cores.size(); ++i)
        worst = std::max(worst, std::abs(wanted_a[i] - on_cores[i]));
    EXPECT_LE(worst, 1e-3f);

    const auto logits_a = alone(a);
    for (const std::uint32_t parts : {1u, 3u}) {
        KvCache cache(package_->config(), pages());
        KvCache::Sequence of_a(cache), of_b(cache), of_c(cache);
        const StepRows batch[] = {{.kv = &of_a, .tokens = a, .all_logits = true, .hidden = true},
                                  {.kv = &of_c, .tokens = std::span(a).first(9)},
                                  {.kv = &of_b, .tokens = b, .no_logits = true, .hidden = true}};
        const StepResult result = must(steps_->run(batch, experts_, parts, {}));
        std::vector<float> both = wanted_a;
        both.insert(both.end(), wanted_b.begin(), wanted_b.end());
        EXPECT_EQ(result.hidden, both);
        std::vector<float> logits = logits_a;
        const auto ninth = logits_a.begin() + 8 * vocab_size();
        logits.insert(logits.end(), ninth, ninth + vocab_size());
        EXPECT_EQ(result.logits, logits);
        EXPECT_EQ(result.hidden.size(), 110 * size);
    }
}

// The draft head is computed on the cores from the rows of the GPU. Its drafts of the golden's
// texts are the golden ones, and a text with them is the text without.
TEST_P(HybridStepsTest, DraftHeadOfTheCoresDraftsBesideTheGpu) {
    const auto head_package = must(open_draft_head(*package_));
    const auto head = must(Decoder::draft_head_of(package_, head_package, test::compute_threads(),
                                                  {.arithmetic = Arithmetic::exact}));
    LocalExperts head_experts(head_package, test::compute_threads(), {}, Arithmetic::exact);
    const HeadDraftOptions one_token{
        .kv = {.page_tokens = 16, .num_pages = 256, .dtype = KvDtype::f32}, .tokens_max = 1};
    std::size_t compared = 0;
    for (const auto& entry : golden()) {
        if (!entry.contains("mtp_draft")) continue;
        GenerationRequest request;
        request.prompt = entry.at("ids").get<std::vector<TokenId>>();
        request.sampling.temperature = 0;
        std::vector<TokenId> text = request.prompt;
        for (const auto& id : entry.at("greedy")) text.push_back(id.get<TokenId>());
        KvCache cache(package_->config(), pages());
        KvCache::Sequence sequence(cache);
        const StepRows rows{.kv = &sequence, .tokens = text, .no_logits = true, .hidden = true};
        const std::vector<float> hidden = must(steps_->run({&rows, 1}, experts_, 1, {})).hidden;

        HeadDrafts drafts(*head, head_experts, one_token);
        const auto own = drafts.begin(request);
        const std::size_t size = package_->config().hidden_size;
        for (std::size_t j = 0, seen = 0; j < entry.at("mtp_draft").size(); ++j) {
            const std::size_t end = request.prompt.size() + j;
            drafts.see(*own, static_cast<std::uint32_t>(seen),
                       std::span(hidden).subspan(seen * size, (end - seen) * size));
            seen = end;
            DraftCall call{
                .draft = own.get(), .tokens = std::span(text).first(end + 1), .tokens_max = 1};
            drafts.propose({&call, 1});
            ASSERT_EQ(call.proposed.size(), 1u);
            if (entry.at("mtp_draft_margin")[j].get<double>() <= 2e-3) continue;
            EXPECT_EQ(call.proposed[0], entry.at("mtp_draft")[j].get<TokenId>()) << j;
            ++compared;
        }
    }
    EXPECT_GT(compared, 50u);

    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 8; ++i) requests.push_back(request_of(i, vocab_size()));
    EngineOptions options = engine_options(16);
    const auto wanted = run(requests, options);
    HeadDraftOptions four = one_token;
    four.tokens_max = 4;
    HeadDrafts drafts(*head, head_experts, four);
    options.draft_sources = {&drafts};
    options.draft_tokens = 4;
    options.kv_bytes_max += 64u << 20;
    expect_equal(run(requests, options), wanted);
    EXPECT_GT(counters_.drafted_tokens, 50u);
    EXPECT_GT(counters_.accepted_tokens, 0u);
}

// A GPU with little memory has the states of all sequences, and fewer copies.
TEST_P(HybridStepsTest, CopiesLeaveRoomWhereMemoryIsShort) {
    constexpr std::uint32_t sequences_max = 64;
    const auto copies_with = [&](std::uint64_t bytes) -> Result<std::uint32_t> {
        MOEX_ASSIGN(steps, open_gpu_steps(package_, test::compute_threads(),
                                          {.device = "0",
                                           .holds_experts = GetParam().holds_experts,
                                           .sequences_max = sequences_max,
                                           .step_rows_max = 64,
                                           .memory_bytes_max = bytes}));
        const StateSlotSizes slots = steps->state_slots();
        EXPECT_EQ(slots.sequences_max, sequences_max);
        EXPECT_LT(steps->weight_bytes() + slots.all_bytes() + steps->kv_bytes(), bytes);
        return slots.copies_max;
    };
    std::uint64_t bytes = 1u << 20;
    auto copies = copies_with(bytes);
    while (!copies.ok() && copies.error().code == ErrorCode::no_space)
        copies = copies_with(bytes += bytes / 20);
    ASSERT_TRUE(copies.ok()) << copies.error().message;
    EXPECT_LT(*copies, sequences_max);
    EXPECT_EQ(must(copies_with(4 * bytes)), sequences_max);
}

// The states are lost with the GPU. The next device, or the cores, computes them again from the
// tokens, and the texts are those of the golden file.
TEST_P(HybridStepsTest, StatesThatWereLostAreComputedAgain) {
    const nlohmann::json entries = golden();
    const auto cores = must(Decoder::create(package_, test::compute_threads()));
    for (const std::uint32_t devices : {2u, 1u}) {
        std::uint32_t submits_left = ~0u, opened = 0, cores_asked = 0;
        steps_ = must(open_gpu_steps(
            package_, test::compute_threads(),
            {.device = "0",
             .holds_experts = GetParam().holds_experts,
             .sequences_max = 4,
             .step_rows_max = 64,
             .cores = [&]() -> Result<StepDevice*> {
                 ++cores_asked;
                 return cores.get();
             },
             .open_device = [&](const std::string& name,
                                gpu::PostFunction post) -> Result<std::unique_ptr<gpu::Device>> {
                 if (opened == devices) return Error{ErrorCode::unavailable, "none is left"};
                 ++opened;
                 MOEX_ASSIGN(device, open_gpu_device(name, post));
                 return std::unique_ptr<gpu::Device>(std::make_unique<BreakingDevice>(
                     std::move(device), std::move(post), submits_left));
             }}));
        std::vector<GenerationRequest> requests;
        for (const auto& entry : entries)
            requests.push_back(greedy(entry.at("ids").get<std::vector<TokenId>>(),
                                      static_cast<std::uint32_t>(entry.at("greedy").size())));
        submits_left = GetParam().holds_experts ? 12 : 40;  // in the middle of the answers
        const std::vector<Outcome> outcomes = run(requests, engine_options(16));
        EXPECT_EQ(opened, devices);
        EXPECT_EQ(cores_asked, devices == 1 ? 1u : 0u);
        for (std::size_t i = 0; i < outcomes.size(); ++i) {
            EXPECT_EQ(outcomes[i].end.reason, FinishReason::length)
                << outcomes[i].end.error.message;
            EXPECT_EQ(outcomes[i].ids, entries[i].at("greedy").get<std::vector<TokenId>>()) << i;
        }
    }
}

// Every text of the golden file is computed beside all others.
TEST_P(HybridStepsTest, TextsTogetherAgreeWithTheirGolden) {
    const std::string family = GetParam().family;
    const nlohmann::json golden = this->golden();
    steps_ = open(static_cast<std::uint32_t>(golden.size()));
    KvCache cache(package_->config(), pages());
    std::vector<std::unique_ptr<KvCache::Sequence>> sequences;
    std::vector<std::vector<TokenId>> texts;
    std::vector<StepRows> batch;
    for (const auto& entry : golden) {
        texts.push_back(entry.at("ids").get<std::vector<TokenId>>());
        for (const auto& id : entry.at("greedy")) texts.back().push_back(id.get<TokenId>());
        sequences.push_back(std::make_unique<KvCache::Sequence>(cache));
    }
    for (std::size_t i = 0; i < texts.size(); ++i)
        batch.push_back({.kv = sequences[i].get(), .tokens = texts[i], .all_logits = true});
    std::vector<float> logprobs = step(batch, 2);
    double worst = 0;
    std::size_t at = 0, compared = 0, greedy_compared = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const auto& entry = golden[i];
        const std::size_t num_ids = entry.at("ids").size();
        for (std::size_t row = 0; row < texts[i].size(); ++row, at += vocab_size()) {
            const auto one = std::span(logprobs).subspan(at, vocab_size());
            log_softmax(one, one);
            if (row + 1 < num_ids) {
                const double nll = entry.at("nll")[row].get<double>();
                worst = std::max(worst, std::abs(-one[texts[i][row + 1]] - nll));
                ++compared;
            }
            if (row + 1 < num_ids || row + 1 == texts[i].size()) continue;
            const std::size_t index = row + 1 - num_ids;
            if (entry.at("greedy_margin")[index].get<double>() <= 2e-3) continue;
            EXPECT_EQ(std::ranges::max_element(one) - one.begin(), texts[i][row + 1]);
            ++greedy_compared;
        }
    }
    std::cout << family << ": " << compared << " values of " << texts.size()
              << " texts, largest difference " << worst << ", " << greedy_compared
              << " greedy tokens\n";
    EXPECT_LE(worst, 1e-3);
    EXPECT_GT(compared, 60u);
    EXPECT_GT(greedy_compared, 10u);
}

}  // namespace
}  // namespace moex
