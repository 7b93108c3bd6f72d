// Compares the decoder's kernels one by one with reference functions in double (decoder_twins.h),
// at odd sizes. Those of attention and of delta rules are in attention_kernels_test.cpp and
// delta_kernels_test.cpp.
#include <numeric>

#include "kernels_constants.h"
#include "tests/support/process_memory.h"
#include "tests/web-worker/decoder_kernels.h"
#include "tests/web-worker/decoder_twins.h"
#include "web-worker/decoder/decoder_memory.h"

namespace moex::test {
namespace {

TEST_F(DecoderKernelsTest, EmbeddingsAreTheTablesOwnRows) {
    constexpr std::uint32_t hidden = 96, vocab = 12, group = 32;
    const StepRow rows[] = {{7}, {2}, {11}};
    for (const WeightKind kind : every_kind) {
        const Held table = held(kind, random_floats(vocab * hidden, 1), group);
        Words words = table.codes;
        words.insert(words.end(), table.scale_zero.begin(), table.scale_zero.end());
        // This is the second shard of a larger embedding table, with tokens 4 to 15. Token 2
        // belongs to another shard.
        const TableShard shard{4, vocab, static_cast<std::uint32_t>(table.codes.size())};
        Words uniform(4);
        std::memcpy(uniform.data(), &shard, sizeof shard);
        const auto x = floats_of(
            run(std::string("embed_") + name_of(kind),
                {{"hidden_size", hidden}, {"factor_bits", one_bits}, {"group_size", group}},
                {rows_buffer(rows), words, Words(3 * hidden), uniform}, {2, 3, 1})[2]);
        for (std::uint32_t i = 0; i < hidden; ++i) {
            EXPECT_EQ(x[i], table.values[3 * hidden + i]) << name_of(kind);
            EXPECT_EQ(x[hidden + i], 0) << name_of(kind);
            EXPECT_EQ(x[2 * hidden + i], table.values[7 * hidden + i]) << name_of(kind);
        }
    }
}

TEST_F(DecoderKernelsTest, AddNormAddsWhatTheBlockBeforeGaveAndNorms) {
    constexpr std::uint32_t addends = 3, num_rows = 4;
    const StepRow rows[num_rows] = {};
    // In rows of 288 values a thread keeps its values in registers. In rows of 5,120 values it
    // reads them again.
    for (const auto& [hidden, for_head, has_shared] : {std::tuple{288u, false, false},
                                                       {288u, true, false},
                                                       {5120u, true, false},
                                                       {288u, false, true},
                                                       {5120u, true, true}}) {
        const Floats shared = random_floats(num_rows * hidden, 5, 0.3f);
        const Floats x = random_floats(num_rows * hidden, 2),
                     added = random_floats(num_rows * addends * hidden, 3, 0.3f),
                     weight = random_floats(hidden, 4);
        const std::uint32_t first = for_head ? 2 : 0, count = num_rows - first;
        std::vector<Words> buffers = {rows_buffer(rows, {.head_row = first}),
                                      words_of(x),
                                      words_of(added),
                                      words_of(weight),
                                      Words(num_rows * hidden),
                                      Words(num_rows * hidden)};
        if (has_shared) buffers.push_back(words_of(shared));
        const auto left = run(has_shared ? "add_norm_shared" : "add_norm",
                              {{"hidden_size", hidden},
                               {"num_addends", addends},
                               {"for_head", for_head ? 1u : 0u},
                               {"epsilon_bits", std::bit_cast<std::uint32_t>(1e-6f)},
                               {"factor_bits", one_bits}},
                              buffers, {1, count, 1});
        const Floats x_after = floats_of(left[1]), y = floats_of(left[4]),
                     y_transposed = floats_of(left[5]);
        for (std::uint32_t r = 0; r < count; ++r) {
            const std::size_t row = first + r;
            test::Doubles sum(x.begin() + row * hidden, x.begin() + (row + 1) * hidden);
            for (std::uint32_t i = 0; has_shared && i < hidden; ++i)
                sum[i] += shared[row * hidden + i];
            const auto wanted = test::add_norm(
                sum, std::span(added).subspan(row * addends * hidden, addends * hidden), weight,
                1e-6);
            const auto mine = std::span(y).subspan(r * hidden, hidden);
            EXPECT_LE(normalized_rms_error(mine, wanted), 1e-6);
            EXPECT_LE(normalized_rms_error(std::span(x_after).subspan(row * hidden, hidden), sum),
                      1e-6);
            const Floats moved = transposed(mine);
            EXPECT_TRUE(std::equal(moved.begin(), moved.end(), y_transposed.begin() + r * hidden));
        }
    }
}

TEST_F(DecoderKernelsTest, SharedGateIsTheSigmoidOfTheLastLogit) {
    constexpr std::uint32_t num_rows = 70, num_experts = 5;
    const StepRow rows[num_rows] = {};
    const Floats logits = random_floats(num_rows * (num_experts + 1), 6, 3.0f);
    const Words routes = run(
        "shared_gate", {{"num_experts", num_experts}},
        {rows_buffer(rows, {.num_rows = num_rows}), words_of(logits), Words(2 * num_rows, 7)},
        {2, 1, 1})[2];
    for (std::uint32_t row = 0; row < num_rows; ++row) {
        const double logit = logits[row * (num_experts + 1) + num_experts];
        EXPECT_EQ(routes[2 * row], 0u);
        EXPECT_NEAR(std::bit_cast<float>(routes[2 * row + 1]), 1 / (1 + std::exp(-logit)), 1e-6);
    }
}

TEST_F(DecoderKernelsTest, OutputGateIsASigmoidForEachValue) {
    constexpr std::uint32_t size = 96, num_rows = 3;
    const Floats gates = random_floats(size * num_rows, 1, 3.0f),
                 attended = random_floats(size * num_rows, 2);
    for (const bool transposes : {false, true}) {
        Floats stored;
        for (std::uint32_t row = 0; row < num_rows; ++row) {
            const auto one = std::span(attended).subspan(row * size, size);
            const Floats as_it_is = transposes ? transposed(one) : Floats(one.begin(), one.end());
            stored.insert(stored.end(), as_it_is.begin(), as_it_is.end());
        }
        const Floats found = floats_of(
            run("output_gate", {{"size", size}, {"transposes", transposes ? 1u : 0u}},
                {words_of(gates), words_of(stored)}, {2, num_rows, 1})[1]);
        for (std::uint32_t row = 0; row < num_rows; ++row) {
            Floats wanted(size);
            for (std::uint32_t i = 0; i < size; ++i)
                wanted[i] = static_cast<float>(attended[row * size + i] /
                                               (1 + std::exp(-double{gates[row * size + i]})));
            if (transposes) wanted = transposed(wanted);
            for (std::uint32_t i = 0; i < size; ++i)
                EXPECT_NEAR(found[row * size + i], wanted[i], 1e-6);
        }
    }
}

// If a product has many inputs, a lane has several chunks, which `spread` reads ahead.
TEST_F(DecoderKernelsTest, ProductsAgreeWithDoubleAndARowIsTheSameAloneAndInATile) {
    constexpr std::uint32_t num_rows = 8, group = 64;
    for (const WeightKind kind : every_kind)
        for (const auto& [num_in, num_out] : {std::pair{320u, 16u}, {320u, 13u}, {4416u, 16u}}) {
            if (kind == WeightKind::int4 && num_out % 16 != 0) continue;
            const Held weights = held(kind, random_floats(num_out * num_in, 5), group);
            const Floats x = random_floats(num_rows * num_in, 6), bias = random_floats(num_out, 7);
            Words rows;
            for (std::uint32_t r = 0; r < num_rows; ++r) {
                const auto row = std::span(x).subspan(r * num_in, num_in);
                const Words words = words_of(
                    kind == WeightKind::int4 ? transposed(row) : Floats(row.begin(), row.end()));
                rows.insert(rows.end(), words.begin(), words.end());
            }
            const auto product = [&](const char* suffix, const Words& in, std::uint32_t count,
                                     std::uint32_t groups) {
                std::vector<Words> buffers = {weights.codes, in, words_of(bias),
                                              Words(count * num_out)};
                if (kind == WeightKind::int4) buffers.push_back(weights.scale_zero);
                return floats_of(run(std::string("matvec_") + name_of(kind) + suffix,
                                     {{"num_in", num_in},
                                      {"num_out", num_out},
                                      {"y_stride", num_out},
                                      {"has_bias", 1},
                                      {"chunks_per_group_log2", 1}},
                                     std::move(buffers), {groups, 1, 1})[3]);
            };

            const Floats tile = product("_8", rows, num_rows, (num_out + 7) / 8);
            for (std::uint32_t r = 0; r < num_rows; ++r) {
                const auto mine = std::span(tile).subspan(r * num_out, num_out);
                const auto wanted = test::matvec(weights.values,
                                                 std::span(x).subspan(r * num_in, num_in), bias);
                EXPECT_LE(normalized_rms_error(mine, wanted), 1e-6) << name_of(kind);
            }
            const Words fifth(rows.begin() + 5 * num_in, rows.begin() + 6 * num_in);
            for (const Floats& alone : {product("_1", fifth, 1, (num_out + 7) / 8),
                                        product("_spread", fifth, 1, (num_out + 1) / 2)})
                EXPECT_TRUE(std::equal(alone.begin(), alone.end(), tile.begin() + 5 * num_out))
                    << name_of(kind);
        }
}

TEST_F(DecoderKernelsTest, RoutesAreTheLikeliestExpertsInAscendingOrder) {
    constexpr std::uint32_t num_rows = 5, top_k = 6;
    for (const std::uint32_t num_experts : {7u, 128u, 200u})
        for (const bool normalised : {false, true}) {
            Floats logits = random_floats(num_rows * num_experts, 10);
            for (std::uint32_t e = 0; e < num_experts; ++e) logits[e] = 1.5f;  // all logits tie
            const auto left = run("route",
                                  {{"num_experts", num_experts},
                                   {"top_k", top_k},
                                   {"norm_topk_prob", normalised ? 1u : 0u},
                                   {"logit_stride", num_experts},
                                   {"route_stride", top_k},
                                   {"has_shared_gate", 0}},
                                  {words_of(logits), Words(num_rows * top_k * 2)},
                                  {1, num_rows, 1});
            for (std::uint32_t row = 0; row < num_rows; ++row) {
                const auto wanted = test::route(
                    std::span(logits).subspan(row * num_experts, num_experts), top_k, normalised);
                for (std::uint32_t k = 0; k < top_k; ++k) {
                    const std::uint32_t* const pair = &left[1][(row * top_k + k) * 2];
                    EXPECT_EQ(pair[0], wanted[k].first);
                    EXPECT_NEAR(std::bit_cast<float>(pair[1]), wanted[k].second, 1e-6);
                }
            }
        }
}

// The row's last route is that of the shared expert; its weight is the sigmoid of the last logit.
TEST_F(DecoderKernelsTest, RoutesBySigmoidKeepToTheBestGroups) {
    constexpr std::uint32_t num_rows = 5, top_k = 3, num_experts = 12, stride = num_experts + 1;
    const Floats logits = random_floats(num_rows * stride, 21),
                 correction = random_floats(num_experts, 22, 0.2f);
    for (const auto& [groups, kept] : {std::pair{1u, 1u}, {4u, 2u}}) {
        const auto left = run(
            "route_sigmoid",
            {{"num_experts", num_experts},
             {"top_k", top_k},
             {"norm_topk_prob", 1},
             {"num_groups", groups},
             {"groups_kept", kept},
             {"scaling_bits", std::bit_cast<std::uint32_t>(2.5f)},
             {"logit_stride", stride},
             {"route_stride", top_k + 1},
             {"has_shared_gate", 1}},
            {words_of(logits), Words(num_rows * (top_k + 1) * 2), words_of(correction)},
            {1, num_rows, 1});
        for (std::uint32_t row = 0; row < num_rows; ++row) {
            const auto mine = std::span(logits).subspan(row * stride, stride);
            const auto wanted = test::route_sigmoid(mine.first(num_experts), correction, top_k,
                                                    groups, kept, 2.5);
            const std::uint32_t* const pairs = &left[1][row * (top_k + 1) * 2];
            for (std::uint32_t k = 0; k < top_k; ++k) {
                EXPECT_EQ(pairs[2 * k], wanted[k].first);
                EXPECT_NEAR(std::bit_cast<float>(pairs[2 * k + 1]), wanted[k].second, 1e-5);
            }
            EXPECT_EQ(pairs[2 * top_k], num_experts);
            EXPECT_NEAR(std::bit_cast<float>(pairs[2 * top_k + 1]),
                        1 / (1 + std::exp(-mine.back())), 1e-6);
        }
    }
}

std::vector<gpu::KernelConstant> expert_constants(const ExpertShape& shape,
                                                  const ExpertBlobLayout& layout,
                                                  std::uint32_t top_k) {
    const auto word = [](const BlobSection& section) {
        return static_cast<std::uint32_t>(section.offset_bytes / 4);
    };
    return {{"hidden_size", shape.hidden_size},
            {"moe_intermediate_size", shape.moe_intermediate_size},
            {"top_k", top_k},
            {"chunks_per_group_log2", 0},
            {"gate_up_scale_zero_word", word(layout.gate_up_scale_zero)},
            {"down_codes_word", word(layout.down_codes)},
            {"down_scale_zero_word", word(layout.down_scale_zero)},
            {"gate_up_bias_word", word(layout.gate_up_bias)},
            {"down_bias_word", word(layout.down_bias)},
            {"limit_bits", std::bit_cast<std::uint32_t>(shape.clamp)}};
}

TEST_F(DecoderKernelsTest, ExpertsAgreeWithDoubleAndThoseOfOtherArenasArePassedOver) {
    constexpr std::uint32_t hidden = 128, inner = 96, group = 32, top_k = 2;
    const Floats x = random_floats(hidden, 11);
    // The token is routed to experts 5 and 8 of a layer. This arena holds only experts 6 to 8.
    const Words routes = {5, std::bit_cast<std::uint32_t>(0.25f), 8,
                          std::bit_cast<std::uint32_t>(0.75f)};
    const Floats gate_up_bias = random_floats(2 * inner, 16), down_bias = random_floats(hidden, 17);
    for (const WeightKind kind :
         {WeightKind::bf16, WeightKind::f32, WeightKind::int4, WeightKind::mxfp4})
        for (const bool clamped : {false, true}) {
            SCOPED_TRACE(name_of(kind));
            const ExpertShape shape{hidden, inner, group, clamped, clamped ? 0.7f : 0.0f};
            const ExpertBlobLayout layout = expert_blob_layout(shape, expert_dtype_of(kind));
            const Held gate_up = held(kind, random_floats(2 * inner * hidden, 12, 0.8f), group),
                       down = held(kind, random_floats(hidden * inner, 13, 0.8f), group);
            const auto blob_words = static_cast<std::uint32_t>(layout.size_bytes / 4);
            Words arena(3 * blob_words);
            const auto put = [&](const BlobSection& section, const Words& words) {
                std::copy(words.begin(), words.end(),
                          arena.begin() + 2 * blob_words + section.offset_bytes / 4);
            };
            put(layout.gate_up_codes, gate_up.codes);
            put(layout.gate_up_scale_zero, gate_up.scale_zero);
            put(layout.down_codes, down.codes);
            put(layout.down_scale_zero, down.scale_zero);
            if (clamped) {
                put(layout.gate_up_bias, words_of(gate_up_bias));
                put(layout.down_bias, words_of(down_bias));
            }

            const auto constants = expert_constants(shape, layout, top_k);
            const Words place = {6, 3, blob_words, 0};
            const bool int4 = kind == WeightKind::int4 || kind == WeightKind::mxfp4;
            std::vector<Words> buffers = {routes, arena, words_of(int4 ? transposed(x) : x),
                                          Words(top_k * inner), place};
            if (int4) buffers.push_back(arena);
            const std::string form = clamped ? "clamped_" : "";
            const auto answer = [&](const char* suffix, std::uint32_t gate_up_groups,
                                    std::uint32_t down_groups) {
                std::vector<Words> mine = buffers;
                mine[2] = run(std::string("expert_gate_up_") + form + name_of(kind) + suffix,
                              constants, mine, {gate_up_groups, top_k, 1})[3];
                mine[3] = Words(top_k * hidden);
                return run(std::string("expert_down_") + form + name_of(kind) + suffix, constants,
                           mine, {down_groups, top_k, 1})[3];
            };
            const Words bits = answer("_1", inner / 16, hidden / 32);
            EXPECT_EQ(bits, answer("_spread", inner / 8, hidden / 16));
            const Floats y = floats_of(bits);

            const Floats& weights = gate_up.values;
            ExpertWeights expert{shape, Floats(weights.begin(), weights.begin() + inner * hidden),
                                 Floats(weights.begin() + inner * hidden, weights.end()),
                                 down.values};
            if (clamped) {
                expert.gate_bias.assign(gate_up_bias.begin(), gate_up_bias.begin() + inner);
                expert.up_bias.assign(gate_up_bias.begin() + inner, gate_up_bias.end());
                expert.down_bias = down_bias;
            }
            std::vector<double> wanted(hidden);
            expert_reference(wanted, expert, test::Doubles(x.begin(), x.end()));
            for (double& value : wanted) value *= 0.75;
            EXPECT_LE(normalized_rms_error(std::span(y).last(hidden), wanted),
                      clamped ? 2e-6 : 1e-6);
            for (std::uint32_t i = 0; i < hidden; ++i) EXPECT_EQ(y[i], 0.0f);
        }
}

TEST_F(DecoderKernelsTest, PairsOfOneExpertShareTiles) {
    constexpr std::uint32_t num_experts = 9, top_k = 3;
    namespace kernel = gpu::kernels::group_pairs;
    std::mt19937 random(15);
    for (const std::uint32_t num_rows : {1u, 2u, 17u, 64u}) {
        Words routes;
        for (std::uint32_t row = 0; row < num_rows; ++row) {
            // Some experts are chosen for no row.
            const std::uint32_t first = random() % (num_experts - 2);
            for (std::uint32_t k = 0; k < top_k; ++k) {
                routes.push_back(first + k);
                routes.push_back(static_cast<std::uint32_t>(random()));
            }
        }
        const std::vector<StepRow> rows(num_rows);
        const std::size_t tile_words = 2 + 2 * kernel::tile_rows;
        const auto tiles = run(
            "group_pairs", {{"num_experts", num_experts}, {"top_k", top_k}},
            {rows_buffer(rows, {.num_rows = num_rows}), routes,
             Words(kernel::tiles_word + tile_words * (num_rows * top_k + num_experts))},
            {1, 1, 1})[2];
        const auto wanted = test::group_pairs(routes, num_experts, kernel::tile_rows);
        ASSERT_EQ(tiles[0], wanted.size());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            const std::uint32_t* const tile = &tiles[kernel::tiles_word + i * tile_words];
            EXPECT_EQ(tile[0], wanted[i].expert);
            ASSERT_EQ(tile[1], wanted[i].pairs.size());
            for (std::size_t j = 0; j < wanted[i].pairs.size(); ++j) {
                EXPECT_EQ(tile[2 + j], wanted[i].pairs[j]);
                EXPECT_EQ(tile[2 + kernel::tile_rows + j], routes[2 * wanted[i].pairs[j] + 1]);
            }
        }
    }
}

TEST_F(DecoderKernelsTest, TheLikeliestTokenBecomesTheNextRow) {
    for (const std::uint32_t vocab : {300u, 5000u, 300000u}) {
        Floats logits = random_floats(vocab, 14);
        // Two tokens have equal logits: the lower token is chosen.
        logits[vocab / 2] = logits[vocab - 1] = 9;
        const auto stretches = (vocab + gpu::kernels::argmax_part::stretch_tokens - 1) /
                               gpu::kernels::argmax_part::stretch_tokens;
        const auto best = run("argmax_part", {{"vocab_size", vocab}},
                              {words_of(logits), Words(2 * stretches)}, {stretches, 1, 1})[1];
        const StepRow rows[] = {{3, 40, 5}, {4, 41, 5}};
        const auto left = run("argmax_take",
                              {{"num_stretches", stretches},
                               {"ring_ids", 4},
                               {"vocab_size", vocab},
                               {"row_pages", 9}},
                              {best, rows_buffer(rows, {.head_row = 1, .chosen = 6}), Words(4)},
                              {1, 1, 1});

        EXPECT_EQ(left[2], (Words{0, 0, test::argmax(logits), 0}));
        EXPECT_EQ(left[1][0], 0u);
        EXPECT_EQ(left[1][1], 1u) << "rows";
        EXPECT_EQ(left[1][2], 9u);
        EXPECT_EQ(left[1][3], 7u);
        const Words row(left[1].begin() + step_header_words,
                        left[1].begin() + step_header_words + 3);
        EXPECT_EQ(row, (Words{vocab / 2, 42, 5}));
    }
}

// Three rows of logits: many equal logits; one logit far above the others; one logit that is NaN.
TEST_F(DecoderKernelsTest, TheLikeliestTokensOfEachRowAreFound) {
    constexpr std::uint32_t num_rows = 3;
    for (const std::uint32_t vocab : {40u, 1024u, 5000u, 40000u}) {
        Floats logits = random_floats(num_rows * vocab, 16, 3);
        for (std::uint32_t i = 0; i < vocab; ++i) logits[i] = std::round(logits[i]);
        logits[vocab + vocab / 3] = 90;
        logits[2 * vocab + vocab / 2] = std::bit_cast<float>(0x7fc00000u);

        const std::vector<std::uint32_t> counts = DecoderMemory::likeliest_lists(vocab);
        const std::uint32_t list_words = sizeof(LikeliestList) / 4;
        Words lists(num_rows * list_words *
                    std::accumulate(counts.begin(), counts.end(), std::uint32_t{0}));
        lists = run("likeliest_part", {{"vocab_size", vocab}, {"num_stretches", counts[0]}},
                    {words_of(logits), lists}, {counts[0], num_rows, 1})[1];
        std::uint32_t from = 0;
        for (std::size_t i = 1; i < counts.size(); ++i) {
            const std::uint32_t to = from + counts[i - 1] * num_rows * list_words;
            lists = run("likeliest_merge",
                        {{"num_lists", counts[i - 1]}, {"from_word", from}, {"to_word", to}},
                        {lists}, {counts[i], num_rows, 1})[0];
            from = to;
        }

        for (std::uint32_t row = 0; row < num_rows; ++row) {
            LikeliestList list;
            std::memcpy(static_cast<void*>(&list), &lists[from + row * list_words], sizeof list);
            const auto mine = std::span(logits).subspan(row * vocab, vocab);
            if (row == 2) {
                EXPECT_TRUE(std::isnan(list.exp_sum));
                continue;
            }
            const auto wanted = test::likeliest(mine, LikeliestList::kept);
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                EXPECT_EQ(list.candidates[i].token, wanted[i]) << vocab << " " << row << " " << i;
                EXPECT_EQ(list.candidates[i].logit, mine[wanted[i]]);
            }
            EXPECT_NEAR(list.peak + std::log(list.exp_sum), test::log_sum_exp(mine), 1e-5);
        }
    }
}

// However slow the GPU is, the number of bytes that wait to be copied is bounded.
TEST_F(DecoderKernelsTest, UploadsWaitForThoseBeforeThem) {
    constexpr std::uint64_t size_bytes = 48u << 20;
    const Bytes bytes(size_bytes);
    const auto buffer = *device_->create_buffer(size_bytes, gpu::BufferUsage::storage, "target");
    const std::uint64_t before = process_bytes("VmRSS");
    for (int i = 0; i < 24; ++i) device_->write_buffer(buffer, 0, bytes);
    EXPECT_LE(process_bytes("VmRSS"), before + (600u << 20));
    device_->destroy_buffer(buffer);
}

}  // namespace
}  // namespace moex::test
