#include "protocol/span_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "protocol/check.h"
#include "protocol/half.h"
#include "protocol/tensor_format.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr unsigned char magic[4] = {0x4d, 0x78, 0x53, 0x6c};  // "MxSl"
constexpr std::size_t alignment = 256;
// Bits of the flags; those from 16 on are of version 2, and those from 256 on of version 3.
constexpr unsigned norm_topk_prob = 1, qk_norm = 2, qkv_bias = 4, o_bias = 8,
                   qk_norm_all_heads = 16, sinks = 32, router_bias = 64, truncates = 128,
                   output_gate = 256, sigmoid_router = 512, correction_bias = 1024,
                   shared_gate = 2048, delta_rule = 4096;
constexpr unsigned newest_version = 3;
constexpr unsigned flags_of(unsigned version) {
    return version == 1 ? 15 : version == 2 ? 255 : 8191;
}
constexpr std::size_t experts_at(unsigned version) {
    return version == 1 ? 96 : version == 2 ? 160 : 208;
}
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

std::size_t tensors_at(unsigned version, std::size_t num_experts) {
    const std::size_t end = experts_at(version) + num_experts * sizeof(Sha256);
    return (end + alignment - 1) / alignment * alignment;
}

Error wrong(const char* field, std::uint64_t found) {
    return Error{ErrorCode::bad_field, text("layer of a span: ", field, " is ", found)};
}

// Checks the fields that only version 2 has.
Status check_version_2(const SpanLayer& layer) {
    if (layer.rotary_size > layer.head_dim || layer.rotary_size % 4 != 0)
        return wrong("rotary_size", layer.rotary_size);
    if (layer.mxfp4_experts && layer.group_size != 32) return wrong("group_size", layer.group_size);
    if (layer.qk_norm_all_heads && !layer.qk_norm) return wrong("norms of q and k", 0);
    const RopeScaling& scaling = layer.rope_scaling;
    for (const double value : {double{layer.attention_scale}, double{layer.expert_clamp}})
        if (!std::isfinite(value) || value < 0)
            return Error{ErrorCode::bad_field, "layer of a span: a number is negative"};
    for (const double value : {double{layer.residual_multiplier}, scaling.beta_fast,
                               scaling.beta_slow, scaling.attention_factor})
        if (!std::isfinite(value) || value <= 0)
            return Error{ErrorCode::bad_field, "layer of a span: a number is not positive"};
    if (scaling.kind == RopeScalingKind::yarn && scaling.original_context_tokens == 0)
        return wrong("original_context_tokens", 0);
    return {};
}

// Checks the sizes of gated delta rules: all are zero in a model without them.
Status check_delta_rule(const SpanLayer& layer) {
    if (layer.delta_key_heads == 0) {
        const bool has_sizes = layer.is_delta || layer.delta_value_heads != 0 ||
                               layer.delta_key_dim != 0 || layer.delta_value_dim != 0 ||
                               layer.conv_taps != 0;
        return has_sizes ? wrong("key heads of a gated delta rule", 0) : Status{};
    }
    if (layer.delta_key_heads > heads_max)
        return wrong("key heads of a gated delta rule", layer.delta_key_heads);
    if (layer.delta_value_heads == 0 || layer.delta_value_heads > heads_max ||
        layer.delta_value_heads % layer.delta_key_heads != 0)
        return wrong("value heads of a gated delta rule", layer.delta_value_heads);
    for (const std::uint32_t size : {layer.delta_key_dim, layer.delta_value_dim})
        if (size == 0 || size > head_dim_max) return wrong("size of a head", size);
    if (layer.delta_values() % 32 != 0)
        return wrong("values of a gated delta rule", layer.delta_values());
    if (layer.attention == SpanMatrix::int4 && layer.delta_values() % layer.group_size != 0)
        return wrong("values of a gated delta rule", layer.delta_values());
    if (layer.conv_taps < 2 || layer.conv_taps > 8)
        return wrong("taps of a convolution", layer.conv_taps);
    return {};
}

// Checks the fields that only version 3 has.
Status check_version_3(const SpanLayer& layer) {
    const std::uint32_t groups = layer.router_groups;
    if (groups == 0 || layer.num_experts % groups != 0) return wrong("router_groups", groups);
    if (layer.groups_kept == 0 || layer.groups_kept > groups)
        return wrong("groups_kept", layer.groups_kept);
    if (layer.top_k > layer.num_experts / groups * layer.groups_kept)
        return wrong("top_k", layer.top_k);
    if (!std::isfinite(layer.router_scaling) || layer.router_scaling <= 0)
        return Error{ErrorCode::bad_field, "layer of a span: a number is not positive"};
    if (!layer.sigmoid_router &&
        (layer.correction_bias || groups != 1 || layer.router_scaling != 1))
        return wrong("score of the router", 0);
    if (layer.shared_size > inner_max || layer.shared_size % 16 != 0)
        return wrong("shared_size", layer.shared_size);
    if (layer.shared_size == 0 && (layer.shared_gate || layer.shared != SpanMatrix::bf16))
        return wrong("shared_size", 0);
    if (layer.shared == SpanMatrix::int4 && layer.shared_size % layer.group_size != 0)
        return wrong("shared_size", layer.shared_size);
    return check_delta_rule(layer);
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
    const bool has_codes = layer.attention == SpanMatrix::int4 ||
                           layer.router == SpanMatrix::int4 || layer.shared == SpanMatrix::int4;
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
    MOEX_TRY(check_version_2(layer));
    return check_version_3(layer);
}

unsigned flags_of(const SpanLayer& layer) {
    const auto flag = [](bool is_set, unsigned bit) { return is_set ? bit : 0; };
    const unsigned flags = flag(layer.norm_topk_prob, norm_topk_prob) |
                           flag(layer.qk_norm, qk_norm) | flag(layer.qkv_bias, qkv_bias) |
                           flag(layer.o_bias, o_bias);
    if (span_layer_version(layer) == 1) return flags;
    return flags | flag(layer.qk_norm_all_heads, qk_norm_all_heads) | flag(layer.sinks, sinks) |
           flag(layer.router_bias, router_bias) | flag(layer.rope_scaling.truncate, truncates) |
           flag(layer.output_gate, output_gate) | flag(layer.sigmoid_router, sigmoid_router) |
           flag(layer.correction_bias, correction_bias) | flag(layer.shared_gate, shared_gate) |
           flag(layer.is_delta, delta_rule);
}

void take_flags(unsigned flags, unsigned version, SpanLayer& layer) {
    const auto has = [&](unsigned bit) { return (flags & bit) != 0; };
    layer.norm_topk_prob = has(norm_topk_prob);
    layer.qk_norm = has(qk_norm);
    layer.qkv_bias = has(qkv_bias);
    layer.o_bias = has(o_bias);
    if (version == 1) return;
    layer.qk_norm_all_heads = has(qk_norm_all_heads);
    layer.sinks = has(sinks);
    layer.router_bias = has(router_bias);
    layer.rope_scaling.truncate = has(truncates);
    layer.output_gate = has(output_gate);
    layer.sigmoid_router = has(sigmoid_router);
    layer.correction_bias = has(correction_bias);
    layer.shared_gate = has(shared_gate);
    layer.is_delta = has(delta_rule);
}

// Writes and reads the 64 bytes of the header that version 2 adds.
void write_version_2(ByteWriter& out, const SpanLayer& layer) {
    out.u32(layer.window);
    out.u32(layer.rotary_size);
    for (const float value : {layer.attention_scale, layer.residual_multiplier, layer.expert_clamp})
        out.u32(detail::bits_of_float(value));
    out.u16(static_cast<std::uint16_t>(layer.rope_scaling.kind));
    out.u16(layer.mxfp4_experts ? 1 : 0);
    for (const double value : {layer.rope_scaling.beta_fast, layer.rope_scaling.beta_slow,
                               layer.rope_scaling.attention_factor})
        out.u64(bits_of(value));
    for (int i = 0; i < 4; ++i) out.u32(0);
}
Status read_version_2(ByteReader& in, SpanLayer& layer) {
    layer.window = in.u32();
    layer.rotary_size = in.u32();
    for (float* field : {&layer.attention_scale, &layer.residual_multiplier, &layer.expert_clamp})
        *field = detail::float_of_bits(in.u32());
    const unsigned kind = in.u16(), codes = in.u16();
    for (double* field : {&layer.rope_scaling.beta_fast, &layer.rope_scaling.beta_slow,
                          &layer.rope_scaling.attention_factor})
        *field = double_of(in.u64());
    std::uint32_t pad = 0;
    for (int i = 0; i < 4; ++i) pad |= in.u32();
    if (kind > static_cast<std::uint32_t>(RopeScalingKind::yarn))
        return wrong("kind of the stretch", kind);
    if (codes > 1) return wrong("codes of the experts", codes);
    if (pad != 0) return wrong("pad", pad);
    layer.mxfp4_experts = codes == 1;
    layer.rope_scaling.kind = static_cast<RopeScalingKind>(kind);
    return {};
}

// Writes and reads the 48 bytes of the header that version 3 adds.
void write_version_3(ByteWriter& out, const SpanLayer& layer) {
    out.u32(layer.router_groups);
    out.u32(layer.groups_kept);
    out.u32(detail::bits_of_float(layer.router_scaling));
    out.u32(layer.shared_size);
    out.u32(static_cast<std::uint32_t>(layer.shared));
    for (const std::uint32_t size : {layer.delta_key_heads, layer.delta_value_heads,
                                     layer.delta_key_dim, layer.delta_value_dim, layer.conv_taps})
        out.u32(size);
    out.u64(0);
}
Status read_version_3(ByteReader& in, SpanLayer& layer) {
    layer.router_groups = in.u32();
    layer.groups_kept = in.u32();
    layer.router_scaling = detail::float_of_bits(in.u32());
    layer.shared_size = in.u32();
    const std::uint32_t shared = in.u32();
    for (std::uint32_t* size : {&layer.delta_key_heads, &layer.delta_value_heads,
                                &layer.delta_key_dim, &layer.delta_value_dim, &layer.conv_taps})
        *size = in.u32();
    const std::uint64_t pad = in.u64();
    if (shared > 2) return wrong("kind of a matrix", shared);
    if (pad != 0) return wrong("pad", pad);
    layer.shared = static_cast<SpanMatrix>(shared);
    return {};
}

}  // namespace

std::uint16_t span_layer_version(const SpanLayer& layer) {
    if (layer.output_gate || layer.sigmoid_router || layer.shared_size > 0 ||
        layer.delta_key_heads > 0)
        return 3;
    const SpanLayer plain;
    const bool is_first = !layer.qk_norm_all_heads && !layer.sinks && !layer.router_bias &&
                          layer.window == 0 && layer.rotary_size == 0 &&
                          layer.attention_scale == plain.attention_scale &&
                          layer.residual_multiplier == plain.residual_multiplier &&
                          layer.expert_clamp == 0 && !layer.mxfp4_experts &&
                          (layer.rope_scaling.factor == 1.0 ||
                           layer.rope_scaling.kind == RopeScalingKind::llama3);
    return is_first ? 1 : 2;
}

bool same_span_shape(const SpanLayer& a, const SpanLayer& b) {
    const auto all = [](const SpanLayer& one) {
        return std::tuple(
            one.hidden_size, one.num_heads, one.num_kv_heads, one.head_dim, one.num_experts,
            one.top_k, one.moe_intermediate_size, one.group_size, one.norm_topk_prob, one.qk_norm,
            one.qkv_bias, one.o_bias, one.attention, one.router, one.rms_norm_eps, one.rope_theta,
            one.qk_norm_all_heads, one.sinks, one.router_bias, one.rotary_size, one.attention_scale,
            one.residual_multiplier, one.expert_clamp, one.mxfp4_experts, one.output_gate,
            one.sigmoid_router, one.correction_bias, one.router_groups, one.groups_kept,
            one.router_scaling, one.shared_size, one.shared_gate, one.shared, one.delta_key_heads,
            one.delta_value_heads, one.delta_key_dim, one.delta_value_dim, one.conv_taps);
    };
    return all(a) == all(b) && a.rope_scaling == b.rope_scaling;
}

std::array<std::uint64_t, num_span_tensors> span_tensor_bytes(const SpanLayer& layer) {
    const std::uint64_t hidden = layer.hidden_size, head = layer.head_dim,
                        q = layer.num_heads * head, kv = layer.num_kv_heads * head,
                        qkv = q + 2 * kv, experts = layer.num_experts, shared = layer.shared_size;
    const ExpertDtype shared_dtype = layer.shared == SpanMatrix::bf16  ? ExpertDtype::bf16
                                     : layer.shared == SpanMatrix::f32 ? ExpertDtype::f32
                                                                       : ExpertDtype::int4;
    const bool attends = !layer.is_delta;
    const std::uint64_t values = layer.delta_values(), channels = layer.delta_channels(),
                        mixer_rows = attends ? qkv : channels + values;
    const auto attention = [&](bool has, std::uint64_t bytes) {
        return attends && has ? bytes : 0;
    };
    const auto delta = [&](std::uint64_t num_floats) { return attends ? 0 : 4 * num_floats; };
    return {
        4 * hidden,
        4 * hidden,
        attention(layer.qk_norm, 4 * (layer.qk_norm_all_heads ? q : head)),
        attention(layer.qk_norm, 4 * (layer.qk_norm_all_heads ? kv : head)),
        attention(layer.qkv_bias, 4 * qkv),
        attention(layer.o_bias, 4 * hidden),
        attention(layer.sinks, 4 * std::uint64_t{layer.num_heads}),
        layer.router_bias ? 4 * experts : 0,
        layer.correction_bias ? 4 * experts : 0,
        delta(channels * layer.conv_taps),
        delta(layer.delta_value_heads),
        delta(layer.delta_value_heads),
        delta(layer.delta_value_dim),
        matrix_bytes(layer.attention, mixer_rows, hidden, layer.group_size),
        matrix_bytes(layer.attention, hidden, attends ? q : values, layer.group_size),
        matrix_bytes(layer.router, experts + (layer.shared_gate ? 1 : 0), hidden, layer.group_size),
        attention(layer.output_gate, matrix_bytes(layer.attention, q, hidden, layer.group_size)),
        delta(2 * std::uint64_t{layer.delta_value_heads} * hidden),
        shared > 0 ? expert_blob_layout({layer.hidden_size, layer.shared_size, layer.group_size},
                                        shared_dtype)
                         .size_bytes
                   : 0};
}

Bytes encode_span_layer(const SpanLayer& layer) {
    const Status shape = check_shape(layer);
    MOEX_CHECK(shape.ok(), shape.ok() ? "" : shape.error().message);
    MOEX_CHECK(layer.experts.size() == layer.num_experts, "a layer of a span lacks experts");
    const std::uint16_t version = span_layer_version(layer);
    const auto sizes = span_tensor_bytes(layer);
    std::uint64_t all = 0;
    for (const std::uint64_t size : sizes) all += size;
    ByteWriter out(tensors_at(version, layer.num_experts) + all);
    for (const unsigned char byte : magic) out.u8(byte);
    out.u16(version);
    out.u16(static_cast<std::uint16_t>(flags_of(layer)));
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
    if (version >= 2) write_version_2(out, layer);
    if (version >= 3) write_version_3(out, layer);
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
    const unsigned version = in.u16();
    if (version == 0 || version > newest_version)
        return Error{ErrorCode::unsupported_version, text("layer of a span, version ", version)};
    const unsigned flags = in.u16();
    if ((flags & ~flags_of(version)) != 0)
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
    Status added = version >= 2 ? read_version_2(in, layer) : Status{};
    if (added.ok() && version >= 3) added = read_version_3(in, layer);
    if (in.overrun())
        return Error{ErrorCode::payload_size,
                     text("a layer of a span of ", bytes.size(), " bytes ends in its header")};
    if (attention > 2 || router > 2) return wrong("kind of a matrix", std::max(attention, router));
    if (pad != 0 || more_pad != 0) return wrong("pad", pad != 0 ? pad : more_pad);
    layer.attention = static_cast<SpanMatrix>(attention);
    layer.router = static_cast<SpanMatrix>(router);
    MOEX_TRY(added);
    take_flags(flags, version, layer);
    MOEX_TRY(check_shape(layer));
    // A layer has one form, so that its hash follows from its contents.
    if (span_layer_version(layer) != version)
        return wrong("version of a layer whose fields an earlier version has, too,", version);

    const auto sizes = span_tensor_bytes(layer);
    std::uint64_t all = tensors_at(version, layer.num_experts);
    for (const std::uint64_t size : sizes) all += size;
    if (bytes.size() != all)
        return Error{ErrorCode::payload_size,
                     text("a layer of a span of ", bytes.size(), " bytes, its header says ", all)};
    layer.experts.resize(layer.num_experts);
    for (Sha256& hash : layer.experts) {
        const ByteView one = in.take(sizeof(Sha256));
        std::memcpy(hash.data(), one.data(), one.size());
    }
    for (const std::byte byte : in.take(tensors_at(version, layer.num_experts) - in.offset_bytes()))
        if (byte != std::byte{0}) return wrong("pad", std::to_integer<unsigned>(byte));
    for (std::size_t i = 0; i < num_span_tensors; ++i) layer.tensors[i] = in.take(sizes[i]);
    return layer;
}

}  // namespace moex
