// Compares the kernels of gated delta rules with reference functions in double (decoder_twins.h),
// at odd sizes, and their results for several sequences with those of one.
#include "kernels_constants.h"
#include "tests/web-worker/decoder_kernels.h"
#include "tests/web-worker/decoder_twins.h"

namespace moex::test {
namespace {

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

}  // namespace
}  // namespace moex::test
