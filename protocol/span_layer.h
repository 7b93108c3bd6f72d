// SpanLayer: everything that a worker needs to compute one layer of a model whole, except the blobs
// of the layer's experts, which it names. The hub serves it as a blob, by its SHA-256. A worker
// therefore needs no file of the package and no knowledge of tensor names.
// Source: PROTOCOL.md, "Layer of a span", has every byte.
#pragma once

#include <array>
#include <vector>

#include "protocol/bytes.h"
#include "protocol/result.h"
#include "protocol/rope.h"
#include "protocol/sha256.h"

namespace moex {

// The storage format of a matrix. int4 has groups of `group_size` weights, as an expert's blob.
enum class SpanMatrix : std::uint8_t { bf16 = 0, f32 = 1, int4 = 2 };

// The tensors of a layer, in their order. Vectors are f32. A matrix is [out, in]; an int4 matrix
// has its codes, then its scales and zeros. A tensor that the model does not have is empty.
enum class SpanTensor : std::uint8_t {
    input_norm,
    post_attention_norm,
    q_norm,
    k_norm,
    qkv_bias,
    o_bias,
    qkv,  // q, k and v, stacked by rows
    o,
    router,
};
inline constexpr std::size_t num_span_tensors = 9;

struct SpanLayer {
    std::uint32_t layer = 0;
    std::uint32_t hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
    std::uint32_t num_experts = 0, top_k = 0, moe_intermediate_size = 0;
    std::uint32_t group_size = 0;  // weights per scale and zero, for all int4 weights
    bool norm_topk_prob = false, qk_norm = false, qkv_bias = false, o_bias = false;
    SpanMatrix attention = SpanMatrix::bf16, router = SpanMatrix::bf16;
    double rms_norm_eps = 0, rope_theta = 0;
    RopeScaling rope_scaling;
    std::vector<Sha256> experts;                     // [num_experts], blobs of the experts
    std::array<ByteView, num_span_tensors> tensors;  // borrowed

    ByteView tensor(SpanTensor which) const { return tensors[static_cast<std::size_t>(which)]; }
};

// Returns true if two layers have the same shape, so that one span may hold both.
bool same_span_shape(const SpanLayer& a, const SpanLayer& b);

// Returns the bytes that each tensor must have.
std::array<std::uint64_t, num_span_tensors> span_tensor_bytes(const SpanLayer& layer);

Bytes encode_span_layer(const SpanLayer& layer);
// Errors: bad_magic, unsupported_version, unknown_flags, bad_field, payload_size. The result
// borrows from `bytes`, which begin at an address that is a multiple of 4.
Result<SpanLayer> decode_span_layer(ByteView bytes);

}  // namespace moex
