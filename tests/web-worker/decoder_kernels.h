// Runs the decoder's kernels one by one on a real Vulkan device (lavapipe if there is no GPU): the
// fixture and the weights that the tests of kernels share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "protocol/expert_reference.h"
#include "tests/support/posted_loop.h"
#include "web-worker/decoder/decoder_model.h"
#include "web-worker/decoder/step_rows.h"
#include "web-worker/gpu/kernel_source.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex::test {

using Floats = std::vector<float>;
using Words = std::vector<std::uint32_t>;

inline Floats random_floats(std::size_t count, std::uint32_t seed, float scale = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, scale);
    Floats values(count);
    for (float& value : values) value = normal(random);
    return values;
}
inline Words words_of(std::span<const float> values) {
    Words words(values.size());
    std::memcpy(words.data(), values.data(), values.size_bytes());
    return words;
}
inline Floats floats_of(std::span<const std::uint32_t> words) {
    Floats values(words.size());
    std::memcpy(values.data(), words.data(), words.size_bytes());
    return values;
}
// Returns the row in the order in which the lanes of INT4 kernels read it: quad q of chunk c is
// stored at q * chunks + c.
inline Floats transposed(std::span<const float> row) {
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
inline Held held(WeightKind kind, Floats values, std::uint32_t group) {
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
inline const char* name_of(WeightKind kind) {
    return kind == WeightKind::bf16    ? "bf16"
           : kind == WeightKind::f32   ? "f32"
           : kind == WeightKind::mxfp4 ? "mxfp4"
                                       : "int4";
}
inline constexpr std::uint32_t one_bits = std::bit_cast<std::uint32_t>(1.0f);
inline constexpr WeightKind every_kind[] = {WeightKind::bf16, WeightKind::f32, WeightKind::int4};

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

}  // namespace moex::test
