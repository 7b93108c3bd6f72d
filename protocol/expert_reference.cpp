#include "protocol/expert_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace moex {
namespace {

constexpr float scale_min = 0x1p-14f;  // smallest scale; GPUs may flush f16 subnormals
constexpr float scale_max = 65504.0f;  // the largest f16

// Converts rows of `row_size` weights from any data type of experts to f32.
std::vector<float> dequantize_matrix(ExpertDtype dtype, const std::byte* codes,
                                     const std::byte* scale_zero, std::uint32_t num_rows,
                                     std::uint32_t row_size, std::uint32_t group_size) {
    std::vector<float> out(std::size_t{num_rows} * row_size);
    switch (dtype) {
        case ExpertDtype::int4:
            for (std::uint32_t row = 0; row < num_rows; ++row)
                dequantize_int4_row(reinterpret_cast<const std::uint32_t*>(codes) +
                                        std::size_t{row} * (row_size / 8),
                                    reinterpret_cast<const std::uint32_t*>(scale_zero) +
                                        std::size_t{row} * (row_size / group_size),
                                    row_size, group_size, out.data() + std::size_t{row} * row_size);
            break;
        case ExpertDtype::mxfp4:
            for (std::uint32_t row = 0; row < num_rows; ++row)
                dequantize_mxfp4_row(reinterpret_cast<const std::uint32_t*>(codes) +
                                         std::size_t{row} * (row_size / 8),
                                     reinterpret_cast<const std::uint8_t*>(scale_zero) +
                                         std::size_t{row} * (row_size / mxfp4_block),
                                     row_size, out.data() + std::size_t{row} * row_size);
            break;
        case ExpertDtype::bf16:
            (void)decode_rows(Dtype::bf16, ByteView(codes, out.size() * 2), row_size, out);
            break;
        case ExpertDtype::f32: std::memcpy(out.data(), codes, out.size() * sizeof(float)); break;
    }
    return out;
}

template <class T>
void gate_up(std::span<T> intermediate, const ExpertWeights& weights, std::span<const T> x) {
    const std::size_t hidden = weights.shape.hidden_size,
                      inner = weights.shape.moe_intermediate_size;
    const std::size_t num_tokens = x.size() / hidden;
    MOEX_CHECK(x.size() == num_tokens * hidden && intermediate.size() == num_tokens * inner,
               text(x.size(), " x, ", intermediate.size()));
    for (std::size_t token = 0; token < num_tokens; ++token)
        for (std::size_t i = 0; i < inner; ++i) {
            T gate = 0, up = 0;
            for (std::size_t h = 0; h < hidden; ++h) {
                gate += static_cast<T>(weights.gate[i * hidden + h]) * x[token * hidden + h];
                up += static_cast<T>(weights.up[i * hidden + h]) * x[token * hidden + h];
            }
            if (!weights.gate_bias.empty()) {
                gate += static_cast<T>(weights.gate_bias[i]);
                up += static_cast<T>(weights.up_bias[i]);
            }
            const auto clamp = static_cast<T>(weights.shape.clamp);
            T& out = intermediate[token * inner + i];
            if (clamp == 0) {
                out = gate / (1 + std::exp(-gate)) * up;
                continue;
            }
            gate = std::min(gate, clamp);
            up = std::clamp(up, -clamp, clamp);
            out = gate / (1 + std::exp(static_cast<T>(-1.702) * gate)) * (up + 1);
        }
}

template <class T>
void down(std::span<T> y, const ExpertWeights& weights, std::span<const T> intermediate) {
    const std::size_t hidden = weights.shape.hidden_size,
                      inner = weights.shape.moe_intermediate_size;
    const std::size_t num_tokens = y.size() / hidden;
    MOEX_CHECK(y.size() == num_tokens * hidden && intermediate.size() == num_tokens * inner,
               text(y.size(), " y, ", intermediate.size()));
    for (std::size_t token = 0; token < num_tokens; ++token)
        for (std::size_t h = 0; h < hidden; ++h) {
            T sum = weights.down_bias.empty() ? T{0} : static_cast<T>(weights.down_bias[h]);
            for (std::size_t i = 0; i < inner; ++i)
                sum += static_cast<T>(weights.down[h * inner + i]) *
                       intermediate[token * inner + i];
            y[token * hidden + h] = sum;
        }
}

template <class T>
void both(std::span<T> y, const ExpertWeights& weights, std::span<const T> x) {
    std::vector<T> intermediate(x.size() / weights.shape.hidden_size *
                                weights.shape.moe_intermediate_size);
    gate_up<T>(intermediate, weights, x);
    down<T>(y, weights, intermediate);
}

// Quantises one row of weights into the words that the expert blob has for the row.
void quantize_row(const float* row, std::uint32_t row_size, std::uint32_t group_size,
                  std::uint32_t* codes, std::uint32_t* scale_zero) {
    for (std::uint32_t start = 0; start < row_size; start += group_size) {
        // The quantised range includes 0, so that the zero point stays within 0..15 and a group of
        // equal weights keeps its value.
        float low = 0, high = 0;
        for (std::uint32_t i = start; i < start + group_size; ++i) {
            low = std::min(low, row[i]);
            high = std::max(high, row[i]);
        }
        const half scale_bits = float_to_half(
            std::clamp((high - low) / 15.0f, scale_min, scale_max));
        const float scale = half_to_float(scale_bits);
        const half zero_bits = float_to_half(-low / scale);
        const float zero = half_to_float(zero_bits);
        *scale_zero++ = pack_scale_zero(scale_bits, zero_bits);
        for (std::uint32_t i = start; i < start + group_size; ++i) {
            const float code = std::clamp(std::nearbyint(row[i] / scale + zero), 0.0f, 15.0f);
            codes[i / 8] |= static_cast<std::uint32_t>(code) << (4 * (i % 8));
        }
    }
}

// Returns the nearest E2M1 code; of two values at the same distance, the smaller one.
std::uint32_t nearest_mxfp4(float value) {
    const float twice = 2 * std::abs(value);
    std::uint32_t best = 0;
    for (std::uint32_t code = 1; code < 8; ++code)
        if (std::abs(twice - mxfp4_doubled[code]) < std::abs(twice - mxfp4_doubled[best]))
            best = code;
    return best | (value < 0 ? 8u : 0u);
}

// Quantises one row of weights to MXFP4: the scale of a block is the smallest power of two with
// which no value exceeds 6.
void quantize_mxfp4_row(const float* row, std::uint32_t row_size, std::uint32_t* codes,
                        std::uint8_t* scales) {
    for (std::uint32_t start = 0; start < row_size; start += mxfp4_block) {
        float largest = 0;
        for (std::uint32_t i = start; i < start + mxfp4_block; ++i)
            largest = std::max(largest, std::abs(row[i]));
        const int exponent = largest > 0 ? static_cast<int>(std::ceil(std::log2(largest / 6))) : 0;
        const auto scale = static_cast<std::uint8_t>(
            std::clamp(exponent + 127, 0, int{mxfp4_scale_max}));
        scales[start / mxfp4_block] = scale;
        const float factor = 2 * mxfp4_half_scale(scale);
        for (std::uint32_t i = start; i < start + mxfp4_block; ++i)
            codes[i / 8] |= nearest_mxfp4(row[i] / factor) << (4 * (i % 8));
    }
}

void write_biases(Bytes& blob, const ExpertBlobLayout& layout, const ExpertWeights& weights) {
    MOEX_CHECK(weights.gate_bias.size() == weights.shape.moe_intermediate_size &&
                   weights.up_bias.size() == weights.gate_bias.size() &&
                   weights.down_bias.size() == weights.shape.hidden_size,
               text("biases of ", weights.gate_bias.size(), ", ", weights.up_bias.size(), " and ",
                    weights.down_bias.size(), " values"));
    auto* const gate_up = reinterpret_cast<float*>(blob.data() + layout.gate_up_bias.offset_bytes);
    std::copy(weights.gate_bias.begin(), weights.gate_bias.end(), gate_up);
    std::copy(weights.up_bias.begin(), weights.up_bias.end(), gate_up + weights.gate_bias.size());
    std::copy(weights.down_bias.begin(), weights.down_bias.end(),
              reinterpret_cast<float*>(blob.data() + layout.down_bias.offset_bytes));
}

}  // namespace

ExpertWeights dequantize_expert(const ExpertBlobView& blob) {
    const ExpertShape& shape = blob.shape;
    ExpertWeights weights;
    weights.shape = shape;
    std::vector<float> gate_up_rows = dequantize_matrix(
        blob.dtype, blob.gate_up_codes, blob.gate_up_scale_zero, 2 * shape.moe_intermediate_size,
        shape.hidden_size, shape.group_size);
    const auto middle = gate_up_rows.begin() + static_cast<std::ptrdiff_t>(gate_up_rows.size() / 2);
    weights.gate.assign(gate_up_rows.begin(), middle);
    weights.up.assign(middle, gate_up_rows.end());
    weights.down = dequantize_matrix(blob.dtype, blob.down_codes, blob.down_scale_zero,
                                     shape.hidden_size, shape.moe_intermediate_size,
                                     shape.group_size);
    if (shape.has_bias) {
        const std::size_t inner = shape.moe_intermediate_size;
        weights.gate_bias.assign(blob.gate_up_bias, blob.gate_up_bias + inner);
        weights.up_bias.assign(blob.gate_up_bias + inner, blob.gate_up_bias + 2 * inner);
        weights.down_bias.assign(blob.down_bias, blob.down_bias + shape.hidden_size);
    }
    return weights;
}

void expert_gate_up(std::span<double> intermediate, const ExpertWeights& weights,
                    std::span<const double> x) {
    gate_up<double>(intermediate, weights, x);
}
void expert_down(std::span<double> y, const ExpertWeights& weights,
                 std::span<const double> intermediate) {
    down<double>(y, weights, intermediate);
}
void expert_reference(std::span<double> y, const ExpertWeights& weights,
                      std::span<const double> x) {
    both<double>(y, weights, x);
}
void expert_reference(std::span<float> y, const ExpertWeights& weights, std::span<const float> x) {
    both<float>(y, weights, x);
}

double normalized_rms_error(std::span<const float> a, std::span<const double> b) {
    MOEX_CHECK(a.size() == b.size(), text(a.size(), " against ", b.size(), " values"));
    double error = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double difference = static_cast<double>(a[i]) - b[i];
        error += difference * difference;
        size += b[i] * b[i];
    }
    if (error == 0) return 0;
    return size == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error / size);
}

Bytes quantize_expert(const ExpertWeights& weights) {
    const ExpertShape& shape = weights.shape;
    const ExpertBlobLayout layout = expert_blob_layout(shape);
    const std::uint32_t hidden = shape.hidden_size, inner = shape.moe_intermediate_size,
                        group = shape.group_size;
    MOEX_CHECK(weights.gate.size() == std::size_t{inner} * hidden &&
                   weights.up.size() == weights.gate.size() &&
                   weights.down.size() == weights.gate.size(),
               text("gate ", weights.gate.size(), ", up ", weights.up.size(), ", down ",
                    weights.down.size(), " weights"));
    Bytes blob(layout.size_bytes);
    // Quantises row number `row` of a section, [rows, row_size].
    const auto quantize = [&](const float* weights_of_row, std::uint32_t row,
                              std::uint32_t row_size, const BlobSection& codes,
                              const BlobSection& scales) {
        const auto first = std::size_t{row} * (row_size / group);
        auto* const words = reinterpret_cast<std::uint32_t*>(blob.data() + codes.offset_bytes) +
                            std::size_t{row} * (row_size / 8);
        std::byte* const to = blob.data() + scales.offset_bytes;
        if (shape.is_mxfp4())
            quantize_mxfp4_row(weights_of_row, row_size, words,
                               reinterpret_cast<std::uint8_t*>(to) + first);
        else
            quantize_row(weights_of_row, row_size, group, words,
                         reinterpret_cast<std::uint32_t*>(to) + first);
    };
    for (std::uint32_t row = 0; row < 2 * inner; ++row) {
        const std::vector<float>& matrix = row < inner ? weights.gate : weights.up;
        quantize(matrix.data() + std::size_t{row % inner} * hidden, row, hidden,
                 layout.gate_up_codes, layout.gate_up_scale_zero);
    }
    for (std::uint32_t row = 0; row < hidden; ++row)
        quantize(weights.down.data() + std::size_t{row} * inner, row, inner, layout.down_codes,
                 layout.down_scale_zero);
    if (shape.has_bias) write_biases(blob, layout, weights);
    return blob;
}

}  // namespace moex
