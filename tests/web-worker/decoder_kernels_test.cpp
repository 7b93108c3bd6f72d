// Compares the decoder's kernels one by one on a real Vulkan device (lavapipe if there is no GPU)
// with reference functions in double (decoder_twins.h), at odd sizes.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels_constants.h"
#include "protocol/expert_reference.h"
#include "tests/support/posted_loop.h"
#include "tests/support/process_memory.h"
#include "tests/web-worker/decoder_twins.h"
#include "web-worker/decoder/decoder_memory.h"
#include "web-worker/decoder/decoder_model.h"
#include "web-worker/decoder/kv_rows.h"
#include "web-worker/decoder/step_rows.h"
#include "web-worker/gpu/kernel_source.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {
namespace {

using Floats = std::vector<float>;
using Words = std::vector<std::uint32_t>;

Floats random_floats(std::size_t count, std::uint32_t seed, float scale = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, scale);
    Floats values(count);
    for (float& value : values) value = normal(random);
    return values;
}
Words words_of(std::span<const float> values) {
    Words words(values.size());
    std::memcpy(words.data(), values.data(), values.size_bytes());
    return words;
}
Floats floats_of(std::span<const std::uint32_t> words) {
    Floats values(words.size());
    std::memcpy(values.data(), words.data(), words.size_bytes());
    return values;
}
// Returns the row in the order in which the lanes of INT4 kernels read it: quad q of chunk c is
// stored at q * chunks + c.
Floats transposed(std::span<const float> row) {
    Floats out(row.size());
    const std::size_t chunks = row.size() / 32;
    for (std::size_t i = 0; i < row.size(); ++i)
        out[(i % 32 / 4 * chunks + i / 32) * 4 + i % 4] = row[i];
    return out;
}

// Weights encoded for one WeightKind, and the values that they represent.
struct Held {
    Words codes, scale_zero;
    Floats values;
};
Held held(WeightKind kind, Floats values, std::uint32_t group) {
    Held out;
    if (kind == WeightKind::f32) {
        out.codes = words_of(values);
    } else if (kind == WeightKind::bf16) {
        for (std::size_t i = 0; i < values.size(); i += 2) {
            const bfloat16 low = float_to_bfloat16(values[i]),
                           high = float_to_bfloat16(values[i + 1]);
            values[i] = bfloat16_to_float(low);
            values[i + 1] = bfloat16_to_float(high);
            out.codes.push_back(low | std::uint32_t{high} << 16);
        }
    } else if (kind == WeightKind::mxfp4) {
        out.codes.resize(values.size() / 8);
        out.scale_zero.resize(values.size() / 32 / 4);
        for (std::size_t i = 0; i < values.size(); ++i) {
            // Every code occurs, with scales of 2^-3, 2^-2 and 2^-1.
            const auto code = static_cast<std::uint32_t>(
                std::bit_cast<std::uint32_t>(values[i]) >> 7 & 15);
            const std::uint32_t scale = 124 + i / 32 % 3;
            out.codes[i / 8] |= code << 4 * (i % 8);
            if (i % 32 == 0) out.scale_zero[i / 128] |= scale << 8 * (i / 32 % 4);
            values[i] = static_cast<float>(mxfp4_twice(code)) *
                        mxfp4_half_scale(static_cast<std::uint8_t>(scale));
        }
    } else {
        for (std::size_t i = 0; i < values.size(); i += group) {
            const half scale = float_to_half(0.2f + 0.01f * static_cast<float>(i % 7)),
                       zero = float_to_half(7.25f);
            out.scale_zero.push_back(pack_scale_zero(scale, zero));
            for (std::size_t j = i; j < i + group; ++j) {
                if (j % 8 == 0) out.codes.push_back(0);
                const auto code = static_cast<std::uint32_t>(
                    std::clamp(values[j] / half_to_float(scale) + 7.25f, 0.0f, 15.0f));
                out.codes.back() |= code << (4 * (j % 8));
                values[j] = half_to_float(scale) * (static_cast<float>(code) - half_to_float(zero));
            }
        }
    }
    out.values = std::move(values);
    return out;
}
const char* name_of(WeightKind kind) {
    return kind == WeightKind::bf16    ? "bf16"
           : kind == WeightKind::f32   ? "f32"
           : kind == WeightKind::mxfp4 ? "mxfp4"
                                       : "int4";
}
constexpr std::uint32_t one_bits = std::bit_cast<std::uint32_t>(1.0f);
constexpr WeightKind every_kind[] = {WeightKind::bf16, WeightKind::f32, WeightKind::int4};

class DecoderKernelsTest : public testing::Test {
  protected:
    void SetUp() override {
        auto made = gpu::open_vulkan_device({}, loop_.poster());
        ASSERT_TRUE(made.ok()) << made.error().message;
        device_ = std::move(*made);
    }

    // Runs a kernel once over `buffers`, given in order of binding, and returns the contents of the
    // buffers after the run.
    std::vector<Words> run(const std::string& kernel,
                           const std::vector<gpu::KernelConstant>& constants,
                           std::vector<Words> buffers, std::array<std::uint32_t, 3> workgroups) {
        gpu::PipelineId pipeline;
        bool finished = false;
        device_->create_pipeline(kernel, constants, [&](Result<gpu::PipelineId> made) {
            finished = true;
            ASSERT_TRUE(made.ok()) << made.error().message;
            pipeline = *made;
        });
        loop_.run_until(finished);

        const auto kinds = gpu::find_kernel(kernel)->bindings;
        std::vector<gpu::Binding> bindings;
        std::vector<gpu::Command> commands(1);
        std::vector<gpu::BufferId> readbacks;
        for (std::size_t i = 0; i < buffers.size(); ++i) {
            const bool uniform = kinds[i] == gpu::BindingKind::uniform;
            const std::uint64_t size_bytes = 4 * buffers[i].size();
            bindings.push_back({*device_->create_buffer(
                size_bytes, uniform ? gpu::BufferUsage::uniform : gpu::BufferUsage::storage, "b")});
            device_->write_buffer(bindings[i].buffer, 0, std::as_bytes(std::span(buffers[i])));
            if (kinds[i] != gpu::BindingKind::storage) continue;
            gpu::Command copy;
            copy.kind = gpu::Command::Kind::copy;
            copy.source = bindings[i].buffer;
            copy.target = *device_->create_buffer(size_bytes, gpu::BufferUsage::readback, "r");
            copy.size_bytes = size_bytes;
            commands.push_back(copy);
        }
        commands[0].pipeline = pipeline;
        commands[0].bind_group = *device_->create_bind_group(pipeline, bindings);
        commands[0].workgroups = workgroups;
        device_->submit(commands);

        std::size_t next = 1;
        for (std::size_t i = 0; i < buffers.size(); ++i) {
            if (kinds[i] != gpu::BindingKind::storage) continue;
            const gpu::Command& copy = commands[next++];
            bool read = false;
            device_->read_buffer(copy.target, copy.size_bytes, [&](Result<ByteView> bytes) {
                read = true;
                ASSERT_TRUE(bytes.ok());
                std::memcpy(buffers[i].data(), bytes->data(), bytes->size());
            });
            loop_.run_until(read);
            device_->destroy_buffer(copy.target);
        }
        for (const gpu::Binding& binding : bindings) device_->destroy_buffer(binding.buffer);
        return buffers;
    }

    // Returns the words of the buffer of step rows, as the CPU writes them for `rows`.
    static Words rows_buffer(std::span<const StepRow> rows, StepHeader header = {}) {
        Words words(step_header_words + 4 * rows.size());
        std::memcpy(words.data(), &header, sizeof header);
        std::memcpy(words.data() + step_header_words, rows.data(), rows.size_bytes());
        return words;
    }

    test::PostedLoop loop_;
    std::unique_ptr<gpu::Device> device_;
};

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

// The kernels of a layer with a gated delta rule, at odd sizes.
class DeltaKernelsTest : public DecoderKernelsTest {
  protected:
    static constexpr std::uint32_t key_heads = 2, value_heads = 4, key_dim = 24, value_dim = 72,
                                   taps = 4, num_rows = 11, keys = key_heads * key_dim,
                                   values = value_heads * value_dim, channels = 2 * keys + values,
                                   stride = channels + values;
    struct Outputs {
        Floats mixed, ruled, gated;
    };
    static Floats part(const Floats& all, std::size_t width, std::uint32_t first,
                       std::uint32_t count) {
        return Floats(all.begin() + static_cast<std::ptrdiff_t>(first * width),
                      all.begin() + static_cast<std::ptrdiff_t>((first + count) * width));
    }
    static void add(Floats& to, const Words& words) {
        const Floats more = floats_of(words);
        to.insert(to.end(), more.begin(), more.end());
    }

    // Columns of a head's matrix in a workgroup of delta_rule.
    static constexpr std::uint32_t key_rows = gpu::kernels::delta_rule::key_rows,
                                   columns = gpu::kernels::delta_rule::threads /
                                             ((key_dim + key_rows - 1) / key_rows);

    // Computes all rows, `at_once` rows a step.
    Outputs run_in_steps(std::uint32_t at_once) {
        Outputs outputs;
        // what an earlier text left must not matter
        Words inputs_before = words_of(random_floats((taps - 1) * channels, 7)),
              state = words_of(random_floats(value_heads * key_dim * value_dim, 8));
        for (std::uint32_t first = 0, count = 0; first < num_rows; first += count) {
            count = std::min(at_once, num_rows - first);
            std::vector<StepRow> rows;
            for (std::uint32_t i = 0; i < count; ++i) rows.push_back({0, first + i});
            const Words header = rows_buffer(rows, {.num_rows = count}),
                        in = words_of(part(inputs, stride, first, count));
            auto left = run("delta_conv",
                            {{"channels", channels}, {"taps", taps}, {"input_stride", stride}},
                            {header, in, words_of(weights), inputs_before, Words(count * channels)},
                            {(channels + 63) / 64, 1, 1});
            inputs_before = left[3];
            const Words mixed = left[4];
            left = run("delta_rule",
                       {{"key_heads", key_heads},
                        {"value_heads", value_heads},
                        {"key_dim", key_dim},
                        {"value_dim", value_dim}},
                       {header, mixed, words_of(part(gates, 2 * value_heads, first, count)),
                        words_of(a_log), words_of(dt_bias), state, Words(count * values)},
                       {value_heads, (value_dim + columns - 1) / columns, 1});
            state = left[5];
            add(outputs.mixed, mixed);
            add(outputs.ruled, left[6]);
            add(outputs.gated, run("delta_gate",
                                   {{"value_heads", value_heads},
                                    {"value_dim", value_dim},
                                    {"input_stride", stride},
                                    {"z_at", channels},
                                    {"transposes", 0},
                                    {"epsilon_bits", std::bit_cast<std::uint32_t>(1e-6f)}},
                                   {left[6], in, words_of(norm), Words(count * values)},
                                   {value_heads, count, 1})[3]);
        }
        return outputs;
    }

    const Floats inputs = random_floats(num_rows * stride, 1),
                 weights = random_floats(channels * taps, 2, 0.5f),
                 gates = random_floats(num_rows * 2 * value_heads, 3),
                 a_log = random_floats(value_heads, 4, 0.5f),
                 dt_bias = random_floats(value_heads, 5), norm = random_floats(value_dim, 6);
};

TEST_F(DeltaKernelsTest, TheyAgreeWithDouble) {
    const Outputs found = run_in_steps(num_rows);
    Floats conv_in;
    for (std::uint32_t row = 0; row < num_rows; ++row) {
        const Floats one = part(inputs, stride, row, 1);
        conv_in.insert(conv_in.end(), one.begin(), one.begin() + channels);
    }
    EXPECT_LE(normalized_rms_error(found.mixed, test::delta_conv(conv_in, weights, channels)),
              1e-6);
    for (std::uint32_t head = 0; head < value_heads; ++head) {
        test::Doubles s(key_dim * value_dim);
        const std::uint32_t key_at = head / (value_heads / key_heads) * key_dim;
        for (std::uint32_t row = 0; row < num_rows; ++row) {
            const auto of_row = std::span(found.mixed).subspan(row * channels, channels);
            const double a = gates[(2 * row + 1) * value_heads + head] + dt_bias[head],
                         b = gates[2 * row * value_heads + head];
            const auto wanted = test::delta_rule(
                s, of_row.subspan(key_at, key_dim), of_row.subspan(keys + key_at, key_dim),
                of_row.subspan(2 * keys + head * value_dim, value_dim),
                -std::exp(double{a_log[head]}) * std::log1p(std::exp(a)), 1 / (1 + std::exp(-b)));
            const std::size_t at = (row * value_heads + head) * value_dim;
            const auto mine = std::span(found.ruled).subspan(at, value_dim);
            EXPECT_LE(normalized_rms_error(mine, wanted), 1e-5);
            const auto z = std::span(inputs).subspan(row * stride + channels + head * value_dim,
                                                     value_dim);
            EXPECT_LE(normalized_rms_error(std::span(found.gated).subspan(at, value_dim),
                                           test::delta_gate(mine, norm, z, 1e-6)),
                      1e-6);
        }
    }
}

TEST_F(DeltaKernelsTest, StepsOfAnySizeGiveTheSameBits) {
    const Outputs wanted = run_in_steps(num_rows);
    for (const std::uint32_t at_once : {1u, 6u}) {
        const Outputs found = run_in_steps(at_once);
        EXPECT_EQ(found.ruled, wanted.ruled) << at_once;
        EXPECT_EQ(found.gated, wanted.gated) << at_once;
    }
}

// The forms for several sequences, with what the sequences remember: 6 slots and 3 journals.
class DeltaRunsTest : public DeltaKernelsTest {
  protected:
    // Computes a pass of `runs`, whose rows are the given positions of the text. Returns the
    // outputs of the rows.
    Floats pass(std::vector<DeltaRun> runs, std::span<const std::uint32_t> positions) {
        const auto count = static_cast<std::uint32_t>(positions.size());
        Floats of_inputs, of_gates;
        for (const std::uint32_t position : positions) {
            add(of_inputs, words_of(part(inputs, stride, position, 1)));
            add(of_gates, words_of(part(gates, 2 * value_heads, position, 1)));
        }
        std::uint32_t num_mixed = 0;
        for (DeltaRun& run : runs) {
            run.mixed_at = num_mixed;
            num_mixed += run.num_replayed + run.num_rows;
        }
        const auto* const first = reinterpret_cast<const std::uint32_t*>(runs.data());
        const Words order(first, first + runs.size() * sizeof(DeltaRun) / 4);
        const auto num_runs = static_cast<std::uint32_t>(runs.size());
        auto left = run("delta_conv_runs",
                        {{"channels", channels},
                         {"taps", taps},
                         {"input_stride", stride},
                         {"value_heads", value_heads}},
                        {order, words_of(of_inputs), words_of(weights), slot_columns,
                         Words(num_mixed * channels), journal},
                        {(channels + 63) / 64, num_runs, 1});
        slot_columns = left[3];
        journal = left[5];
        const Words mixed = left[4];
        left = run("delta_rule_runs",
                   {{"key_heads", key_heads},
                    {"value_heads", value_heads},
                    {"key_dim", key_dim},
                    {"value_dim", value_dim}},
                   {order, mixed, words_of(of_gates), words_of(a_log), words_of(dt_bias), states,
                    Words(count * values), journal},
                   {value_heads, (value_dim + columns - 1) / columns, num_runs});
        states = left[5];
        journal = left[7];
        return floats_of(left[6]);
    }
    static Floats row(const Floats& ruled, std::uint32_t index) {
        return part(ruled, values, index, 1);
    }

    static constexpr std::uint32_t slots = 6, journals = 3;
    Words slot_columns = words_of(random_floats(slots * (taps - 1) * channels, 9)),
          states = words_of(random_floats(slots * value_heads * key_dim * value_dim, 10)),
          journal = words_of(
              random_floats(journals * DeltaRun::journal_rows * (channels + 2 * value_heads), 11));
};

// One text is computed in passes with rows that are rolled back, and beside it the same text whose
// last row is apart from the others. A third one goes on from the state at position 2.
TEST_F(DeltaRunsTest, RunsGiveTheBitsOfASingleSequence) {
    const Floats wanted = run_in_steps(num_rows).ruled;
    const std::uint32_t begin[] = {0, 1, 2, 3, 4, 3, 0, 1, 2};
    Floats found = pass({{.to_slots = {4, 1}, .store_after = {5, 2}, .num_rows = 5, .num_first = 5},
                         {.to_slots = {0, DeltaRun::no_slot},
                          .store_after = {4, 0},
                          .journal = 1,
                          .num_rows = 4,
                          .first_row = 6,
                          .num_first = 3,
                          .next_row = 5}},
                        begin);
    for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(row(found, i), row(wanted, i)) << i;
    for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(row(found, 6 + i), row(wanted, i)) << i;
    EXPECT_EQ(row(found, 5), row(wanted, 3));

    // Rows 5 and 6 are right, and then there is a wrong one.
    const std::uint32_t drafted[] = {5, 6, 3, 2};
    found = pass({{.from_slot = 4,
                   .journal = 2,
                   .position = 5,
                   .num_rows = 3,
                   .num_first = 3,
                   .keeps_rows = 1},
                  {.from_slot = 1, .position = 2, .num_rows = 1, .first_row = 3, .num_first = 1}},
                 drafted);
    EXPECT_EQ(row(found, 0), row(wanted, 5));
    EXPECT_EQ(row(found, 1), row(wanted, 6));
    EXPECT_NE(row(found, 2), row(wanted, 7));
    EXPECT_EQ(row(found, 3), row(wanted, 2));

    const std::uint32_t rest[] = {7, 8, 9};
    found = pass({{.from_slot = 4,
                   .to_slots = {2, 3},
                   .store_after = {2, 1},
                   .journal = 2,
                   .position = 5,
                   .num_replayed = 2,
                   .num_rows = 3,
                   .num_first = 3,
                   .keeps_rows = 1}},
                 rest);
    for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(row(found, i), row(wanted, 7 + i)) << i;

    // Slot 2 has the state before row 7; three rows are in the journal behind it.
    const std::uint32_t last[] = {10, 6};
    found = pass({{.from_slot = 2,
                   .to_slots = {4, DeltaRun::no_slot},
                   .store_after = {4, 0},
                   .journal = 2,
                   .position = 7,
                   .num_replayed = 3,
                   .num_rows = 1,
                   .num_first = 1},
                  {.from_slot = 3, .position = 6, .num_rows = 1, .first_row = 1, .num_first = 1}},
                 last);
    EXPECT_EQ(row(found, 0), row(wanted, 10));
    EXPECT_EQ(row(found, 1), row(wanted, 6));
}

TEST_F(DecoderKernelsTest, KeptInputsOfADeltaRuleAreRoundedToHalves) {
    constexpr std::uint32_t channels = 150, value_heads = 4, stride = 170, num_rows = 3,
                            kept = channels + 2 * value_heads;
    Floats inputs = random_floats(stride * num_rows, 1, 30.0f);
    const Floats gates = random_floats(2 * value_heads * num_rows, 2);
    inputs[5] = 1e6f;
    inputs[stride + 7] = -1e9f;
    const Words found = run(
        "delta_kept",
        {{"channels", channels}, {"value_heads", value_heads}, {"input_stride", stride}},
        {words_of(inputs), words_of(gates), Words(num_rows * kept / 2)}, {2, num_rows, 1})[2];
    for (std::uint32_t row = 0; row < num_rows; ++row)
        for (std::uint32_t i = 0; i < kept; ++i) {
            const float value = i < channels ? inputs[row * stride + i]
                                             : gates[row * 2 * value_heads + i - channels];
            const half wanted = float_to_half(std::clamp(value, -65504.0f, 65504.0f));
            const std::uint32_t word = found[(row * kept + i) / 2];
            ASSERT_EQ(i % 2 == 0 ? word & 0xffff : word >> 16, std::uint32_t{wanted})
                << row << ' ' << i;
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

// Decodes the codes that rope_store_u8 wrote for one token of one head. `slot`: the number of the
// head, counted over the heads of keys and then those of values.
struct StoredHead {
    float scale = 0, zero = 0;
    Floats values;
};
StoredHead stored_head(const Words& kv, std::uint32_t kv_heads, std::uint32_t head_dim,
                       std::uint32_t page, std::uint32_t slot, std::uint32_t token) {
    const std::uint32_t quads = head_dim / 4, heads = 2 * kv_heads,
                        base = page * heads * kv_page_tokens * (quads + 1),
                        scale_zero = kv[base + (heads * quads + slot) * kv_page_tokens + token];
    StoredHead head{half_to_float(static_cast<half>(scale_zero & 0xffff)),
                    half_to_float(static_cast<half>(scale_zero >> 16)),
                    {}};
    for (std::uint32_t d = 0; d < head_dim; ++d) {
        const std::uint32_t at = slot < kv_heads ? d / 4 * kv_page_tokens + token
                                                 : token * quads + d / 4,
                            code = kv[base + slot * kv_page_tokens * quads + at] >> 8 * (d % 4) &
                                   255;
        head.values.push_back(std::fma(static_cast<float>(code), head.scale, head.zero));
    }
    return head;
}

// Compares the u8 codes with those of the reference function. The attention is then compared with a
// reference that uses these codes.
Floats checked_codes(const StoredHead& mine, const test::Doubles& wanted) {
    const test::CodedHead twin = test::code_head(wanted);
    EXPECT_NEAR(mine.zero, twin.zero, 1e-3 * std::abs(twin.zero));
    EXPECT_NEAR(mine.scale, twin.scale, 1e-3 * twin.scale);
    const double f16_step = std::abs(twin.zero) / 1024;
    for (std::size_t d = 0; d < wanted.size(); ++d) {
        EXPECT_NEAR(mine.values[d], twin.values[d], 1.01 * twin.scale + f16_step);
        EXPECT_NEAR(mine.values[d], wanted[d], 0.6 * twin.scale + f16_step);
    }
    return mine.values;
}

// Returns the table of rotation angles: for each position first all cosines, then all sines.
Floats angles(std::uint32_t positions, std::uint32_t head_dim, double theta) {
    Floats cos_sin(positions * head_dim);
    for (std::uint32_t p = 0; p < positions; ++p)
        for (std::uint32_t i = 0; i < head_dim / 2; ++i) {
            const double angle = p * std::pow(theta, -2.0 * i / head_dim);
            cos_sin[p * head_dim + i] = static_cast<float>(std::cos(angle));
            cos_sin[p * head_dim + head_dim / 2 + i] = static_cast<float>(std::sin(angle));
        }
    return cos_sin;
}

class AttentionKernelsTest : public DecoderKernelsTest, public testing::WithParamInterface<KvKind> {
  protected:
    static std::string suffix() {
        return GetParam() == KvKind::f16 ? "_f16" : GetParam() == KvKind::u8 ? "_u8" : "";
    }
    // Returns the number of words that one head takes for one token. head_dim is even, and a
    // multiple of 4 for u8 codes.
    static std::size_t head_words(std::uint32_t head_dim) {
        return GetParam() == KvKind::f32   ? head_dim
               : GetParam() == KvKind::f16 ? head_dim / 2
                                           : head_dim / 4 + 1;
    }
};
INSTANTIATE_TEST_SUITE_P(Kv, AttentionKernelsTest,
                         testing::Values(KvKind::f32, KvKind::f16, KvKind::u8));

// Returns the constants of rope_store with norms of q and k, and of attend_page.
std::vector<gpu::KernelConstant> store_constants(std::uint32_t heads, std::uint32_t kv_heads,
                                                 std::uint32_t head_dim, std::uint32_t rotary,
                                                 std::uint32_t norms_all_heads) {
    return {{"num_heads", heads},
            {"num_kv_heads", kv_heads},
            {"head_dim", head_dim},
            {"rotary_size", rotary},
            {"has_qk_norm", 1},
            {"norms_all_heads", norms_all_heads},
            {"epsilon_bits", std::bit_cast<std::uint32_t>(1e-6f)}};
}
std::vector<gpu::KernelConstant> attend_constants(std::uint32_t heads, std::uint32_t kv_heads,
                                                  std::uint32_t head_dim, std::uint32_t window,
                                                  float scale) {
    return {{"num_heads", heads},
            {"num_kv_heads", kv_heads},
            {"head_dim", head_dim},
            {"window", window},
            {"scale_bits", std::bit_cast<std::uint32_t>(scale)}};
}

// Stores 131 positions with rope_store in two pages of the cache, the second page first, and then
// computes the attention over all positions.
TEST_P(AttentionKernelsTest, AttentionOverPagesAgreesWithDouble) {
    constexpr std::uint32_t heads = 20, kv_heads = 2, head_dim = 36, positions = 131, pages = 2,
                            slots = heads + 2 * kv_heads;
    constexpr double theta = 10000;
    const Floats qkv = random_floats(positions * slots * head_dim, 8),
                 norms = random_floats(2 * head_dim, 9);
    std::vector<StepRow> rows;
    for (std::uint32_t p = 0; p < positions; ++p) rows.push_back({0, p, 1});
    const Floats cos_sin = angles(pages * kv_page_tokens, head_dim, theta);
    const Words page_table = {9, 1, 0};
    const auto stored = run("rope_store" + suffix(),
                            store_constants(heads, kv_heads, head_dim, head_dim, 0),
                            {rows_buffer(rows), words_of(qkv), words_of(norms), words_of(cos_sin),
                             page_table, Words(positions * heads * head_dim),
                             Words(pages * 2 * kv_heads * kv_page_tokens * head_words(head_dim))},
                            {slots, positions, 1});
    const auto attended = run(
        "attend_page" + suffix(), attend_constants(heads, kv_heads, head_dim, 0, 0),
        {rows_buffer(rows, {.part_pages = pages}), page_table, stored[5], stored[6],
         Words(positions * heads * pages * head_dim), Words(positions * heads * pages * 2)},
        {kv_heads * 2, pages, positions});
    const Floats out = floats_of(
        run("attend_merge",
            {{"num_heads", heads}, {"head_dim", head_dim}, {"transposes", 0}, {"window", 0}},
            {rows_buffer(rows, {.part_pages = pages}), attended[4], attended[5],
             Words(positions * heads * head_dim)},
            {heads, positions, 1})[3]);

    const auto head_of = [&](std::uint32_t row, std::uint32_t slot) {
        return std::span(qkv).subspan((row * slots + slot) * head_dim, head_dim);
    };
    const Floats q_stored = floats_of(stored[5]);
    for (const std::uint32_t row : {0u, 127u, 130u})
        for (const std::uint32_t head : {0u, 9u, 19u}) {
            const auto turned = test::rope(head_of(row, head), std::span(norms).first(head_dim),
                                           1e-6, row, theta);
            EXPECT_LE(
                normalized_rms_error(
                    std::span(q_stored).subspan((row * heads + head) * head_dim, head_dim), turned),
                1e-6);

            Floats k, v;
            const std::uint32_t kv_head = head / (heads / kv_heads);
            const auto add = [&](Floats& to, std::uint32_t p, std::uint32_t slot,
                                 const test::Doubles& wanted) {
                const Floats held = GetParam() != KvKind::u8
                                        ? Floats(wanted.begin(), wanted.end())
                                        : checked_codes(
                                              stored_head(stored[6], kv_heads, head_dim,
                                                          page_table[1 + p / kv_page_tokens], slot,
                                                          p % kv_page_tokens),
                                              wanted);
                to.insert(to.end(), held.begin(), held.end());
            };
            for (std::uint32_t p = 0; p <= row; ++p) {
                add(k, p, kv_head,
                    test::rope(head_of(p, heads + kv_head), std::span(norms).last(head_dim), 1e-6,
                               p, theta));
                const auto value = head_of(p, heads + kv_heads + kv_head);
                add(v, p, kv_heads + kv_head, test::Doubles(value.begin(), value.end()));
            }
            const auto mine = std::span(out).subspan((row * heads + head) * head_dim, head_dim);
            const Floats q(turned.begin(), turned.end());
            EXPECT_LE(normalized_rms_error(mine, test::attend(q, k, v)),
                      GetParam() == KvKind::f16 ? 1e-3 : 1e-5)
                << "row " << row << " head " << head;
        }
}

// Returns the values that a cache of f32 or f16 has for one token of one head, by the layout of
// kv_rows.h.
Floats values_of_page(KvKind kind, std::uint32_t head_dim, std::span<const std::uint32_t> page,
                      std::uint32_t kv_heads, std::size_t head_at) {
    Words rows(page.size());
    rows_of_gpu_page({kind, 1, kv_heads, head_dim}, std::as_bytes(page),
                     std::as_writable_bytes(std::span(rows)));
    const std::size_t first = head_at * head_dim;
    if (kind == KvKind::f32) return floats_of(std::span(rows).subspan(first, head_dim));
    Floats values;
    for (std::size_t i = first; i < first + head_dim; ++i)
        values.push_back(half_to_float(static_cast<half>(rows[i / 2] >> 16 * (i % 2))));
    return values;
}

// Writes rows of f16 into two pages of the cache, the second page first, and reads them back.
TEST_P(AttentionKernelsTest, CopiedRowsAreThoseOfTheCache) {
    constexpr std::uint32_t kv_heads = 2, head_dim = 36, pages = 2, slots = 2 * kv_heads;
    const std::uint32_t positions[] = {5, 127, 130};
    std::vector<StepRow> rows;
    for (const std::uint32_t position : positions) rows.push_back({0, position, 1});
    const Words page_table = {9, 1, 0};
    std::vector<half> halves;
    for (const float value : random_floats(rows.size() * slots * head_dim, 17))
        halves.push_back(float_to_half(value));
    Words copied(halves.size() / 2);
    std::memcpy(copied.data(), halves.data(), halves.size() * sizeof(half));

    const std::vector<gpu::KernelConstant> constants = {{"num_kv_heads", kv_heads},
                                                        {"head_dim", head_dim}};
    const std::size_t page_words = slots * kv_page_tokens * head_words(head_dim);
    const Words cache = run("kv_scatter" + suffix(), constants,
                            {rows_buffer(rows), page_table, Words(pages * page_words), copied},
                            {slots, 3, 1})[2];
    const Words back = run("kv_gather" + suffix(), constants,
                           {rows_buffer(rows), page_table, cache, Words(copied.size())},
                           {slots, 3, 1})[3];
    const auto used = static_cast<std::size_t>(
        std::count_if(cache.begin(), cache.end(), [](std::uint32_t word) { return word != 0; }));
    EXPECT_LE(used, 3 * slots * head_words(head_dim)) << "other rows were written";
    if (GetParam() != KvKind::u8) EXPECT_EQ(back, copied);

    for (std::uint32_t row = 0; row < 3; ++row)
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
            const std::uint32_t page = page_table[1 + positions[row] / kv_page_tokens],
                                token = positions[row] % kv_page_tokens;
            Floats wanted, read;
            for (std::size_t at = (row * slots + slot) * head_dim; wanted.size() < head_dim; ++at) {
                wanted.push_back(half_to_float(halves[at]));
                read.push_back(half_to_float(static_cast<half>(back[at / 2] >> 16 * (at % 2))));
            }
            if (GetParam() != KvKind::u8) {
                const auto words = std::span(cache).subspan(page * page_words, page_words);
                EXPECT_EQ(values_of_page(GetParam(), head_dim, words, kv_heads,
                                         slot * kv_page_tokens + token),
                          wanted);
                continue;
            }
            Floats held = checked_codes(stored_head(cache, kv_heads, head_dim, page, slot, token),
                                        {wanted.begin(), wanted.end()});
            for (float& value : held) value = half_to_float(float_to_half(value));
            EXPECT_EQ(read, held);
        }
}

// Row 130 sees tokens of two pages, and row 199 sees none of the first page. A sink is a further
// token with that logit, whose values are zeros.
TEST_F(DecoderKernelsTest, WindowsSinksPartialRotationAndNormsOverAllHeadsAgreeWithDouble) {
    constexpr std::uint32_t heads = 4, kv_heads = 2, head_dim = 36, rotary = 24, positions = 200,
                            pages = 2, slots = heads + 2 * kv_heads, window = 60;
    constexpr double theta = 10000, scale = 0.25;
    const Floats qkv = random_floats(positions * slots * head_dim, 31),
                 norms = random_floats((heads + kv_heads) * head_dim, 32),
                 sinks = random_floats(heads, 33);
    std::vector<StepRow> rows;
    for (std::uint32_t p = 0; p < positions; ++p) rows.push_back({0, p, 0});
    const Words page_table = {0, 1};
    const auto stored = run(
        "rope_store", store_constants(heads, kv_heads, head_dim, rotary, 1),
        {rows_buffer(rows), words_of(qkv), words_of(norms),
         words_of(angles(pages * kv_page_tokens, rotary, theta)), page_table,
         Words(positions * heads * head_dim), Words(pages * 2 * kv_heads * 128 * head_dim)},
        {slots, positions, 1});
    const auto parts = run(
        "attend_page", attend_constants(heads, kv_heads, head_dim, window, scale),
        {rows_buffer(rows, {.part_pages = pages}), page_table, stored[5], stored[6],
         Words(positions * heads * pages * head_dim), Words(positions * heads * pages * 2)},
        {kv_heads, pages, positions});
    const Floats out = floats_of(
        run("attend_merge_sinks",
            {{"num_heads", heads}, {"head_dim", head_dim}, {"transposes", 0}, {"window", window}},
            {rows_buffer(rows, {.part_pages = pages}), parts[4], parts[5],
             Words(positions * heads * head_dim), words_of(sinks)},
            {heads, positions, 1})[3]);

    // Returns heads [first, first + count) of a row, normalised together, and each rotated.
    const auto turned = [&](std::uint32_t row, std::uint32_t first, std::uint32_t count) {
        const auto of_row = std::span(qkv).subspan((row * slots + first) * head_dim,
                                                   count * head_dim);
        test::Doubles all(of_row.begin(), of_row.end());
        all = test::add_norm(all, {}, std::span(norms).subspan(first * head_dim, count * head_dim),
                             1e-6);
        for (std::uint32_t head = 0; head < count; ++head) {
            const auto begin = all.begin() + head * head_dim;
            const Floats plain(begin, begin + rotary);
            const auto moved = test::rope(plain, {}, 1e-6, row, theta);
            std::copy(moved.begin(), moved.end(), begin);
        }
        return Floats(all.begin(), all.end());
    };
    for (const std::uint32_t row : {5u, 130u, 199u})
        for (std::uint32_t head = 0; head < heads; ++head) {
            const std::uint32_t kv_head = head / (heads / kv_heads);
            const Floats all_q = turned(row, 0, heads);
            Floats q(all_q.begin() + head * head_dim, all_q.begin() + (head + 1) * head_dim), k, v;
            double length = 0;
            for (float& value : q) {
                value *= static_cast<float>(scale * std::sqrt(head_dim));
                length += double{value} * value;
            }
            for (std::uint32_t p = row < window ? 0 : row + 1 - window; p <= row; ++p) {
                const Floats keys = turned(p, heads, kv_heads);
                k.insert(k.end(), keys.begin() + kv_head * head_dim,
                         keys.begin() + (kv_head + 1) * head_dim);
                const auto values = std::span(qkv).subspan(
                    (p * slots + heads + kv_heads + kv_head) * head_dim, head_dim);
                v.insert(v.end(), values.begin(), values.end());
            }
            for (const float value : q)
                k.push_back(static_cast<float>(sinks[head] * std::sqrt(head_dim) * value / length));
            v.resize(k.size());
            const auto mine = std::span(out).subspan((row * heads + head) * head_dim, head_dim);
            EXPECT_LE(normalized_rms_error(mine, test::attend(q, k, v)), 1e-5)
                << "row " << row << " head " << head;
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
}  // namespace moex
