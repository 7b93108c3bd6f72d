#include "web-worker/spans/span_weights.h"

#include <algorithm>
#include <utility>

#include "protocol/text.h"

namespace moex {
namespace {

WeightKind kind_of(SpanMatrix matrix) {
    switch (matrix) {
        case SpanMatrix::bf16: return WeightKind::bf16;
        case SpanMatrix::f32: return WeightKind::f32;
        case SpanMatrix::int4: break;
    }
    return WeightKind::int4;
}

}  // namespace

Result<SpanWeights> SpanWeights::of_layers(std::vector<Bytes> blobs, std::uint32_t first_layer) {
    SpanWeights weights;
    weights.blobs_ = std::move(blobs);
    for (const Bytes& blob : weights.blobs_) {
        MOEX_ASSIGN(layer, decode_span_layer(blob));
        const std::size_t index = weights.layers_.size();
        if (layer.layer != first_layer + index)
            return Error{ErrorCode::bad_field,
                         text("a blob of layer ", layer.layer, " where layer ", first_layer + index,
                              " is wanted")};
        if (index > 0 && !same_span_shape(layer, weights.layers_.front()))
            return Error{ErrorCode::bad_field, text("layer ", layer.layer,
                                                    " has another shape than layer ", first_layer)};
        weights.layers_.push_back(std::move(layer));
    }
    return weights;
}

DecoderModel SpanWeights::model(std::uint32_t context_tokens) const {
    const SpanLayer& layer = layers_.front();
    DecoderModel model;
    model.is_span = true;
    model.hidden_size = layer.hidden_size;
    model.num_layers = static_cast<std::uint32_t>(layers_.size());
    model.num_heads = layer.num_heads;
    model.num_kv_heads = layer.num_kv_heads;
    model.head_dim = layer.head_dim;
    model.context_tokens = context_tokens;
    model.num_experts = layer.num_experts;
    model.top_k = layer.top_k;
    model.moe_intermediate_size = layer.moe_intermediate_size;
    model.layer_is_moe.assign(layers_.size(), 1);
    model.norm_topk_prob = layer.norm_topk_prob;
    model.qk_norm = layer.qk_norm;
    model.qkv_bias = layer.qkv_bias;
    model.o_bias = layer.o_bias;
    model.rms_norm_eps = layer.rms_norm_eps;
    model.rope_theta = layer.rope_theta;
    model.rope_scaling = layer.rope_scaling;
    model.qk_norm_all_heads = layer.qk_norm_all_heads;
    model.sinks = layer.sinks;
    model.router_bias = layer.router_bias;
    model.rotary_size = layer.rotary_size;
    for (const SpanLayer& one : layers_) model.layer_window.push_back(one.window);
    model.attention_scale = layer.attention_scale;
    model.residual_multiplier = layer.residual_multiplier;
    model.expert_bias = layer.expert_clamp > 0;
    model.expert_limit = layer.expert_clamp;
    model.output_gate = layer.output_gate;
    model.sigmoid_router = layer.sigmoid_router;
    model.correction_bias = layer.correction_bias;
    model.router_groups = layer.router_groups;
    model.groups_kept = layer.groups_kept;
    model.router_scaling = layer.router_scaling;
    model.shared_size = layer.shared_size;
    model.shared_gate = layer.shared_gate;
    model.shared_kind = kind_of(layer.shared);
    if (std::any_of(layers_.begin(), layers_.end(),
                    [](const SpanLayer& one) { return one.is_delta; }))
        for (const SpanLayer& one : layers_) model.layer_is_delta.push_back(one.is_delta);
    model.delta_key_heads = layer.delta_key_heads;
    model.delta_value_heads = layer.delta_value_heads;
    model.delta_key_dim = layer.delta_key_dim;
    model.delta_value_dim = layer.delta_value_dim;
    model.conv_taps = layer.conv_taps;
    model.attention_kind = kind_of(layer.attention);
    model.router_kind = kind_of(layer.router);
    model.expert_kind = layer.mxfp4_experts ? WeightKind::mxfp4 : WeightKind::int4;
    model.group_size = layer.group_size;
    return model;
}

void SpanWeights::add_expert(std::uint32_t index, std::uint32_t expert, Bytes blob) {
    experts_[{index, expert}] = std::move(blob);
}

void SpanWeights::prepare(std::uint32_t layer, std::function<void()> then) {
    if (!get_) return then();
    then_ = std::move(then);
    const auto get = get_;
    get(layer);
}

void SpanWeights::prepared() {
    if (const auto then = std::exchange(then_, nullptr)) then();
}

Status SpanWeights::read(const WeightPart& part, const Append& append) {
    using Name = WeightPart::Name;
    const SpanLayer& layer = layers_[part.layer];
    const auto give = [&](SpanTensor which) {
        append(layer.tensor(which));
        return Status{};
    };
    switch (part.name) {
        case Name::qkv: return give(SpanTensor::qkv);
        case Name::o: return give(SpanTensor::o);
        case Name::router: return give(SpanTensor::router);
        case Name::input_norm: return give(SpanTensor::input_norm);
        case Name::post_attention_norm: return give(SpanTensor::post_attention_norm);
        case Name::q_norm: return give(SpanTensor::q_norm);
        case Name::k_norm: return give(SpanTensor::k_norm);
        case Name::qkv_bias: return give(SpanTensor::qkv_bias);
        case Name::o_bias: return give(SpanTensor::o_bias);
        case Name::sinks: return give(SpanTensor::sinks);
        case Name::router_bias: return give(SpanTensor::router_bias);
        case Name::correction_bias: return give(SpanTensor::correction_bias);
        case Name::output_gate: return give(SpanTensor::output_gate);
        case Name::shared: return give(SpanTensor::shared);
        case Name::delta_gates: return give(SpanTensor::delta_gates);
        case Name::delta_conv: return give(SpanTensor::delta_conv);
        case Name::delta_a_log: return give(SpanTensor::delta_a_log);
        case Name::delta_dt_bias: return give(SpanTensor::delta_dt_bias);
        case Name::delta_norm: return give(SpanTensor::delta_norm);
        case Name::ffn: {
            const auto found = experts_.find({part.layer, part.expert});
            if (found == experts_.end()) break;
            append(found->second);
            // Free the blob: the decoder reads each part once.
            experts_.erase(found);
            return {};
        }
        case Name::embedding_rows:
        case Name::head_rows:
        case Name::final_norm: break;
    }
    return Error{ErrorCode::not_found, text("a span has no such weights for layer ", part.layer)};
}

}  // namespace moex
