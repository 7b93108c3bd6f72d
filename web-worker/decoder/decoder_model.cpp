#include "web-worker/decoder/decoder_model.h"

#include <string_view>

#include "protocol/text.h"

namespace moex {
namespace {

Error does_not_take(std::string_view what, std::uint64_t found, std::string_view wanted) {
    return Error{ErrorCode::unsupported, text("the GPU's kernels do not support ", what, " ", found,
                                              ": it must be ", wanted)};
}

Status check_row(std::string_view what, std::uint32_t size, WeightKind kind,
                 std::uint32_t group_size) {
    if (size == 0 || size % 32 != 0) return does_not_take(what, size, "a multiple of 32");
    if ((kind == WeightKind::int4 || kind == WeightKind::mxfp4) && size % group_size != 0)
        return does_not_take(what, size, text("whole groups of ", group_size));
    return {};
}

bool uses_int4(const DecoderModel& model) {
    for (const WeightKind kind : {model.table_kind, model.attention_kind, model.router_kind,
                                  model.dense_kind, model.expert_kind, model.shared_kind})
        if (kind == WeightKind::int4 || kind == WeightKind::mxfp4) return true;
    return false;
}

}  // namespace

Status check_model(const DecoderModel& model) {
    const std::uint32_t group = model.group_size;
    if (uses_int4(model) && group != 32 && group != 64 && group != 128)
        return does_not_take("INT4 group", group, "32, 64 or 128");
    MOEX_TRY(check_row("hidden_size", model.hidden_size, model.attention_kind, group));
    MOEX_TRY(check_row("hidden_size", model.hidden_size, model.table_kind, group));
    MOEX_TRY(check_row("num_heads * head_dim", model.q_size(), model.attention_kind, group));
    if (model.is_span && (model.vocab_size != 0 || model.head_dim % 8 != 0))
        return does_not_take("head_dim", model.head_dim, "a multiple of 8 in a span");
    if (model.head_dim % 4 != 0 || model.head_dim > 256)
        return does_not_take("head_dim", model.head_dim, "a multiple of 4, at most 256");
    if (model.num_kv_heads == 0 || model.num_heads % model.num_kv_heads != 0)
        return does_not_take("num_heads", model.num_heads, "a multiple of num_kv_heads");
    if (model.table_kind == WeightKind::int4 && model.vocab_size % 16 != 0)
        return does_not_take("vocab_size", model.vocab_size, "a multiple of 16 where it is INT4");
    if (model.layer_is_moe.size() != model.num_layers)
        return does_not_take("layer_is_moe", model.layer_is_moe.size(), "one for each layer");

    if (model.rotated() % 4 != 0 || model.rotated() > model.head_dim)
        return does_not_take("rotary_size", model.rotated(), "a multiple of 4, at most head_dim");
    if (model.has_delta()) {
        MOEX_TRY(check_row("values of a gated delta rule", model.delta_values(),
                           model.attention_kind, group));
        if (model.delta_key_dim == 0 || model.delta_key_dim > 256)
            return does_not_take("size of a key", model.delta_key_dim, "1 to 256");
        if (model.delta_key_heads == 0 || model.delta_value_heads % model.delta_key_heads != 0)
            return does_not_take("value heads", model.delta_value_heads,
                                 "a multiple of the key heads");
        if (model.is_span && model.delta_channels() % 2 != 0)
            return does_not_take("channels", model.delta_channels(), "an even number in a span");
        if (model.conv_taps < 2 || model.conv_taps > 8)
            return does_not_take("taps of the convolution", model.conv_taps, "2 to 8");
    }
    for (const WeightKind kind : {model.table_kind, model.attention_kind, model.router_kind,
                                  model.dense_kind, model.shared_kind})
        if (kind == WeightKind::mxfp4)
            return Error{ErrorCode::unsupported, "only experts are in MXFP4"};
    if (model.expert_kind == WeightKind::mxfp4 && group != mxfp4_block)
        return does_not_take("group of MXFP4", group, "32");
    if (model.expert_bias != (model.expert_limit != 0))
        return does_not_take("experts with biases", model.expert_bias, "those with a clamp");
    if (model.router_groups == 0 || model.router_groups > 64)
        return does_not_take("groups of experts", model.router_groups, "1 to 64");
    if (model.shared_size > 0) {
        // Rows are padded to tiles of outputs, and INT4 rows are read in chunks of 32.
        if (model.shared_size % 16 != 0)
            return does_not_take("width of the shared expert", model.shared_size,
                                 "a multiple of 16");
        if (model.shared_kind == WeightKind::int4)
            MOEX_TRY(check_row("width of the shared expert", model.shared_size, model.shared_kind,
                               group));
    }

    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer) {
        // Outputs are computed in tiles of 16, and only INT4 rows are read in chunks of 32.
        const std::uint32_t inner = model.ffn_shape(layer).moe_intermediate_size;
        const WeightKind kind = model.ffn_kind(layer);
        if (inner % 16 != 0 || kind == WeightKind::int4 || kind == WeightKind::mxfp4)
            MOEX_TRY(check_row("intermediate size", inner, model.ffn_kind(layer), group));
        if (!model.is_moe(layer)) continue;
        if (model.num_experts == 0 || model.experts_routed_to() > 1024)
            return does_not_take("num_experts", model.num_experts,
                                 "1 to 1024 with the shared expert");
        if (model.top_k == 0 || model.top_k > 64 || model.top_k > model.num_experts)
            return does_not_take("top_k", model.top_k, "1 to 64, and at most num_experts");
    }
    return {};
}

ExpertDtype expert_dtype_of(WeightKind kind) {
    switch (kind) {
        case WeightKind::bf16: return ExpertDtype::bf16;
        case WeightKind::f32: return ExpertDtype::f32;
        case WeightKind::mxfp4: return ExpertDtype::mxfp4;
        case WeightKind::int4: break;
    }
    return ExpertDtype::int4;
}

MatrixLayout matrix_layout(WeightKind kind, std::uint32_t num_out, std::uint32_t num_in,
                           std::uint32_t group_size) {
    const std::uint64_t count = std::uint64_t{num_out} * num_in;
    if (kind == WeightKind::bf16) return {0, 2 * count};
    if (kind == WeightKind::f32) return {0, 4 * count};
    MOEX_CHECK(num_out % 16 == 0, text(num_out, " outputs: scales would not begin at 256 bytes"));
    return {count / 2, count / 2 + 4 * (count / group_size)};
}

}  // namespace moex
