// Compares the answers of the kernels on a real Vulkan device (lavapipe if there is no GPU) with a
// reference in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "protocol/expert_reference.h"
#include "tests/support/posted_loop.h"
#include "tests/web-worker/kernel_cases.h"
#include "web-worker/gpu/round_layout.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {
namespace {

class KernelsTest : public testing::Test {
  protected:
    void SetUp() override {
        auto made = gpu::open_vulkan_device({}, loop.poster());
        ASSERT_TRUE(made.ok()) << made.error().message;
        device = std::move(*made);
        ASSERT_EQ(device->adapter().backend, "vulkan");
        std::printf("adapter: %s\n", device->adapter().description.c_str());
    }
    template <class Value>
    Result<Value> wait(const std::function<void(std::function<void(Result<Value>)>)>& start) {
        bool finished = false;
        Result<Value> result = Error{ErrorCode::internal, "no answer"};
        start([&](Result<Value> answer) {
            result = std::move(answer);
            finished = true;
        });
        loop.run_until(finished);
        return result;
    }
    test::PostedLoop loop;
    std::unique_ptr<gpu::Device> device;
};

TEST_F(KernelsTest, EveryShapeSizeAndDtypeAgreesWithDouble) {
    double worst[6] = {};
    const std::vector<KernelCase> cases = kernel_cases(true);
    // Run only cases with this text in their name.
    const char* only = std::getenv("MOEX_KERNEL_CASES");
    for (const KernelCase& one : cases) {
        if (only && kernel_case_name(one).find(only) == std::string::npos) continue;
        if (std::getenv("MOEX_VERBOSE"))
            std::fprintf(stderr, "%s\n", kernel_case_name(one).c_str());

        const auto error = wait<double>([&](auto done) { run_kernel_case(*device, one, done); });
        ASSERT_TRUE(error.ok()) << kernel_case_name(one) << ": " << error.error().message;
        EXPECT_LE(*error, kernel_tolerance(one)) << kernel_case_name(one);

        if (!one.bits)
            worst[static_cast<int>(one.dtype)] = std::max(worst[static_cast<int>(one.dtype)],
                                                          *error);
    }
    std::printf(
        "%zu cases; largest normalised RMS error: f32 %.2g, f16 %.2g, bf16 %.2g, int8 %.2g\n",
        cases.size(), worst[5], worst[1], worst[2], worst[3]);
}

constexpr std::uint32_t wire_hidden = 64;

// Returns rows to encode: ordinary rows, and rows that are hard to convert to a wire dtype.
std::vector<std::vector<float>> rows_to_pack() {
    std::vector<std::vector<float>> rows;
    const auto add = [&](const std::function<float(std::uint32_t)>& value) {
        rows.emplace_back();
        for (std::uint32_t i = 0; i < wire_hidden; ++i) rows.back().push_back(value(i));
    };
    for (const float peak :
         {1.0f, 127.0f, 3e-3f, 7.3e4f, 1e-30f, 2e36f, 1.0000001f, 0.33333334f, 12345.678f})
        add([&](std::uint32_t i) {
            return peak *
                   (i == 5 ? 1.0f
                           : 0.0157f * static_cast<float>(static_cast<int>(i * 7919 % 127) - 63));
        });

    // Values halfway between two int8 codes (ties), with a step of 1.
    add([](std::uint32_t i) { return i == 0 ? 127.0f : static_cast<float>(i) - 31.5f; });
    // Values halfway between two int8 codes (ties), with a step of 2.
    add([](std::uint32_t i) { return i == 0 ? -254.0f : 2.0f * static_cast<float>(i) + 1; });
    add([](std::uint32_t) { return 0.0f; });
    // A row with an int8 scale that would be subnormal.
    add([](std::uint32_t i) { return i % 2 ? 1.4e-36f : -1e-37f; });
    // A row with subnormal values.
    add([](std::uint32_t i) { return i % 3 ? 1e-40f : 0.0f; });
    add([](std::uint32_t i) { return i == 7 ? std::numeric_limits<float>::infinity() : 1.0f; });
    add([](std::uint32_t i) { return i == 9 ? std::numeric_limits<float>::quiet_NaN() : 1.0f; });
    return rows;
}

// Returns the words that pack_rows reads before its rows, for one answer per pair.
std::vector<std::uint32_t> pack_tables(Dtype dtype, std::uint32_t num_rows) {
    gpu::RoundHeader header;
    header.num_tokens = header.num_answers = num_rows;
    header.dtype = static_cast<std::uint32_t>(dtype);
    header.answer_starts_word = gpu::round_header_words;
    header.answer_pairs_word = header.answer_starts_word + num_rows + 1;

    std::vector<std::uint32_t> words(header.answer_pairs_word + 4 * num_rows);
    std::memcpy(words.data(), &header, sizeof header);
    for (std::uint32_t i = 0; i <= num_rows; ++i) words[header.answer_starts_word + i] = i;
    for (std::uint32_t i = 0; i < num_rows; ++i) words[header.answer_pairs_word + 4 * i + 1] = i;
    return words;
}

// Compares a packed row of f16 or bf16 with encode_rows() bit by bit.
void expect_half_row(Dtype dtype, std::span<const float> values, std::uint32_t row, ByteView wire,
                     ByteView twin) {
    for (std::uint32_t i = 0; i < wire_hidden; ++i) {
        // For subnormal values a zero is accepted, too, since the GPU may flush them to zero.
        if (std::isnan(values[i]) || (std::fabs(values[i]) < 1e-38f && dtype == Dtype::bf16))
            continue;
        const std::size_t at = 2 * (row * std::size_t{wire_hidden} + i);
        EXPECT_TRUE(wire[at] == twin[at] && wire[at + 1] == twin[at + 1])
            << dtype_name(dtype) << " row " << row << " value " << values[i];
    }
}

// Compares a packed int8 row: each value may differ by half a step, plus 2^-12 of a step for the
// GPU's division.
void expect_int8_row(std::span<const float> values, std::uint32_t row, std::uint32_t num_rows,
                     ByteView wire, ByteView twin) {
    float scale, twin_scale;
    std::memcpy(&scale, wire.data() + num_rows * wire_hidden + 4 * row, 4);
    std::memcpy(&twin_scale, twin.data() + num_rows * wire_hidden + 4 * row, 4);
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
        EXPECT_FALSE(std::isfinite(scale)) << "row " << row;
        return;
    }

    EXPECT_NEAR(scale, twin_scale, twin_scale * 1e-6) << "row " << row;
    for (std::uint32_t i = 0; i < wire_hidden; ++i) {
        const auto code = static_cast<std::int8_t>(wire[row * std::size_t{wire_hidden} + i]);
        if (twin_scale == 0)
            EXPECT_EQ(code, 0) << "row " << row;
        else
            EXPECT_LE(std::fabs(code * double{scale} - values[i]), scale * (0.5 + 0x1p-12))
                << "row " << row << " value " << values[i];
    }
}

// Compares the kernel pack_rows, run by itself, with encode_rows().
TEST_F(KernelsTest, RowsInWireFormAreThoseOfTheTwin) {
    const std::vector<std::vector<float>> rows = rows_to_pack();
    std::vector<float> values;
    for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
    const auto num_rows = static_cast<std::uint32_t>(rows.size());

    const gpu::KernelConstant constants[] = {
        {"hidden_size", wire_hidden},   {"moe_intermediate_size", 0}, {"chunks_per_group_log2", 0},
        {"gate_up_scale_zero_word", 0}, {"down_codes_word", 0},       {"down_scale_zero_word", 0}};
    const auto pipeline = wait<gpu::PipelineId>(
        [&](auto done) { device->create_pipeline("pack_rows", constants, done); });
    ASSERT_TRUE(pipeline.ok());

    const auto buffer = [&](std::uint64_t size_bytes, gpu::BufferUsage usage, const char* label) {
        return *device->create_buffer(size_bytes, usage, label);
    };
    const gpu::BufferId upload = buffer(4096, gpu::BufferUsage::storage, "upload");
    const gpu::BufferId y_pairs = buffer(values.size() * 4, gpu::BufferUsage::storage, "y_pairs");
    const gpu::BufferId y_wire = buffer(values.size() * 4, gpu::BufferUsage::storage, "y_wire");
    const gpu::BufferId readback = buffer(values.size() * 4, gpu::BufferUsage::readback,
                                          "readback");
    device->write_buffer(y_pairs, 0, std::as_bytes(std::span(values)));
    const gpu::Binding bindings[] = {{upload}, {y_pairs}, {y_wire}};
    const gpu::BindGroupId group = *device->create_bind_group(*pipeline, bindings);

    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::int8}) {
        const std::vector<std::uint32_t> tables = pack_tables(dtype, num_rows);
        device->write_buffer(upload, 0, std::as_bytes(std::span(tables)));

        gpu::Command run, copy;
        run.pipeline = *pipeline;
        run.bind_group = group;
        run.workgroups = {1, num_rows, 1};  // the 64 columns of a row fit into one workgroup
        copy.kind = gpu::Command::Kind::copy;
        copy.source = y_wire;
        copy.target = readback;
        copy.size_bytes = wire_rows_bytes(dtype, num_rows, wire_hidden);
        const gpu::Command commands[] = {run, copy};
        device->submit(commands);

        Bytes wire;
        const auto read = wait<int>([&](auto done) {
            device->read_buffer(readback, copy.size_bytes, [&wire, done](Result<ByteView> bytes) {
                if (bytes.ok()) wire.assign(bytes->begin(), bytes->end());
                done(0);
            });
        });
        ASSERT_TRUE(read.ok());
        ASSERT_EQ(wire.size(), copy.size_bytes);

        Bytes twin(wire.size());
        encode_rows(dtype, values, wire_hidden, twin);
        for (std::uint32_t row = 0; row < num_rows; ++row) {
            if (dtype == Dtype::int8)
                expect_int8_row(rows[row], row, num_rows, wire, twin);
            else
                expect_half_row(dtype, rows[row], row, wire, twin);
        }
    }
}

TEST_F(KernelsTest, SelfTestPasses) {
    for (const ExpertForm form :
         {ExpertForm::plain, ExpertForm::clamped, ExpertForm::mxfp4, ExpertForm::mxfp4_clamped}) {
        const auto error = wait<double>(
            [&](auto done) { ExpertRunner::self_test(*device, form, done); });
        ASSERT_TRUE(error.ok()) << error.error().message;
        EXPECT_LE(*error, 1e-6);
    }
}

// Makes a group of rows of 384 values; all of `experts` compute each row.
GroupDispatchView group_of(std::initializer_list<std::uint16_t> experts, std::uint32_t num_tokens,
                           std::span<const float> x) {
    GroupDispatchView group;
    group.shape = {.layer = 0,
                   .num_tokens = num_tokens,
                   .hidden_dim = 384,
                   .dtype = Dtype::f32,
                   .unsummed = true,
                   .num_pairs = static_cast<std::uint32_t>(experts.size()) * num_tokens,
                   .num_experts = static_cast<std::uint16_t>(experts.size())};

    for (const std::uint16_t expert : experts) {
        group.experts.push_back({expert, static_cast<std::uint16_t>(num_tokens)});
        for (std::uint32_t row = 0; row < num_tokens; ++row) {
            group.rows.push_back(static_cast<std::uint16_t>(row));
            group.gates.push_back(float_to_half(0.75f));
        }
    }
    group.x_bytes = std::as_bytes(x.first(num_tokens * std::size_t{384}));
    return group;
}

Bytes blob_of(const ExpertShape& shape) {
    ExpertWeights weights{.shape = shape};
    for (auto* matrix : {&weights.gate, &weights.up, &weights.down})
        for (std::uint32_t i = 0; i < shape.hidden_size * shape.moe_intermediate_size; ++i)
            matrix->push_back(0.01f * static_cast<float>(static_cast<int>(i * 7919 % 201) - 100));
    return quantize_expert(weights);
}

// After the first round, a round of any size creates no GPU object, submits once and reads once. A
// row has the same bits alone and together with other rows.
TEST_F(KernelsTest, RoundsCreateNothingAndABatchedRowIsBitEqualToASingleOne) {
    const ExpertShape shape{384, 256, 128};
    const Bytes blob = blob_of(shape);
    ExpertStore store(*device, blob.size(), 4 * blob.size());
    ASSERT_TRUE(store.reserve(2).ok());
    ASSERT_TRUE(store.put(Unit{0, 1}, blob).ok());
    ASSERT_TRUE(store.put(Unit{0, 4}, blob).ok());

    WireLimits limits{.hidden_size = 384,
                      .num_layers = 1,
                      .num_experts = 8,
                      .num_tokens_max = 64,
                      .num_pairs_max = 128};
    ExpertRunner runner(*device, store, {.limits = limits, .shape = shape});
    bool finished = false;
    runner.create([&](Status made) {
        EXPECT_TRUE(made.ok());
        finished = true;
    });
    loop.run_until(finished);

    std::vector<float> x(64 * 384);
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = 0.01f * static_cast<float>(static_cast<int>(i * 104729 % 301) - 150);
    const auto round = [&](std::uint32_t num_tokens) {
        Bytes y;
        bool answered = false;
        const Status started = runner.run_group(group_of({1, 4}, num_tokens, x),
                                                [&](Result<ByteView> bytes) {
                                                    EXPECT_TRUE(bytes.ok());
                                                    if (bytes.ok())
                                                        y.assign(bytes->begin(), bytes->end());
                                                    answered = true;
                                                });
        EXPECT_TRUE(started.ok());
        loop.run_until(answered);
        return y;
    };

    const Bytes alone = round(1);
    const gpu::DeviceCounters warm = device->counters();
    for (const std::uint32_t num_tokens : {1u, 3u, 64u, 17u, 2u}) {
        const Bytes together = round(num_tokens);
        EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + 384 * 4, together.begin()))
            << num_tokens << " rows";
    }

    const gpu::DeviceCounters after = device->counters();
    EXPECT_EQ(after.submits - warm.submits, 5u);
    EXPECT_EQ(after.readbacks - warm.readbacks, 5u);
    EXPECT_EQ(after.buffer_writes - warm.buffer_writes, 5u);
    EXPECT_EQ(after.buffers_created, warm.buffers_created);
    EXPECT_EQ(after.bind_groups_created, warm.bind_groups_created);
    EXPECT_EQ(after.pipelines_created, warm.pipelines_created);

    const Status refused = runner.run_group(group_of({7}, 1, x), [](Result<ByteView>) { FAIL(); });
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::unknown_expert);
}

}  // namespace
}  // namespace moex
