#include "hub/engine/decoder_weights.h"

namespace moex {
namespace {

constexpr std::uint32_t head_group_size = 32;  // of 6 bits

std::string shape_text(std::span<const std::uint64_t> shape) {
    std::string out = "[";
    for (const std::uint64_t size : shape) out += text(out.size() > 1 ? ", " : "", size);
    return out + "]";
}

class Loader {
  public:
    Loader(const ModelPackage& package, DecoderWeights& weights, Arithmetic arithmetic,
           PackedDtype hub_dtype, ThreadPool& threads)
        : package_(package),
          weights_(weights),
          arithmetic_(arithmetic),
          hub_dtype_(hub_dtype),
          threads_(threads) {}

    Result<TensorView> tensor(const std::string& name, std::vector<std::uint64_t> shape) const {
        MOEX_ASSIGN(found, package_.tensor(name));
        if (found.shape != shape)
            return Error{ErrorCode::bad_file,
                         text(package_.directory().string(), ": ", name, " is ",
                              shape_text(found.shape), ", config wants ", shape_text(shape))};
        return found;
    }
    Status vector(std::vector<float>& out, const std::string& name, std::uint64_t size) const {
        MOEX_ASSIGN(found, tensor(name, {size}));
        out.resize(size);
        tensor_to_float(found, 0, out);
        return {};
    }
    Status matrix(WeightMatrix& out, const std::string& name, std::uint32_t num_out,
                  std::uint32_t num_in) {
        MOEX_ASSIGN(found, tensor(name, {num_out, num_in}));
        out = matrix_of(found, num_out, num_in);
        return {};
    }
    Status matrix(HubMatrix& out, const std::string& name, std::uint32_t num_out,
                  std::uint32_t num_in) {
        MOEX_ASSIGN(found, tensor(name, {num_out, num_in}));
        out = hub_matrix_of(found, num_out, num_in, hub_dtype_);
        return {};
    }
    // Rounding the LM head costs the most accuracy. So a packed head has at least 6 bits and
    // smaller groups, and a head with codes of 8 bits keeps its codes.
    HubMatrix head_of(const TensorView& found, std::uint32_t num_out, std::uint32_t num_in) {
        if (hub_dtype_ == PackedDtype::int8 || found.dtype == TensorDtype::int8)
            return hub_matrix_of(found, num_out, num_in, PackedDtype::int8);
        return hub_matrix_of(found, num_out, num_in, PackedDtype::int6, head_group_size);
    }
    HubMatrix hub_matrix_of(const TensorView& found, std::uint32_t num_out, std::uint32_t num_in,
                            PackedDtype dtype, std::uint32_t group_size = 0) {
        HubMatrix out;
        if (arithmetic_ == Arithmetic::int8 && stays_in_codes(found, dtype)) {
            pack_codes(out.packed, found, num_out, num_in);
            return out;
        }

        const std::size_t num_converted = weights_.converted.size();
        out.exact = matrix_of(found, num_out, num_in);
        if (arithmetic_ == Arithmetic::exact) return out;

        pack_hub_matrix(out.packed, out.exact, dtype, weights_.packed, threads_, group_size);
        out.exact = {};
        // drop f32 copies from which a packed matrix was made
        weights_.converted.resize(num_converted);
        return out;
    }
    WeightMatrix matrix_of(const TensorView& found, std::uint32_t num_out, std::uint32_t num_in) {
        if (found.dtype == TensorDtype::bf16)
            return {found.data.data(), WeightDtype::bf16, num_out, num_in};
        if (found.dtype == TensorDtype::f32)
            return {found.data.data(), WeightDtype::f32, num_out, num_in};

        const std::uint64_t count = found.num_elements();
        weights_.converted.emplace_back(new float[count]);
        tensor_to_float(found, 0, {weights_.converted.back().get(), count});
        return {weights_.converted.back().get(), WeightDtype::f32, num_out, num_in};
    }

  private:
    // Returns true if a matrix keeps the codes that it has in the package. Codes of 4 bits are
    // never widened to 8 bits, which would restore no precision.
    static bool stays_in_codes(const TensorView& found, PackedDtype asked) {
        return found.dtype == TensorDtype::int4 ||
               (found.dtype == TensorDtype::int8 && asked == PackedDtype::int8);
    }
    void pack_codes(PackedMatrix& out, const TensorView& found, std::uint32_t num_out,
                    std::uint32_t num_in) {
        if (found.dtype == TensorDtype::int8)
            pack_hub_matrix(out,
                            Int8Matrix{reinterpret_cast<const std::int8_t*>(found.data.data()),
                                       reinterpret_cast<const float*>(found.scales.data()), num_out,
                                       num_in, found.group_size},
                            weights_.packed, threads_);
        else
            pack_hub_matrix(out,
                            Int4Matrix{reinterpret_cast<const std::uint32_t*>(found.data.data()),
                                       reinterpret_cast<const std::uint32_t*>(found.scales.data()),
                                       num_out, num_in, found.group_size},
                            weights_.packed, threads_);
    }

    const ModelPackage& package_;
    DecoderWeights& weights_;
    Arithmetic arithmetic_;
    PackedDtype hub_dtype_;
    ThreadPool& threads_;
};

Status load_layer(Loader& load, DecoderLayer& layer, const ModelConfig& config,
                  std::uint32_t index) {
    const std::string at = text("model.layers.", index, ".");
    const std::uint32_t hidden = config.hidden_size, q_size = config.num_heads * config.head_dim,
                        kv_size = config.num_kv_heads * config.head_dim;

    MOEX_TRY(load.vector(layer.input_norm, at + "input_layernorm.weight", hidden));
    MOEX_TRY(
        load.vector(layer.post_attention_norm, at + "post_attention_layernorm.weight", hidden));
    if (config.has_qk_norm()) {
        MOEX_TRY(load.vector(layer.q_norm, at + "self_attn.q_norm.weight", config.head_dim));
        MOEX_TRY(load.vector(layer.k_norm, at + "self_attn.k_norm.weight", config.head_dim));
    }
    MOEX_TRY(load.matrix(layer.q, at + "self_attn.q_proj.weight", q_size, hidden));
    MOEX_TRY(load.matrix(layer.k, at + "self_attn.k_proj.weight", kv_size, hidden));
    MOEX_TRY(load.matrix(layer.v, at + "self_attn.v_proj.weight", kv_size, hidden));
    MOEX_TRY(load.matrix(layer.o, at + "self_attn.o_proj.weight", hidden, q_size));

    if (config.attention_bias) {
        MOEX_TRY(load.vector(layer.q_bias, at + "self_attn.q_proj.bias", q_size));
        MOEX_TRY(load.vector(layer.k_bias, at + "self_attn.k_proj.bias", kv_size));
        MOEX_TRY(load.vector(layer.v_bias, at + "self_attn.v_proj.bias", kv_size));
    }
    if (config.has_o_bias())
        MOEX_TRY(load.vector(layer.o_bias, at + "self_attn.o_proj.bias", hidden));

    if (config.is_moe(index))
        return load.matrix(layer.router, at + "mlp.gate.weight", config.num_experts, hidden);

    MOEX_TRY(
        load.matrix(layer.gate, at + "mlp.gate_proj.weight", config.intermediate_size, hidden));
    MOEX_TRY(load.matrix(layer.up, at + "mlp.up_proj.weight", config.intermediate_size, hidden));
    return load.matrix(layer.down, at + "mlp.down_proj.weight", hidden, config.intermediate_size);
}

}  // namespace

Result<DecoderWeights> load_decoder_weights(const ModelPackage& package, Arithmetic arithmetic,
                                            std::optional<PackedDtype> asked, ThreadPool& threads) {
    const ModelConfig& config = package.config();
    const PackedDtype hub_dtype = asked.value_or(
        package.hub_dtype() == HubDtype::bf16 ? PackedDtype::int6 : PackedDtype::int8);
    DecoderWeights weights;
    Loader load(package, weights, arithmetic, hub_dtype, threads);

    MOEX_ASSIGN(embeddings,
                load.tensor("model.embed_tokens.weight", {config.vocab_size, config.hidden_size}));
    weights.embeddings = embeddings;

    MOEX_TRY(load.vector(weights.final_norm, "model.norm.weight", config.hidden_size));

    TensorView head = weights.embeddings;
    if (!config.tied_embeddings) {
        MOEX_ASSIGN(own, load.tensor("lm_head.weight", {config.vocab_size, config.hidden_size}));
        head = own;
    }
    weights.head = load.head_of(head, config.vocab_size, config.hidden_size);

    weights.layers.resize(config.num_layers);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        MOEX_TRY(load_layer(load, weights.layers[layer], config, layer));

    // Release the mapped file pages of the hub's tensors, since most of them are packed now.
    // Routers and rows of embeddings are loaded again when they are read.
    if (arithmetic == Arithmetic::int8) package.release_hub_tensors();
    return weights;
}

}  // namespace moex
