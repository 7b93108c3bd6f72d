#include "hub/engine/decoder_weights.h"

#include <cmath>

#include "hub/model/package/hub_specs.h"

namespace moex {
namespace {

constexpr std::uint32_t head_group_size = 32;  // of 6 bits

class Loader {
  public:
    Loader(const ModelPackage& package, DecoderWeights& weights, Arithmetic arithmetic,
           PackedDtype hub_dtype, ThreadPool& threads)
        : package_(package),
          weights_(weights),
          arithmetic_(arithmetic),
          hub_dtype_(hub_dtype),
          threads_(threads) {}

    const ModelConfig& config() const { return package_.config(); }
    // Returns a tensor of a layer, or one outside the layers.
    Result<TensorView> tensor(HubPart part, std::uint32_t layer = 0) const {
        const HubTensorSpec spec = hub_tensor_spec(package_.config(), part, layer);
        MOEX_ASSIGN(found, package_.tensor(spec.name));
        if (found.shape != spec.shape)
            return Error{ErrorCode::bad_file,
                         text(package_.directory().string(), ": ", spec.name, " is ",
                              shape_text(found.shape), ", config wants ", shape_text(spec.shape))};
        return found;
    }
    Status vector(std::vector<float>& out, HubPart part, std::uint32_t layer = 0) const {
        MOEX_ASSIGN(found, tensor(part, layer));
        out.resize(found.num_elements());
        tensor_to_float(found, 0, out);
        return {};
    }
    // Reads the weights of a norm, which some models store as their difference from 1.
    Status norm(std::vector<float>& out, HubPart part, bool add_one,
                std::uint32_t layer = 0) const {
        MOEX_TRY(vector(out, part, layer));
        if (add_one)
            for (float& weight : out) weight += 1.0f;
        return {};
    }
    Status matrix(WeightMatrix& out, HubPart part, std::uint32_t layer) {
        MOEX_ASSIGN(found, tensor(part, layer));
        out = matrix_of(found, rows_of(found), columns_of(found));
        return {};
    }
    Status matrix(HubMatrix& out, HubPart part, std::uint32_t layer) {
        MOEX_ASSIGN(found, tensor(part, layer));
        out = hub_matrix_of(found, rows_of(found), columns_of(found), hub_dtype_);
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

        const auto count = static_cast<std::size_t>(found.num_elements());
        weights_.converted.emplace_back(new float[count]);
        tensor_to_float(found, 0, {weights_.converted.back().get(), count});
        return {weights_.converted.back().get(), WeightDtype::f32, num_out, num_in};
    }

  private:
    static std::uint32_t rows_of(const TensorView& found) {
        return static_cast<std::uint32_t>(found.shape[0]);
    }
    static std::uint32_t columns_of(const TensorView& found) {
        return static_cast<std::uint32_t>(found.shape[1]);
    }
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

Status load_delta_net(Loader& load, DeltaNetWeights& net, std::uint32_t index) {
    MOEX_TRY(load.matrix(net.qkv, HubPart::delta_qkv, index));
    MOEX_TRY(load.matrix(net.z, HubPart::delta_z, index));
    MOEX_TRY(load.matrix(net.out, HubPart::delta_out, index));
    MOEX_TRY(load.matrix(net.b, HubPart::delta_b, index));
    MOEX_TRY(load.matrix(net.a, HubPart::delta_a, index));
    MOEX_TRY(load.vector(net.decay_rate, HubPart::delta_a_log, index));
    for (float& rate : net.decay_rate) rate = -std::exp(rate);
    MOEX_TRY(load.vector(net.dt_bias, HubPart::delta_dt_bias, index));
    MOEX_TRY(load.vector(net.norm, HubPart::delta_norm, index));

    // The package has the taps of each channel one after the other.
    std::vector<float> by_channel;
    MOEX_TRY(load.vector(by_channel, HubPart::delta_conv, index));
    const DeltaNetSizes& sizes = load.config().delta_net;
    net.conv.resize(by_channel.size());
    for (std::size_t i = 0; i < by_channel.size(); ++i)
        net.conv[i % sizes.conv_taps * sizes.channels() + i / sizes.conv_taps] = by_channel[i];
    return {};
}

Status load_attention(Loader& load, DecoderLayer& layer, const LayerPlan& plan,
                      std::uint32_t index) {
    if (plan.qk_norm != QkNorm::none) {
        MOEX_TRY(load.norm(layer.q_norm, HubPart::q_norm, plan.norms_add_one, index));
        MOEX_TRY(load.norm(layer.k_norm, HubPart::k_norm, plan.norms_add_one, index));
    }
    MOEX_TRY(load.matrix(layer.q, HubPart::q, index));
    MOEX_TRY(load.matrix(layer.k, HubPart::k, index));
    MOEX_TRY(load.matrix(layer.v, HubPart::v, index));
    MOEX_TRY(load.matrix(layer.o, HubPart::o, index));

    if (plan.has_qkv_bias) {
        MOEX_TRY(load.vector(layer.q_bias, HubPart::q_bias, index));
        MOEX_TRY(load.vector(layer.k_bias, HubPart::k_bias, index));
        MOEX_TRY(load.vector(layer.v_bias, HubPart::v_bias, index));
    }
    if (plan.has_o_bias) MOEX_TRY(load.vector(layer.o_bias, HubPart::o_bias, index));
    if (plan.has_output_gate) MOEX_TRY(load.matrix(layer.output_gate, HubPart::output_gate, index));
    if (plan.has_sinks) MOEX_TRY(load.vector(layer.sinks, HubPart::sinks, index));
    return {};
}

Status load_ffn(Loader& load, DecoderLayer& layer, const LayerPlan& plan, std::uint32_t index) {
    if (!plan.is_routed) {
        MOEX_TRY(load.matrix(layer.gate, HubPart::gate, index));
        MOEX_TRY(load.matrix(layer.up, HubPart::up, index));
        return load.matrix(layer.down, HubPart::down, index);
    }

    MOEX_TRY(load.matrix(layer.router, HubPart::router, index));
    if (plan.router.has_bias) MOEX_TRY(load.vector(layer.router_bias, HubPart::router_bias, index));
    if (plan.router.has_correction_bias)
        MOEX_TRY(load.vector(layer.correction_bias, HubPart::correction_bias, index));
    if (plan.shared_size == 0) return {};

    MOEX_TRY(load.matrix(layer.gate, HubPart::shared_gate, index));
    MOEX_TRY(load.matrix(layer.up, HubPart::shared_up, index));
    MOEX_TRY(load.matrix(layer.down, HubPart::shared_down, index));
    if (plan.has_shared_gate)
        MOEX_TRY(load.matrix(layer.shared_expert_gate, HubPart::shared_expert_gate, index));
    return {};
}

// Loads embeddings and LM head. A draft head takes them from its model.
Status load_tables(Loader& load, DecoderWeights& weights, const DecoderWeights* model) {
    const ModelConfig& config = load.config();
    if (model != nullptr) {
        weights.embeddings = model->embeddings;
        weights.head = model->head;
        const bool add_one = config.layers.front().norms_add_one;
        MOEX_TRY(load.matrix(weights.draft_join, HubPart::draft_join, 0));
        MOEX_TRY(load.norm(weights.draft_embedding_norm, HubPart::draft_embedding_norm, add_one));
        return load.norm(weights.draft_hidden_norm, HubPart::draft_hidden_norm, add_one);
    }

    MOEX_ASSIGN(embeddings, load.tensor(HubPart::embeddings));
    weights.embeddings = embeddings;
    TensorView head = embeddings;
    if (!config.tied_embeddings) {
        MOEX_ASSIGN(own, load.tensor(HubPart::head));
        head = own;
    }
    weights.head = load.head_of(head, config.vocab_size, config.hidden_size);
    return {};
}

PackedDtype packed_dtype(const ModelPackage& package, std::optional<PackedDtype> asked) {
    return asked.value_or(package.hub_dtype() == HubDtype::bf16 ? PackedDtype::int6
                                                                : PackedDtype::int8);
}

}  // namespace

Result<DecoderWeights> load_decoder_tables(const ModelPackage& package, Arithmetic arithmetic,
                                           std::optional<PackedDtype> asked, ThreadPool& threads) {
    DecoderWeights weights;
    Loader load(package, weights, arithmetic, packed_dtype(package, asked), threads);
    MOEX_TRY(load_tables(load, weights, nullptr));
    return weights;
}

Result<DecoderWeights> load_decoder_weights(const ModelPackage& package, Arithmetic arithmetic,
                                            std::optional<PackedDtype> asked, ThreadPool& threads,
                                            const DecoderWeights* model) {
    const ModelConfig& config = package.config();
    if (config.is_draft_head != (model != nullptr))
        return Error{ErrorCode::invalid_argument,
                     text(package.directory().string(),
                          config.is_draft_head
                              ? ": the draft head of a model, which computes nothing without it; "
                                "use the folder above"
                              : ": a model, no draft head")};
    DecoderWeights weights;
    Loader load(package, weights, arithmetic, packed_dtype(package, asked), threads);

    MOEX_TRY(load_tables(load, weights, model));
    MOEX_TRY(
        load.norm(weights.final_norm, HubPart::final_norm, config.layers.front().norms_add_one));

    weights.layers.resize(config.num_layers);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        const LayerPlan& plan = config.layers[layer];
        DecoderLayer& to = weights.layers[layer];
        MOEX_TRY(load.norm(to.input_norm, HubPart::input_norm, plan.norms_add_one, layer));
        MOEX_TRY(load.norm(to.post_attention_norm, HubPart::post_attention_norm, plan.norms_add_one,
                           layer));
        MOEX_TRY(config.has_keys(layer) ? load_attention(load, to, plan, layer)
                                        : load_delta_net(load, to.delta_net, layer));
        MOEX_TRY(load_ffn(load, to, plan, layer));
    }

    // Release the mapped file pages of the hub's tensors, since most of them are packed now.
    // Routers and rows of embeddings are loaded again when they are read.
    if (arithmetic == Arithmetic::int8) package.release_hub_tensors();
    return weights;
}

}  // namespace moex
