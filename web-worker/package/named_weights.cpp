#include "web-worker/package/named_weights.h"

#include <algorithm>
#include <cstring>

#include "protocol/half.h"
#include "protocol/hub_codes.h"

namespace moex {
namespace {

std::string layer_name(std::uint32_t layer) { return text("model.layers.", layer, "."); }

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
    return dtype == ExpertDtype::int4   ? WeightKind::int4
           : dtype == ExpertDtype::bf16 ? WeightKind::bf16
                                        : WeightKind::f32;
}

Status find_kinds(const PackageFiles& files, DecoderModel& model) {
    std::vector<std::string> tables = {"model.embed_tokens.weight"}, attention, routers, dense;
    if (!model.tied_embeddings) tables.push_back("lm_head.weight");
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer) {
        const std::string at = layer_name(layer);
        for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
            attention.push_back(text(at, "self_attn.", name, ".weight"));
        if (model.is_moe(layer)) {
            routers.push_back(at + "mlp.gate.weight");
            continue;
        }
        for (const char* name : {"gate_proj", "up_proj", "down_proj"})
            dense.push_back(text(at, "mlp.", name, ".weight"));
    }
    MOEX_ASSIGN(table_kind, kind_of(files, tables, model.group_size));
    MOEX_ASSIGN(attention_kind, kind_of(files, attention, model.group_size));
    MOEX_ASSIGN(router_kind, kind_of(files, routers, model.group_size));
    MOEX_ASSIGN(dense_kind, kind_of(files, dense, model.group_size));
    model.table_kind = table_kind;
    model.attention_kind = attention_kind;
    model.router_kind = router_kind;
    model.dense_kind = dense_kind;
    return {};
}

}  // namespace

Result<DecoderModel> decoder_model_of(const PackageFiles& files) {
    const ModelConfig& config = files.config();
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
    model.layer_is_moe = config.layer_is_moe;
    model.norm_topk_prob = config.norm_topk_prob;
    model.qk_norm = config.has_qk_norm();
    model.qkv_bias = config.attention_bias;
    model.o_bias = config.has_o_bias();
    model.tied_embeddings = config.tied_embeddings;
    model.rms_norm_eps = config.rms_norm_eps;
    model.rope_theta = config.rope_theta;
    model.rope_scaling = config.rope_scaling;
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

// Appends a blob: an expert as it is stored, or the three matrices of a dense layer in a blob's
// layout.
Status NamedWeights::ffn(const WeightPart& part, const std::string& layer,
                         const AppendBytes& append) const {
    if (model_.is_moe(part.layer)) return files_.read_expert(part.layer, part.expert, append);

    const ExpertBlobLayout layout = expert_blob_layout(model_.ffn_shape(part.layer),
                                                       expert_dtype_of(model_.dense_kind));
    const std::string gate = layer + "mlp.gate_proj.weight", up = layer + "mlp.up_proj.weight",
                      down = layer + "mlp.down_proj.weight";
    const bool is_int4 = model_.dense_kind == WeightKind::int4;
    std::uint64_t at = 0;
    const auto counted = [&](ByteView bytes) {
        at += bytes.size();
        append(bytes);
    };
    const auto pad_to = [&](std::uint64_t offset_bytes) {
        if (offset_bytes > at) counted(Bytes(offset_bytes - at));
    };

    for (const std::string& name : {gate, up}) MOEX_TRY(whole(name, model_.dense_kind, counted));
    if (is_int4) {
        pad_to(layout.gate_up_scale_zero.offset_bytes);
        for (const std::string& name : {gate, up}) MOEX_TRY(int4_scales(name, counted));
    }
    pad_to(layout.down_codes.offset_bytes);
    MOEX_TRY(whole(down, model_.dense_kind, counted));
    if (is_int4) {
        pad_to(layout.down_scale_zero.offset_bytes);
        MOEX_TRY(int4_scales(down, counted));
    }
    pad_to(layout.size_bytes);
    return {};
}

Status NamedWeights::read(const WeightPart& part, const AppendBytes& append) {
    using Name = WeightPart::Name;
    const std::string layer = layer_name(part.layer), attention = layer + "self_attn.";
    const auto qkv = [&](const char* what, WeightKind kind) {
        return stacked({text(attention, "q_proj", what), text(attention, "k_proj", what),
                        text(attention, "v_proj", what)},
                       kind, append);
    };
    const auto vector = [&](const std::string& name) {
        return whole(name, WeightKind::f32, append);
    };

    switch (part.name) {
        case Name::embedding_rows:
            return rows("model.embed_tokens.weight", model_.table_kind, part.first_row,
                        part.num_rows, append);
        case Name::head_rows:
            return rows("lm_head.weight", model_.table_kind, part.first_row, part.num_rows, append);
        case Name::qkv: return qkv(".weight", model_.attention_kind);
        case Name::o: return stacked({attention + "o_proj.weight"}, model_.attention_kind, append);
        case Name::router: return whole(layer + "mlp.gate.weight", model_.router_kind, append);
        case Name::ffn: return ffn(part, layer, append);
        case Name::final_norm: return vector("model.norm.weight");
        case Name::input_norm: return vector(layer + "input_layernorm.weight");
        case Name::post_attention_norm: return vector(layer + "post_attention_layernorm.weight");
        case Name::q_norm: return vector(attention + "q_norm.weight");
        case Name::k_norm: return vector(attention + "k_norm.weight");
        case Name::qkv_bias: return qkv(".bias", WeightKind::f32);
        case Name::o_bias: return vector(attention + "o_proj.bias");
    }
    return Error{ErrorCode::internal, "no such part"};
}

}  // namespace moex
