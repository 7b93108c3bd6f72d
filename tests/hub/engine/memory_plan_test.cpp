// Tests of the memory of texts: counted bytes beside a formula that is written here once more, and
// the engine's plan, which admission, /metrics and the log use.
#include "hub/engine/memory_plan.h"

#include <algorithm>
#include <iostream>

#include "tests/hub/engine/engine_stage.h"

namespace moex {
namespace {

// The formula of hub/engine/README.md for Qwen3.6-35B-A3B. A state has, in each of 30 layers, the
// matrices of 32 value heads, 16 rows of all keys, values and decays, and 12 inputs of the
// convolution. A token has a key and a value of two heads of 256 in each of 10 layers, as f16.
constexpr std::uint64_t keys = 16 * 128, values = 32 * 128, channels = 2 * keys + values,
                        qwen_state_bytes = 30ull * 4 *
                                           (32 * 128 * 128 + 16 * (keys + values + 32) +
                                            12 * channels),
                        qwen_token_bytes = 10 * 2 * 2 * 256 * 2;

// Counted bytes of `num_texts` texts of `num_tokens` tokens of Qwen3.6-35B-A3B. Their prompts go
// through the cache as the engine's steps do it, without the arithmetic, so that no memory is
// touched.
KvMemory memory_of_texts(std::uint32_t num_texts, std::uint32_t num_tokens) {
    const ModelConfig config = synth_shape("qwen3.6-35b-a3b").value();
    const std::uint32_t pages = num_texts * (num_tokens / delta_chunk + 1);
    KvCache cache(config, {.page_tokens = delta_chunk, .num_pages = pages, .dtype = KvDtype::f16});
    std::vector<KvCache::Sequence> texts;
    for (std::uint32_t i = 0; i < num_texts; ++i) texts.emplace_back(cache);
    const auto step = [](std::span<KvCache::Sequence> members, std::uint32_t num_rows) {
        for (KvCache::Sequence& one : members) {
            EXPECT_TRUE(one.reserve(one.num_tokens() + num_rows));
            one.begin_step(num_rows);
        }
        for (KvCache::Sequence& one : members) one.commit(num_rows);
    };

    const std::uint32_t at_once = second_states_max(RecurrentShape::of(config), num_texts);
    for (std::uint32_t first = 0; first < num_texts; first += at_once) {
        const auto group = std::span(texts).subspan(first, std::min(at_once, num_texts - first));
        for (std::uint32_t done = 0; done < num_tokens; done += 250) step(group, 250);
    }
    EXPECT_LE(cache.memory().states + cache.memory().spare_states,
              (num_texts + at_once) * (qwen_state_bytes + 200));
    step(texts, 1);
    cache.trim_states(num_texts);
    return cache.memory();
}

TEST(MemoryPlanTest, BytesOfTextsAreAtMostAFewPercentAboveTheFormula) {
    for (const auto [num_texts, num_tokens] : {std::pair{64u, 1'000u}, std::pair{1u, 64'000u}}) {
        const std::uint64_t formula = num_texts *
                                      (qwen_state_bytes + (num_tokens + 1) * qwen_token_bytes);
        const KvMemory memory = memory_of_texts(num_texts, num_tokens);
        const std::uint64_t counted = memory.pages + memory.states + memory.spare_states;
        std::cout << num_texts << " of " << num_tokens << " tokens: " << counted << " bytes, "
                  << formula << " by the formula\n";
        EXPECT_GE(counted, formula);
        EXPECT_LE(static_cast<double>(counted), 1.05 * static_cast<double>(formula));
        EXPECT_EQ(memory.state_copies, 0u);
    }
}

// The states of Qwen3.6-35B-A3B in the slots of a GPU.
TEST(MemoryPlanTest, StatesOfADeviceAreThoseOfItsSlots) {
    const ModelConfig config = synth_shape("qwen3.6-35b-a3b").value();
    constexpr std::uint64_t slot_bytes = 30ull * 4 * (32 * 128 * 128 + 3 * channels),
                            journal_bytes = 30ull * 4 * 18 * (channels + 2 * 32);
    MemoryNeeds needs{.sequences_max = 16,
                      .page_tokens = 128,
                      .page_bytes = 128 * qwen_token_bytes,
                      .slots = {.sequences_max = 16,
                                .copies_max = 8,
                                .slot_bytes = slot_bytes,
                                .journal_bytes = journal_bytes}};
    needs.bytes_max = needs.slots.all_bytes() + 10 * needs.page_bytes;
    const MemoryPlan plan = MemoryPlan::make(config, needs).value();
    EXPECT_EQ(plan.num_pages, 10u);
    EXPECT_EQ(plan.state_bytes_max(), 32 * slot_bytes + 16 * journal_bytes);
    EXPECT_EQ(plan.copy_bytes_max, 8 * slot_bytes);
    needs.bytes_max = needs.slots.all_bytes();
    EXPECT_FALSE(MemoryPlan::make(config, needs).ok());
}

TEST(MemoryPlanTest, PartsOfThePlanFitIntoTheBudget) {
    const ModelConfig config = synth_shape("qwen3.6-35b-a3b").value();
    const RecurrentShape shape = RecurrentShape::of(config);
    MemoryNeeds needs{.bytes_max = 16ull << 30,
                      .sequences_max = 64,
                      .page_tokens = 8,
                      .page_bytes = 8 * qwen_token_bytes,
                      .drafts = {.sequence_bytes = 3u << 20, .token_bytes = 2'048}};
    const MemoryPlan plan = MemoryPlan::make(config, needs).value();
    EXPECT_EQ(plan.copy_bytes_max, 4ull << 30);
    EXPECT_EQ(plan.second_states, 3u);
    EXPECT_EQ(plan.state_bytes_max(), 67 * shape.size_bytes());
    const std::uint64_t sum = plan.state_bytes_max() + plan.copy_bytes_max + plan.draft_bytes_max +
                              plan.num_pages * needs.page_bytes;
    EXPECT_LE(sum, needs.bytes_max);
    EXPECT_GT(sum + needs.page_bytes + 8 * 2'048, needs.bytes_max);

    needs.copy_bytes_max = 1u << 30;
    const MemoryPlan fewer_copies = MemoryPlan::make(config, needs).value();
    EXPECT_EQ(fewer_copies.copy_bytes_max, 1u << 30);
    EXPECT_GT(fewer_copies.num_pages, plan.num_pages);
    needs.copy_bytes_max = 16ull << 30;
    EXPECT_EQ(MemoryPlan::make(config, needs).error().code, ErrorCode::no_space);

    // Small states are never short of second ones, and other models have none.
    EXPECT_EQ(second_states_max(RecurrentShape::of(test::hybrid_config()), 64), 64u);
    const MemoryPlan plain =
        MemoryPlan::make(
            test::tiny_config(),
            {.bytes_max = 1u << 20, .sequences_max = 4, .page_tokens = 16, .page_bytes = 4'096})
            .value();
    EXPECT_EQ(plain.state_bytes_max() + plain.copy_bytes_max + plain.draft_bytes_max, 0u);
    EXPECT_EQ(plain.num_pages, 4u * 256 / 16);
}

class TextMemoryTest : public EngineTest {
  protected:
    TextMemoryTest() : EngineTest(test::hybrid_package()) {}
};

// What the engine counts never exceeds its plan, and is near the formula once all prompts have been
// computed. With room for few copies of states, there are no more of them.
TEST_F(TextMemoryTest, EngineKeepsToItsPlan) {
    constexpr std::uint32_t num_texts = 12, prompt_tokens = 100, answer_tokens = 110;
    const RecurrentShape shape = RecurrentShape::of(package_->config());
    const std::uint64_t copy_bytes = 4 * shape.num_layers * shape.snapshot_floats_of_layer();
    std::vector<KvMemory> seen;
    EngineOptions options{.sequences_max = num_texts,
                          .state_bytes_max = 3 * copy_bytes + copy_bytes / 2};
    options.on_step = [&](const StepShape&, Duration, Duration) {
        seen.push_back(engine_->counters().memory);
    };
    start(options);
    std::vector<Pending> pending;
    for (std::uint32_t i = 0; i < num_texts; ++i)
        pending.push_back(
            submit(drawn_request(test::random_tokens(prompt_tokens, 256, i), answer_tokens)));
    for (Pending& one : pending) get(one);
    const EngineCounters counters = engine_->counters();
    engine_.reset();

    const KvMemory& most = counters.memory_max;
    std::uint64_t states = 0, copies = 0;
    for (const KvMemory& one : seen) {
        EXPECT_LE(one.pages, most.pages);
        EXPECT_LE(one.states + one.spare_states, most.states);
        EXPECT_LE(one.state_copies, 3 * copy_bytes);
        states = std::max(states, one.states);
        copies = std::max(copies, one.state_copies);
    }
    EXPECT_GE(states, num_texts * shape.size_bytes());
    EXPECT_EQ(copies, 3 * copy_bytes);
    EXPECT_EQ(counters.memory.states, 0u);

    // long after the prompts, while all answers run, no state beside theirs is left
    const KvCache probe(package_->config(), {delta_chunk, 0});
    const std::uint64_t formula = num_texts *
                                  (shape.size_bytes() + (prompt_tokens + answer_tokens) *
                                                            probe.page_bytes() / delta_chunk);
    const auto last = std::find_if(seen.rbegin(), seen.rend(), [&](const KvMemory& one) {
        return one.states == num_texts * shape.size_bytes();
    });
    ASSERT_NE(last, seen.rend());
    EXPECT_EQ(last->spare_states, 0u);
    EXPECT_LE(static_cast<double>(last->pages + last->states), 1.05 * static_cast<double>(formula));
}

}  // namespace
}  // namespace moex
