#include "hub/commands/gpu/span_layers.h"

#include "hub/base/log.h"
#include "hub/base/sha256.h"
#include "hub/commands/gpu/package_weights.h"
#include "protocol/signed_package.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

SpanMatrix matrix_of(WeightKind kind) {
    switch (kind) {
        case WeightKind::bf16: return SpanMatrix::bf16;
        case WeightKind::f32: return SpanMatrix::f32;
        case WeightKind::int4:
        case WeightKind::mxfp4: break;  // the latter for experts only
    }
    return SpanMatrix::int4;
}

// The tensors of a layer by the names of the decoder, in the order of SpanTensor.
constexpr std::array<WeightPart::Name, num_span_tensors> part_names = {
    WeightPart::Name::input_norm,
    WeightPart::Name::post_attention_norm,
    WeightPart::Name::q_norm,
    WeightPart::Name::k_norm,
    WeightPart::Name::qkv_bias,
    WeightPart::Name::o_bias,
    WeightPart::Name::sinks,
    WeightPart::Name::router_bias,
    WeightPart::Name::correction_bias,
    WeightPart::Name::delta_conv,
    WeightPart::Name::delta_a_log,
    WeightPart::Name::delta_dt_bias,
    WeightPart::Name::delta_norm,
    WeightPart::Name::qkv,
    WeightPart::Name::o,
    WeightPart::Name::router,
    WeightPart::Name::output_gate,
    WeightPart::Name::delta_gates,
    WeightPart::Name::shared};

}  // namespace

Result<std::unique_ptr<SpanLayers>> SpanLayers::open(std::shared_ptr<const ModelPackage> package,
                                                     Sign sign) {
    const auto refuse = [](std::string_view why) {
        return Error{ErrorCode::unsupported, std::string(why)};
    };
    if (!package->config().has_experts()) return refuse("the model has no experts");
    if (!has_codes(package->expert_dtype()))
        return refuse("workers compute experts in INT4 or MXFP4 only");
    MOEX_ASSIGN(model, decoder_model_of(*package));
    if (model.head_dim % 8 != 0 || model.head_dim > 256)
        return refuse("the kernels need a head_dim that is a multiple of 8, at most 256");
    std::unique_ptr<SpanLayers> layers(
        new SpanLayers(std::move(package), std::move(model), std::move(sign)));
    layers->thread_ = std::thread([self = layers.get()] { self->hash_all(); });
    return Result<std::unique_ptr<SpanLayers>>(std::move(layers));
}

SpanLayers::SpanLayers(std::shared_ptr<const ModelPackage> package, DecoderModel model, Sign sign)
    : package_(std::move(package)),
      model_(std::move(model)),
      sign_(std::move(sign)),
      layers_(model_.num_layers) {}

SpanLayers::~SpanLayers() {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
}

void SpanLayers::hash_all() {
    name_thread("span-layers");
    for (std::uint32_t index = 0; index < model_.num_layers && !stops_; ++index) {
        if (model_.is_moe(index)) {
            const Result<SpanAssign::Layer> layer = describe(index);
            if (!layer.ok())
                return log_error("hub: no spans from here on", kv("layer", index),
                                 kv("error", layer.error().message));
            layers_[index] = *layer;
        }
        num_hashed_ = index + 1;
    }
}

Result<SpanAssign::Layer> SpanLayers::describe(std::uint32_t index) const {
    MOEX_ASSIGN(blob, make(index));
    SpanAssign::Layer layer{.blob = sha256(blob), .size_bytes = blob.size()};
    if (!sign_) return layer;
    MOEX_ASSIGN(manifest, parse_sha256(package_->manifest_sha256()));
    MOEX_ASSIGN(signature, sign_(layer_text(manifest, layer.blob)));
    layer.signature = signature;
    return layer;
}

std::optional<SpanAssign::Layer> SpanLayers::layer(std::uint32_t index) const {
    if (index >= num_hashed_ || !model_.is_moe(index)) return std::nullopt;
    return layers_[index];
}

std::shared_ptr<const Bytes> SpanLayers::find(const Sha256& hash) const {
    const std::uint32_t num_hashed = num_hashed_;
    for (std::uint32_t index = 0; index < num_hashed; ++index) {
        if (layers_[index].size_bytes == 0 || layers_[index].blob != hash) continue;
        Result<Bytes> blob = make(index);
        if (!blob.ok()) return nullptr;
        return std::make_shared<const Bytes>(std::move(*blob));
    }
    return nullptr;
}

// Describes a layer, without its experts and tensors.
SpanLayer SpanLayers::shape_of(std::uint32_t index) const {
    return {.layer = index,
            .hidden_size = model_.hidden_size,
            .num_heads = model_.num_heads,
            .num_kv_heads = model_.num_kv_heads,
            .head_dim = model_.head_dim,
            .num_experts = model_.num_experts,
            .top_k = model_.top_k,
            .moe_intermediate_size = model_.moe_intermediate_size,
            .group_size = model_.group_size,
            .norm_topk_prob = model_.norm_topk_prob,
            .qk_norm = model_.qk_norm,
            .qkv_bias = model_.qkv_bias,
            .o_bias = model_.o_bias,
            .attention = matrix_of(model_.attention_kind),
            .router = matrix_of(model_.router_kind),
            .rms_norm_eps = model_.rms_norm_eps,
            .rope_theta = model_.rope_theta,
            .rope_scaling = model_.rope_scaling,
            .qk_norm_all_heads = model_.qk_norm_all_heads,
            .sinks = model_.sinks,
            .router_bias = model_.router_bias,
            .window = model_.window(index),
            .rotary_size = model_.rotary_size,
            .attention_scale = model_.attention_scale,
            .residual_multiplier = model_.residual_multiplier,
            .expert_clamp = model_.expert_limit,
            .mxfp4_experts = model_.expert_kind == WeightKind::mxfp4,
            .output_gate = model_.output_gate,
            .sigmoid_router = model_.sigmoid_router,
            .correction_bias = model_.correction_bias,
            .router_groups = model_.router_groups,
            .groups_kept = model_.groups_kept,
            .router_scaling = model_.router_scaling,
            .shared_size = model_.shared_size,
            .shared_gate = model_.shared_gate,
            .shared = model_.shared_size > 0 ? matrix_of(model_.shared_kind) : SpanMatrix::bf16,
            .is_delta = model_.is_delta(index),
            .delta_key_heads = model_.delta_key_heads,
            .delta_value_heads = model_.delta_value_heads,
            .delta_key_dim = model_.delta_key_dim,
            .delta_value_dim = model_.delta_value_dim,
            .conv_taps = model_.conv_taps};
}

std::uint16_t SpanLayers::version() const {
    std::uint16_t version = 1;
    for (std::uint32_t index = 0; index < model_.num_layers; ++index)
        if (model_.is_moe(index)) version = std::max(version, span_layer_version(shape_of(index)));
    return version;
}

Result<Bytes> SpanLayers::make(std::uint32_t index) const {
    SpanLayer layer = shape_of(index);
    for (std::uint32_t expert = 0; expert < model_.num_experts; ++expert)
        layer.experts.push_back(package_->blob_hash(index, expert));

    PackageWeights weights(package_, model_);
    const auto sizes = span_tensor_bytes(layer);
    std::array<Bytes, num_span_tensors> tensors;
    for (std::size_t i = 0; i < num_span_tensors; ++i) {
        if (sizes[i] == 0) continue;
        tensors[i].reserve(sizes[i]);
        MOEX_TRY(weights.read({.name = part_names[i], .layer = index}, [&](ByteView bytes) {
            tensors[i].insert(tensors[i].end(), bytes.begin(), bytes.end());
        }));
        if (tensors[i].size() != sizes[i])
            return Error{ErrorCode::unsupported,
                         text("layer ", index, ": tensor ", i, " has ", tensors[i].size(),
                              " bytes, a span needs ", sizes[i])};
        layer.tensors[i] = tensors[i];
    }
    return encode_span_layer(layer);
}

}  // namespace moex
