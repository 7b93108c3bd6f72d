#include "web-worker/decoder/bench_models.h"

#include <optional>

#include "protocol/text.h"

namespace moex {
namespace {

struct BenchShape {
    const char* name;
    std::uint32_t hidden_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size,
        intermediate_size, num_experts, top_k;
    bool tied, qkv_bias, qk_norm;
};
constexpr BenchShape shapes[] = {
    {"demo", 384, 8, 6, 2, 64, 8192, 256, 16, 4, true, false, true},
    {"bench-moe", 1024, 12, 16, 4, 64, 32000, 512, 32, 4, false, false, true},
    {"smollm-135m", 576, 30, 9, 3, 64, 49152, 1536, 0, 0, true, false, false},
    {"qwen2-0.5b", 896, 24, 14, 2, 64, 151936, 4864, 0, 0, true, true, false},
    {"tinyllama-1.1b", 2048, 22, 32, 4, 64, 32000, 5632, 0, 0, false, false, false},
    {"qwen2-1.5b", 1536, 28, 12, 2, 128, 151936, 8960, 0, 0, true, true, false},
    {"llama3-8b", 4096, 32, 32, 8, 128, 128256, 14336, 0, 0, false, false, false},
    {"qwen3-30b-a3b", 2048, 48, 32, 4, 128, 151936, 768, 128, 8, false, false, true},
};

DecoderModel model_of(const BenchShape& shape) {
    DecoderModel model;
    model.hidden_size = shape.hidden_size;
    model.num_layers = shape.num_layers;
    model.num_heads = shape.num_heads;
    model.num_kv_heads = shape.num_kv_heads;
    model.head_dim = shape.head_dim;
    model.vocab_size = shape.vocab_size;
    model.num_experts = shape.num_experts;
    model.top_k = shape.top_k;
    model.moe_intermediate_size = model.intermediate_size = shape.intermediate_size;
    model.layer_is_moe.assign(shape.num_layers, shape.num_experts > 0);
    model.norm_topk_prob = true;
    model.qk_norm = shape.qk_norm;
    model.qkv_bias = shape.qkv_bias;
    model.tied_embeddings = shape.tied;
    return model;
}

// Shapes of other families, with the fields of hub/model/layer_plan.h that they set.
constexpr std::string_view gpt_oss = "gpt-oss-20b", glm_air = "glm-4.5-air",
                           qwen_hybrid = "qwen3.6-35b-a3b";

DecoderModel gpt_oss_model() {
    DecoderModel model = model_of(
        {"", 2880, 24, 64, 8, 64, 201088, 2880, 32, 4, false, true, false});
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer)
        model.layer_window.push_back(layer % 2 == 0 ? 128 : 0);
    model.sinks = model.o_bias = model.router_bias = model.expert_bias = true;
    model.expert_limit = 7;
    model.rope_theta = 150000;
    model.rope_scaling = {.factor = 32,
                          .original_context_tokens = 4096,
                          .kind = RopeScalingKind::yarn,
                          .attention_factor = 1.3465735902799727,
                          .truncate = false};
    return model;
}

DecoderModel glm_air_model() {
    DecoderModel model = model_of(
        {"", 4096, 46, 96, 8, 128, 151552, 1408, 128, 8, false, true, false});
    model.layer_is_moe.front() = 0;
    model.intermediate_size = 10944;
    model.shared_size = 1408;
    model.sigmoid_router = model.correction_bias = true;
    model.rotary_size = 64;
    model.rope_theta = 1e6;
    return model;
}

DecoderModel qwen_hybrid_model() {
    DecoderModel model = model_of(
        {"", 2048, 40, 16, 2, 256, 248320, 512, 256, 8, false, false, true});
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer)
        model.layer_is_delta.push_back(layer % 4 != 3);
    model.delta_key_heads = 16;
    model.delta_value_heads = 32;
    model.delta_key_dim = model.delta_value_dim = 128;
    model.conv_taps = 4;
    model.output_gate = true;
    model.shared_size = 512;
    model.shared_gate = true;
    model.rotary_size = 64;
    model.rope_theta = 1e7;
    return model;
}

// Returns a model without a context and formats of weights.
std::optional<DecoderModel> shape_named(std::string_view name) {
    if (name == gpt_oss) return gpt_oss_model();
    if (name == glm_air) return glm_air_model();
    if (name == qwen_hybrid) return qwen_hybrid_model();
    for (const BenchShape& shape : shapes)
        if (shape.name == name) return model_of(shape);
    return std::nullopt;
}

// Returns the largest size of an INT4 group that divides every row of an expert.
std::uint32_t largest_group(const DecoderModel& model) {
    for (const std::uint32_t size : {128u, 64u})
        if (model.hidden_size % size == 0 && model.moe_intermediate_size % size == 0) return size;
    return 32;
}

std::uint64_t blob_bytes(const ExpertShape& shape, WeightKind kind) {
    return expert_blob_layout(shape, expert_dtype_of(kind)).size_bytes;
}

template <class Value>
void give(const std::vector<Value>& from, std::uint64_t size_bytes,
          const WeightSource::Append& append) {
    const ByteView all = std::as_bytes(std::span(from));
    for (; size_bytes > all.size(); size_bytes -= all.size()) append(all);
    append(all.first(size_bytes));
}

}  // namespace

std::vector<std::string> bench_shapes() {
    std::vector<std::string> names;
    for (const BenchShape& shape : shapes) names.emplace_back(shape.name);
    names.emplace_back(gpt_oss);
    names.emplace_back(glm_air);
    names.emplace_back(qwen_hybrid);
    return names;
}

Result<DecoderModel> bench_model(std::string_view shape, std::string_view weights,
                                 std::uint32_t context_tokens) {
    std::optional<DecoderModel> found = shape_named(shape);
    if (!found) return Error{ErrorCode::unsupported, text("no shape is called ", shape)};
    constexpr std::string_view known[] = {"int4", "bf16", "f32", "mixed", "mxfp4"};
    if (std::find(std::begin(known), std::end(known), weights) == std::end(known))
        return Error{ErrorCode::unsupported,
                     text("weights are int4, bf16, f32, mixed or mxfp4, not ", weights)};

    DecoderModel& model = *found;
    model.context_tokens = context_tokens;
    const WeightKind kind = weights == "int4"  ? WeightKind::int4
                            : weights == "f32" ? WeightKind::f32
                                               : WeightKind::bf16;
    model.table_kind = model.attention_kind = model.dense_kind = model.expert_kind = kind;
    // The router has few rows, and its errors cost much quality, so models in use do not round it
    // to 4 bits.
    model.router_kind = kind == WeightKind::int4 ? WeightKind::bf16 : kind;
    model.group_size = 32;
    if (weights == "mixed") {
        model.expert_kind = WeightKind::int4;
        model.group_size = largest_group(model);
    }
    if (weights == "mxfp4") model.expert_kind = WeightKind::mxfp4;
    model.shared_kind = kind;
    return std::move(*found);
}

std::uint64_t weight_bytes_of_a_token(const DecoderModel& model) {
    const auto matrix = [&](WeightKind kind, std::uint32_t out, std::uint32_t in) {
        return matrix_layout(kind, out, in, model.group_size).size_bytes;
    };
    std::uint64_t bytes = matrix(model.table_kind, model.vocab_size, model.hidden_size);
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer) {
        bytes += matrix(model.attention_kind, model.mixer_rows(layer), model.hidden_size) +
                 matrix(model.attention_kind, model.hidden_size, model.mixed_size(layer));
        // A state is read twice and written once.
        if (model.is_delta(layer))
            bytes += 3 * sizeof(float) * model.delta_state_size() +
                     matrix(WeightKind::f32, 2 * model.delta_value_heads, model.hidden_size);
        else if (model.output_gate)
            bytes += matrix(model.attention_kind, model.q_size(), model.hidden_size);
        const std::uint64_t blob = blob_bytes(model.ffn_shape(layer), model.ffn_kind(layer));
        if (!model.is_moe(layer)) {
            bytes += blob;
            continue;
        }
        bytes += model.top_k * blob +
                 matrix(model.router_kind, model.router_rows(), model.hidden_size);
        if (model.shared_size > 0) bytes += blob_bytes(model.shared_shape(), model.shared_kind);
    }
    return bytes;
}

PatternWeights::PatternWeights(const DecoderModel& model) : model_(model) {
    // The pseudo-random weights are the same on every machine; floats are spread evenly over
    // +-0.02.
    std::uint32_t random = 1;
    floats_.resize(1u << 20);
    halves_.resize(floats_.size());
    codes_.resize(floats_.size());
    for (std::size_t i = 0; i < floats_.size(); ++i) {
        random = 1664525 * random + 1013904223;
        codes_[i] = random ^ random >> 15;
        floats_[i] = (static_cast<float>(random >> 8) / 0x1p24f - 0.5f) * 0.04f;
        halves_[i] = float_to_bfloat16(floats_[i]);
    }
    scales_.assign(floats_.size(), pack_scale_zero(float_to_half(0.005f), float_to_half(7.5f)));
    exponents_.assign(floats_.size(), 0x77777777u);  // scales of 2^-8
    ones_.assign(1u << 16, 1.0f);
}

std::vector<ByteView> PatternWeights::patterns() const {
    return {std::as_bytes(std::span(floats_)), std::as_bytes(std::span(halves_)),
            std::as_bytes(std::span(codes_)), std::as_bytes(std::span(scales_)),
            std::as_bytes(std::span(exponents_))};
}

Status PatternWeights::read(const WeightPart& part, const Append& append) {
    using Name = WeightPart::Name;
    const std::uint32_t hidden = model_.hidden_size;
    const auto ones = [&](std::uint64_t count) { give(ones_, 4 * count, append); };
    switch (part.name) {
        case Name::embedding_rows:
        case Name::head_rows: matrix(model_.table_kind, part.num_rows, hidden, append); break;
        case Name::qkv:
            matrix(model_.attention_kind, model_.mixer_rows(part.layer), hidden, append);
            break;
        case Name::o:
            matrix(model_.attention_kind, hidden, model_.mixed_size(part.layer), append);
            break;
        case Name::delta_gates:
            matrix(WeightKind::f32, 2 * model_.delta_value_heads, hidden, append);
            break;
        case Name::output_gate:
            matrix(model_.attention_kind, model_.q_size(), hidden, append);
            break;
        case Name::router: matrix(model_.router_kind, model_.router_rows(), hidden, append); break;
        case Name::ffn:
            ffn(model_.ffn_shape(part.layer), model_.ffn_kind(part.layer), append);
            break;
        case Name::shared: ffn(model_.shared_shape(), model_.shared_kind, append); break;
        case Name::q_norm:
        case Name::k_norm: ones(model_.head_dim); break;
        case Name::qkv_bias: ones(model_.qkv_size()); break;
        case Name::sinks: ones(model_.num_heads); break;
        case Name::router_bias: ones(model_.router_rows()); break;
        case Name::correction_bias: ones(model_.num_experts); break;
        case Name::delta_conv:
            ones(std::uint64_t{model_.delta_channels()} * model_.conv_taps);
            break;
        case Name::delta_a_log:
        case Name::delta_dt_bias: ones(model_.delta_value_heads); break;
        case Name::delta_norm: ones(model_.delta_value_dim); break;
        default: ones(hidden);
    }
    return {};
}

void PatternWeights::codes(WeightKind kind, std::uint64_t size_bytes, const Append& append) const {
    if (kind == WeightKind::f32) return give(floats_, size_bytes, append);
    if (kind == WeightKind::bf16) return give(halves_, size_bytes, append);
    give(codes_, size_bytes, append);
}

void PatternWeights::matrix(WeightKind kind, std::uint32_t num_out, std::uint32_t num_in,
                            const Append& append) const {
    const MatrixLayout layout = matrix_layout(kind, num_out, num_in, model_.group_size);
    if (kind != WeightKind::int4) return codes(kind, layout.size_bytes, append);
    codes(kind, layout.scale_zero_bytes_at, append);
    give(scales_, layout.size_bytes - layout.scale_zero_bytes_at, append);
}

// Appends codes, scales and zeros of gate and up, then of down, then biases; only codes have scales
// and zeros.
void PatternWeights::ffn(const ExpertShape& shape, WeightKind kind, const Append& append) const {
    const ExpertBlobLayout blob = expert_blob_layout(shape, expert_dtype_of(kind));
    const std::uint64_t biases_at = shape.has_bias ? blob.gate_up_bias.offset_bytes
                                                   : blob.size_bytes;
    const std::uint64_t ends[] = {blob.gate_up_scale_zero.offset_bytes,
                                  blob.down_codes.offset_bytes, blob.down_scale_zero.offset_bytes,
                                  biases_at};
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < 4; at = ends[i++]) {
        if (ends[i] == at) continue;
        if (i % 2 == 0)
            codes(kind, ends[i] - at, append);
        else
            give(kind == WeightKind::mxfp4 ? exponents_ : scales_, ends[i] - at, append);
    }
    give(floats_, blob.size_bytes - biases_at, append);
}

}  // namespace moex
