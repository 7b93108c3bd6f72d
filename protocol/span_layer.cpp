#include "protocol/span_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "protocol/check.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr unsigned char magic[4] = {0x4d, 0x78, 0x53, 0x6c};  // "MxSl"
constexpr std::uint16_t version = 1;
constexpr std::size_t experts_at = 96, alignment = 256;
// Bits of the flags.
constexpr unsigned norm_topk_prob = 1, qk_norm = 2, qkv_bias = 4, o_bias = 8, all_flags = 15;
// Limits of the sizes; they keep every product below 2^63.
constexpr std::uint32_t hidden_max = 0xffff, heads_max = 4096, head_dim_max = 256,
                        experts_max = 1024, top_k_max = 64, inner_max = 1u << 20;

std::uint64_t bits_of(double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
double double_of(std::uint64_t bits) {
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

std::uint64_t matrix_bytes(SpanMatrix kind, std::uint64_t num_out, std::uint64_t num_in,
                           std::uint32_t group_size) {
    const std::uint64_t count = num_out * num_in;
    switch (kind) {
        case SpanMatrix::bf16: return 2 * count;
        case SpanMatrix::f32: return 4 * count;
        case SpanMatrix::int4: break;
    }
    return count / 2 + 4 * (count / group_size);
}

std::size_t tensors_at(std::size_t num_experts) {
    return (experts_at + num_experts * sizeof(Sha256) + alignment - 1) / alignment * alignment;
}

Error wrong(const char* field, std::uint64_t found) {
    return Error{ErrorCode::bad_field, text("layer of a span: ", field, " is ", found)};
}

Status check_shape(const SpanLayer& layer) {
    const auto in = [](std::uint32_t value, std::uint32_t most) {
        return value > 0 && value <= most;
    };
    if (!in(layer.hidden_size, hidden_max) || layer.hidden_size % 32 != 0)
        return wrong("hidden_size", layer.hidden_size);
    if (!in(layer.num_heads, heads_max)) return wrong("num_heads", layer.num_heads);
    if (!in(layer.num_kv_heads, heads_max) || layer.num_heads % layer.num_kv_heads != 0)
        return wrong("num_kv_heads", layer.num_kv_heads);
    if (!in(layer.head_dim, head_dim_max) || layer.head_dim % 8 != 0)
        return wrong("head_dim", layer.head_dim);
    if (std::uint64_t{layer.num_heads} * layer.head_dim % 32 != 0)
        return wrong("num_heads * head_dim", std::uint64_t{layer.num_heads} * layer.head_dim);
    if (!in(layer.num_experts, experts_max)) return wrong("num_experts", layer.num_experts);
    if (!in(layer.top_k, std::min(top_k_max, layer.num_experts)))
        return wrong("top_k", layer.top_k);
    if (!in(layer.moe_intermediate_size, inner_max) || layer.moe_intermediate_size % 32 != 0)
        return wrong("moe_intermediate_size", layer.moe_intermediate_size);
    if (layer.group_size != 32 && layer.group_size != 64 && layer.group_size != 128)
        return wrong("group_size", layer.group_size);
    const bool has_codes = layer.attention == SpanMatrix::int4 || layer.router == SpanMatrix::int4;
    if (has_codes && (layer.hidden_size % layer.group_size != 0 ||
                      std::uint64_t{layer.num_heads} * layer.head_dim % layer.group_size != 0))
        return wrong("group_size", layer.group_size);
    for (const double value : {layer.rms_norm_eps, layer.rope_theta, layer.rope_scaling.factor})
        if (!std::isfinite(value) || value <= 0)
            return Error{ErrorCode::bad_field, "layer of a span: a number is not positive"};
    for (const double value :
         {layer.rope_scaling.low_freq_factor, layer.rope_scaling.high_freq_factor})
        if (!std::isfinite(value))
            return Error{ErrorCode::bad_field, "layer of a span: a number is not finite"};
    return {};
}

}  // namespace

bool same_span_shape(const SpanLayer& a, const SpanLayer& b) {
    const auto all = [](const SpanLayer& one) {
        return std::tuple(one.hidden_size, one.num_heads, one.num_kv_heads, one.head_dim,
                          one.num_experts, one.top_k, one.moe_intermediate_size, one.group_size,
                          one.norm_topk_prob, one.qk_norm, one.qkv_bias, one.o_bias, one.attention,
                          one.router, one.rms_norm_eps, one.rope_theta, one.rope_scaling.factor,
                          one.rope_scaling.low_freq_factor, one.rope_scaling.high_freq_factor,
                          one.rope_scaling.original_context_tokens);
    };
    return all(a) == all(b);
}

std::array<std::uint64_t, num_span_tensors> span_tensor_bytes(const SpanLayer& layer) {
    const std::uint64_t hidden = layer.hidden_size, head = layer.head_dim,
                        q = layer.num_heads * head, qkv = q + 2 * layer.num_kv_heads * head;
    return {4 * hidden,
            4 * hidden,
            layer.qk_norm ? 4 * head : 0,
            layer.qk_norm ? 4 * head : 0,
            layer.qkv_bias ? 4 * qkv : 0,
            layer.o_bias ? 4 * hidden : 0,
            matrix_bytes(layer.attention, qkv, hidden, layer.group_size),
            matrix_bytes(layer.attention, hidden, q, layer.group_size),
            matrix_bytes(layer.router, layer.num_experts, hidden, layer.group_size)};
}

Bytes encode_span_layer(const SpanLayer& layer) {
    MOEX_CHECK(check_shape(layer).ok() && layer.experts.size() == layer.num_experts,
               "a layer of a span has another shape");
    const auto sizes = span_tensor_bytes(layer);
    std::uint64_t all = 0;
    for (const std::uint64_t size : sizes) all += size;
    ByteWriter out(tensors_at(layer.num_experts) + all);
    for (const unsigned char byte : magic) out.u8(byte);
    out.u16(version);
    out.u16(static_cast<std::uint16_t>(
        (layer.norm_topk_prob ? norm_topk_prob : 0u) | (layer.qk_norm ? qk_norm : 0u) |
        (layer.qkv_bias ? qkv_bias : 0u) | (layer.o_bias ? o_bias : 0u)));
    for (const std::uint32_t value :
         {layer.layer, layer.hidden_size, layer.num_heads, layer.num_kv_heads, layer.head_dim,
          layer.num_experts, layer.top_k, layer.moe_intermediate_size, layer.group_size})
        out.u32(value);
    out.u8(static_cast<std::uint8_t>(layer.attention));
    out.u8(static_cast<std::uint8_t>(layer.router));
    out.u16(0);
    for (const double value :
         {layer.rms_norm_eps, layer.rope_theta, layer.rope_scaling.factor,
          layer.rope_scaling.low_freq_factor, layer.rope_scaling.high_freq_factor})
        out.u64(bits_of(value));
    out.u32(layer.rope_scaling.original_context_tokens);
    out.u32(0);
    for (const Sha256& hash : layer.experts) out.raw(std::as_bytes(std::span(hash)));
    out.pad_to(alignment);
    for (std::size_t i = 0; i < num_span_tensors; ++i) {
        MOEX_CHECK(layer.tensors[i].size() == sizes[i],
                   text("tensor ", i, " has ", layer.tensors[i].size(), " bytes of ", sizes[i]));
        out.raw(layer.tensors[i]);
    }
    return std::move(out).take();
}

Result<SpanLayer> decode_span_layer(ByteView bytes) {
    ByteReader in(bytes);
    const ByteView found = in.take(sizeof magic);
    if (in.overrun() || std::memcmp(found.data(), magic, sizeof magic) != 0)
        return Error{ErrorCode::bad_magic, "a layer of a span does not begin with MxSl"};
    if (const unsigned found_version = in.u16(); found_version != version)
        return Error{ErrorCode::unsupported_version,
                     text("layer of a span, version ", found_version)};
    const unsigned flags = in.u16();
    if ((flags & ~all_flags) != 0)
        return Error{ErrorCode::unknown_flags, text("layer of a span, flags ", flags)};

    SpanLayer layer;
    for (std::uint32_t* field :
         {&layer.layer, &layer.hidden_size, &layer.num_heads, &layer.num_kv_heads, &layer.head_dim,
          &layer.num_experts, &layer.top_k, &layer.moe_intermediate_size, &layer.group_size})
        *field = in.u32();
    const unsigned attention = in.u8(), router = in.u8(), pad = in.u16();
    for (double* field :
         {&layer.rms_norm_eps, &layer.rope_theta, &layer.rope_scaling.factor,
          &layer.rope_scaling.low_freq_factor, &layer.rope_scaling.high_freq_factor})
        *field = double_of(in.u64());
    layer.rope_scaling.original_context_tokens = in.u32();
    const std::uint32_t more_pad = in.u32();
    if (in.overrun())
        return Error{ErrorCode::payload_size,
                     text("a layer of a span of ", bytes.size(), " bytes ends in its header")};
    if (attention > 2 || router > 2) return wrong("kind of a matrix", std::max(attention, router));
    if (pad != 0 || more_pad != 0) return wrong("pad", pad != 0 ? pad : more_pad);
    layer.attention = static_cast<SpanMatrix>(attention);
    layer.router = static_cast<SpanMatrix>(router);
    layer.norm_topk_prob = (flags & norm_topk_prob) != 0;
    layer.qk_norm = (flags & qk_norm) != 0;
    layer.qkv_bias = (flags & qkv_bias) != 0;
    layer.o_bias = (flags & o_bias) != 0;
    MOEX_TRY(check_shape(layer));

    const auto sizes = span_tensor_bytes(layer);
    std::uint64_t all = tensors_at(layer.num_experts);
    for (const std::uint64_t size : sizes) all += size;
    if (bytes.size() != all)
        return Error{ErrorCode::payload_size,
                     text("a layer of a span of ", bytes.size(), " bytes, its header says ", all)};
    layer.experts.resize(layer.num_experts);
    for (Sha256& hash : layer.experts) {
        const ByteView one = in.take(sizeof(Sha256));
        std::memcpy(hash.data(), one.data(), one.size());
    }
    for (const std::byte byte : in.take(tensors_at(layer.num_experts) - in.offset_bytes()))
        if (byte != std::byte{0}) return wrong("pad", std::to_integer<unsigned>(byte));
    for (std::size_t i = 0; i < num_span_tensors; ++i) layer.tensors[i] = in.take(sizes[i]);
    return layer;
}

}  // namespace moex
