#include "web-worker/package/named_weights.h"

#include <algorithm>
#include <cstring>

#include "hub/model/package/hub_specs.h"
#include "protocol/half.h"
#include "protocol/hub_codes.h"

namespace moex {
namespace {

// Returns the storage format for the tensors `names`: int4 if all tensors are int4 in groups of
// `int4_group_size`; bf16 if all are bf16 or other codes, which are then rounded by 2^-9 at most;
// otherwise f32.
Result<WeightKind> kind_of(const PackageFiles& files, const std::vector<std::string>& names,
                           std::uint32_t int4_group_size) {
    WeightKind kind = WeightKind::bf16;
    bool is_int4 = !names.empty();
    for (const std::string& name : names) {
        MOEX_ASSIGN(tensor, files.tensor(name));
        is_int4 &= tensor.dtype == TensorDtype::int4 && tensor.group_size == int4_group_size &&
                   tensor.shape[0] % 16 == 0;
        if (tensor.dtype != TensorDtype::bf16 && !is_quantized(tensor.dtype))
            kind = WeightKind::f32;
    }
    return is_int4 ? WeightKind::int4 : kind;
}

WeightKind kind_of(ExpertDtype dtype) {
    return dtype == ExpertDtype::int4    ? WeightKind::int4
           : dtype == ExpertDtype::mxfp4 ? WeightKind::mxfp4
           : dtype == ExpertDtype::bf16  ? WeightKind::bf16
                                         : WeightKind::f32;
}

Status find_kinds(const PackageFiles& files, DecoderModel& model) {
    std::vector<std::string> tables = {hub_tensor_name(HubPart::embeddings)}, attention, routers,
                             dense, shared;
    if (!model.tied_embeddings) tables.push_back(hub_tensor_name(HubPart::head));
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer) {
        const bool is_delta = model.is_delta(layer);
        for (const HubPart part :
             {is_delta ? HubPart::delta_qkv : HubPart::q, is_delta ? HubPart::delta_z : HubPart::k,
              is_delta ? HubPart::delta_out : HubPart::o})
            attention.push_back(hub_tensor_name(part, layer));
        if (!is_delta) attention.push_back(hub_tensor_name(HubPart::v, layer));
        if (!is_delta && model.output_gate)
            attention.push_back(hub_tensor_name(HubPart::output_gate, layer));
        if (model.is_moe(layer)) {
            routers.push_back(hub_tensor_name(HubPart::router, layer));
            if (model.shared_gate)
                routers.push_back(hub_tensor_name(HubPart::shared_expert_gate, layer));
            if (model.shared_size > 0)
                for (const HubPart part :
                     {HubPart::shared_gate, HubPart::shared_up, HubPart::shared_down})
                    shared.push_back(hub_tensor_name(part, layer));
            continue;
        }
        for (const HubPart part : {HubPart::gate, HubPart::up, HubPart::down})
            dense.push_back(hub_tensor_name(part, layer));
    }
    MOEX_ASSIGN(table_kind, kind_of(files, tables, model.group_size));
    MOEX_ASSIGN(attention_kind, kind_of(files, attention, model.group_size));
    MOEX_ASSIGN(router_kind, kind_of(files, routers, model.group_size));
    MOEX_ASSIGN(dense_kind, kind_of(files, dense, model.group_size));
    MOEX_ASSIGN(shared_kind, kind_of(files, shared, model.group_size));
    model.table_kind = table_kind;
    model.attention_kind = attention_kind;
    model.router_kind = router_kind;
    model.dense_kind = dense_kind;
    model.shared_kind = shared_kind;
    return {};
}

std::string joined_words(const LayerPlan& plan) {
    std::string all;
    for (const std::string& word : plan_words(plan)) all += text(all.empty() ? "" : "; ", word);
    return all;
}

// Returns the plan of the first layer with experts, or of the first layer if there is none.
const LayerPlan& first_routed(const ModelConfig& config) {
    const auto found = std::find_if(config.layers.begin(), config.layers.end(),
                                    [](const LayerPlan& plan) { return plan.is_routed; });
    return found == config.layers.end() ? config.layers.front() : *found;
}

// Returns the plan of the first layer with attention, or of the first layer if there is none.
const LayerPlan& first_attending(const ModelConfig& config) {
    const auto found = std::find_if(
        config.layers.begin(), config.layers.end(),
        [](const LayerPlan& plan) { return plan.mixer == Mixer::attention; });
    return found == config.layers.end() ? config.layers.front() : *found;
}

// Returns `plan` without what the kernels of wgsl/decoder do not compute, and without what differs
// from the layers `first` and `routed`: kernels have the window of their own layer, all else is
// that of the model.
LayerPlan known_part(const LayerPlan& plan, const LayerPlan& first, const LayerPlan& routed) {
    LayerPlan known;
    known.norms_add_one = first.norms_add_one;
    known.attention_scale = first.attention_scale;
    if (plan.mixer == Mixer::gated_delta_rule) {
        known.mixer = plan.mixer;
        known.rope = plan.rope;
    } else {
        known.window = plan.window;
        known.rope = first.rope;
        known.qk_norm = first.qk_norm;
        known.has_qkv_bias = first.has_qkv_bias;
        known.has_o_bias = first.has_o_bias;
        known.has_sinks = first.has_sinks;
        known.has_output_gate = first.has_output_gate;
    }
    known.residual_multiplier = first.residual_multiplier;
    known.is_routed = plan.is_routed;
    if (!plan.is_routed) return known;

    known.shared_size = routed.shared_size;
    known.has_shared_gate = routed.has_shared_gate;
    known.has_expert_bias = routed.has_expert_bias;
    if (known.has_expert_bias) {
        known.activation = Activation::clamped_swiglu;
        known.activation_limit = routed.activation_limit;
    }
    known.router = routed.router;
    if (known.router.score != RouterScore::sigmoid) {
        known.router.has_correction_bias = false;
        known.router.num_groups = known.router.groups_kept = 1;
        known.router.scaling = 1.0;
    }
    return known;
}

// Refuses models that the kernels of wgsl/decoder do not compute.
Status check_kernels(const ModelConfig& config) {
    const LayerPlan &first = first_attending(config), &routed = first_routed(config);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        const LayerPlan& plan = config.layers[layer];
        if (plan == known_part(plan, first, routed)) continue;
        return Error{ErrorCode::unsupported, text("models of type ", config.architecture,
                                                  " do not run on a GPU as a whole yet (layer ",
                                                  layer, ": ", joined_words(plan), ")")};
    }
    return {};
}

// Sets the fields of the model that its layers' plans give.
void take_plans(const ModelConfig& config, DecoderModel& model) {
    const LayerPlan &first = first_attending(config), &routed = first_routed(config);
    const RouterPlan& router = routed.router;
    model.qk_norm = first.qk_norm != QkNorm::none;
    model.qk_norm_all_heads = first.qk_norm == QkNorm::all_heads;
    model.qkv_bias = first.has_qkv_bias;
    model.o_bias = first.has_o_bias;
    model.sinks = first.has_sinks;
    model.rotary_size = first.rope.rotary_size;
    model.rope_theta = first.rope.theta;
    model.rope_scaling = first.rope.scaling;
    model.attention_scale = static_cast<float>(first.attention_scale);
    model.residual_multiplier = static_cast<float>(first.residual_multiplier);
    for (const LayerPlan& plan : config.layers) model.layer_window.push_back(plan.window);
    model.output_gate = first.has_output_gate;
    if (config.has_delta_net()) {
        for (const LayerPlan& plan : config.layers)
            model.layer_is_delta.push_back(plan.mixer == Mixer::gated_delta_rule);
        const DeltaNetSizes& sizes = config.delta_net;
        model.delta_key_heads = sizes.key_heads;
        model.delta_value_heads = sizes.value_heads;
        model.delta_key_dim = sizes.key_dim;
        model.delta_value_dim = sizes.value_dim;
        model.conv_taps = sizes.conv_taps;
    }

    // The softmax over the chosen experts is that over all experts, divided by its sum.
    model.norm_topk_prob = router.is_normalised || router.score == RouterScore::softmax_of_chosen;
    model.sigmoid_router = router.score == RouterScore::sigmoid;
    model.router_bias = router.has_bias;
    model.correction_bias = router.has_correction_bias;
    model.router_groups = router.num_groups;
    model.groups_kept = router.groups_kept;
    model.router_scaling = static_cast<float>(router.scaling);
    model.shared_size = routed.shared_size;
    model.shared_gate = routed.has_shared_gate;
    model.expert_bias = routed.has_expert_bias;
    model.expert_limit = static_cast<float>(routed.activation_limit);
}

}  // namespace

Result<DecoderModel> decoder_model_of(const PackageFiles& files) {
    const ModelConfig& config = files.config();
    MOEX_TRY(check_kernels(config));
    DecoderModel model;
    model.hidden_size = config.hidden_size;
    model.num_layers = config.num_layers;
    model.num_heads = config.num_heads;
    model.num_kv_heads = config.num_kv_heads;
    model.head_dim = config.head_dim;
    model.vocab_size = config.vocab_size;
    model.context_tokens = config.context_tokens;
    model.num_experts = config.num_experts;
    model.top_k = config.top_k;
    model.moe_intermediate_size = config.moe_intermediate_size;
    model.intermediate_size = config.intermediate_size;
    model.layer_is_moe = config.layer_is_moe();
    model.embedding_multiplier = static_cast<float>(config.embedding_multiplier);
    take_plans(config, model);
    model.tied_embeddings = config.tied_embeddings;
    model.rms_norm_eps = config.rms_norm_eps;
    model.expert_kind = kind_of(files.expert_dtype());
    // In a model without experts, all INT4 weights are in the hub's format (protocol/hub_codes.h).
    model.group_size = config.has_experts() ? files.group_size() : hub_int4_group_size;
    MOEX_TRY(find_kinds(files, model));
    return model;
}

Status NamedWeights::rows(const std::string& name, WeightKind kind, std::uint64_t first_row,
                          std::uint64_t num_rows, const AppendBytes& append) const {
    MOEX_ASSIGN(tensor, files_.tensor(name));
    const std::uint64_t row_size = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    if (kind == WeightKind::int4)
        return files_.read_tensor(name, first_row * row_size / 2, num_rows * row_size / 2, append);
    if (is_quantized(tensor.dtype))
        return rows_of_codes(name, tensor, kind, first_row, num_rows, append);

    const std::uint64_t element_bytes = tensor_dtype_bytes(tensor.dtype);
    const std::uint64_t first_byte = first_row * row_size * element_bytes,
                        size_bytes = num_rows * row_size * element_bytes;
    const bool as_it_is = (kind == WeightKind::bf16) == (tensor.dtype == TensorDtype::bf16) &&
                          tensor.dtype != TensorDtype::f16;
    if (as_it_is) return files_.read_tensor(name, first_byte, size_bytes, append);

    constexpr std::size_t converted_at_once = 1u << 20;
    std::vector<float> part;
    return files_.read_tensor(name, first_byte, size_bytes, [&](ByteView bytes) {
        const std::size_t num_elements = bytes.size() / element_bytes;
        for (std::size_t at = 0; at < num_elements; at += part.size()) {
            part.resize(std::min(converted_at_once, num_elements - at));
            elements_to_float(tensor.dtype, bytes.data() + at * element_bytes, part);
            append(std::as_bytes(std::span(part)));
        }
    });
}

// Appends rows of a quantised tensor as weights of `kind`. For a stretch of rows at a time, reads
// the codes and scales and converts them.
Status NamedWeights::rows_of_codes(const std::string& name, const PackageFiles::Tensor& tensor,
                                   WeightKind kind, std::uint64_t first_row, std::uint64_t num_rows,
                                   const AppendBytes& append) const {
    constexpr std::uint64_t weights_at_once = 1u << 20;
    const std::uint64_t row_size = tensor.shape[1],
                        row_bytes = tensor.dtype == TensorDtype::int8 ? row_size : row_size / 2,
                        scale_bytes = row_size / tensor.group_size * 4,
                        rows_at_once = std::max<std::uint64_t>(1, weights_at_once / row_size);
    Bytes codes, scales, rounded;
    std::vector<float> weights;
    const auto into = [](Bytes& all) {
        return [&all](ByteView bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); };
    };

    for (std::uint64_t row = first_row; row < first_row + num_rows; row += rows_at_once) {
        const std::uint64_t count = std::min(rows_at_once, first_row + num_rows - row);
        codes.clear();
        scales.clear();
        MOEX_TRY(files_.read_tensor(name, row * row_bytes, count * row_bytes, into(codes)));
        MOEX_TRY(files_.read_scales(name, row * scale_bytes, count * scale_bytes, into(scales)));
        weights.resize(count * row_size);
        dequantize_rows(tensor.dtype, static_cast<std::uint32_t>(row_size), tensor.group_size,
                        codes.data(), scales.data(), weights);
        if (kind == WeightKind::f32) {
            append(std::as_bytes(std::span(weights)));
            continue;
        }
        rounded.resize(weights.size() * sizeof(bfloat16));
        for (std::size_t i = 0; i < weights.size(); ++i) {
            const bfloat16 one = float_to_bfloat16(weights[i]);
            std::memcpy(rounded.data() + i * sizeof one, &one, sizeof one);
        }
        append(rounded);
    }
    return {};
}

// Appends the scales of an int4 matrix; they follow the codes in its layout.
Status NamedWeights::int4_scales(const std::string& name, const AppendBytes& append) const {
    MOEX_ASSIGN(tensor, files_.tensor(name));
    return files_.read_scales(name, 0, tensor.shape[0] * (tensor.shape[1] / tensor.group_size) * 4,
                              append);
}

// Appends several matrices, stacked by rows, in the layout of one matrix.
Status NamedWeights::stacked(const std::vector<std::string>& names, WeightKind kind,
                             const AppendBytes& append) const {
    for (const std::string& name : names) MOEX_TRY(whole(name, kind, append));
    if (kind == WeightKind::int4)
        for (const std::string& name : names) MOEX_TRY(int4_scales(name, append));
    return {};
}

Status NamedWeights::whole(const std::string& name, WeightKind kind,
                           const AppendBytes& append) const {
    MOEX_ASSIGN(tensor, files_.tensor(name));
    return rows(name, kind, 0, tensor.shape[0], append);
}

// Appends three matrices in the layout of an expert's blob.
Status NamedWeights::blob_of(const std::array<std::string, 3>& names, WeightKind kind,
                             const ExpertShape& shape, const AppendBytes& append) const {
    const ExpertBlobLayout layout = expert_blob_layout(shape, expert_dtype_of(kind));
    const auto& [gate, up, down] = names;
    const bool is_int4 = kind == WeightKind::int4;
    std::uint64_t at = 0;
    const auto counted = [&](ByteView bytes) {
        at += bytes.size();
        append(bytes);
    };
    const auto pad_to = [&](std::uint64_t offset_bytes) {
        if (offset_bytes > at) counted(Bytes(offset_bytes - at));
    };

    for (const std::string& name : {gate, up}) MOEX_TRY(whole(name, kind, counted));
    if (is_int4) {
        pad_to(layout.gate_up_scale_zero.offset_bytes);
        for (const std::string& name : {gate, up}) MOEX_TRY(int4_scales(name, counted));
    }
    pad_to(layout.down_codes.offset_bytes);
    MOEX_TRY(whole(down, kind, counted));
    if (is_int4) {
        pad_to(layout.down_scale_zero.offset_bytes);
        MOEX_TRY(int4_scales(down, counted));
    }
    pad_to(layout.size_bytes);
    return {};
}

// Appends the weights of a norm, which may be stored as their difference from 1, over `divisor`.
Status NamedWeights::norm(const std::string& name, float divisor, const AppendBytes& append) const {
    const float added = files_.config().layers.front().norms_add_one ? 1.0f : 0.0f;
    if (added == 0 && divisor == 1) return whole(name, WeightKind::f32, append);
    return whole(name, WeightKind::f32, [&](ByteView bytes) {
        std::vector<float> weights(bytes.size() / sizeof(float));
        std::memcpy(weights.data(), bytes.data(), bytes.size());
        for (float& weight : weights) weight = (weight + added) / divisor;
        append(std::as_bytes(std::span(weights)));
    });
}

Status NamedWeights::read(const WeightPart& part, const AppendBytes& append) {
    using Name = WeightPart::Name;
    const auto name_of = [&](HubPart one) { return hub_tensor_name(one, part.layer); };
    const auto vector = [&](HubPart one) { return whole(name_of(one), WeightKind::f32, append); };
    const auto normed = [&](HubPart one) { return norm(name_of(one), 1, append); };
    const bool is_delta = model_.is_delta(part.layer);
    using enum HubPart;

    switch (part.name) {
        case Name::embedding_rows:
            return rows(name_of(embeddings), model_.table_kind, part.first_row, part.num_rows,
                        append);
        case Name::head_rows:
            return rows(name_of(head), model_.table_kind, part.first_row, part.num_rows, append);
        case Name::qkv:
            if (is_delta)
                return stacked({name_of(delta_qkv), name_of(delta_z)}, model_.attention_kind,
                               append);
            return stacked({name_of(q), name_of(k), name_of(v)}, model_.attention_kind, append);
        case Name::o:
            return stacked({name_of(is_delta ? delta_out : o)}, model_.attention_kind, append);
        case Name::delta_gates:
            return stacked({name_of(delta_b), name_of(delta_a)}, WeightKind::f32, append);
        case Name::output_gate:
            return stacked({name_of(output_gate)}, model_.attention_kind, append);
        case Name::router:
            return model_.shared_gate ? stacked({name_of(router), name_of(shared_expert_gate)},
                                                model_.router_kind, append)
                                      : whole(name_of(router), model_.router_kind, append);
        case Name::ffn:
            if (model_.is_moe(part.layer))
                return files_.read_expert(part.layer, part.expert, append);
            return blob_of({name_of(gate), name_of(up), name_of(down)}, model_.dense_kind,
                           model_.ffn_shape(part.layer), append);
        case Name::shared:
            return blob_of({name_of(shared_gate), name_of(shared_up), name_of(shared_down)},
                           model_.shared_kind, model_.shared_shape(), append);
        // The logits are a product of the final norm's output, so that their divisor is that of its
        // weights.
        case Name::final_norm:
            return norm(name_of(final_norm), static_cast<float>(files_.config().logits_divisor),
                        append);
        case Name::input_norm: return normed(input_norm);
        case Name::post_attention_norm: return normed(post_attention_norm);
        case Name::q_norm: return normed(q_norm);
        case Name::k_norm: return normed(k_norm);
        case Name::qkv_bias:
            return stacked({name_of(q_bias), name_of(k_bias), name_of(v_bias)}, WeightKind::f32,
                           append);
        case Name::o_bias: return vector(o_bias);
        case Name::sinks: return vector(sinks);
        case Name::router_bias:
            MOEX_TRY(vector(router_bias));
            if (model_.shared_gate) append(Bytes(sizeof(float)));
            return {};
        case Name::correction_bias: return vector(correction_bias);
        case Name::delta_conv: return vector(delta_conv);
        case Name::delta_a_log: return vector(delta_a_log);
        case Name::delta_dt_bias: return vector(delta_dt_bias);
        case Name::delta_norm: return vector(delta_norm);
    }
    return Error{ErrorCode::internal, "no such part"};
}

}  // namespace moex
