#include "hub/foresight/predict/router_gates.h"

#include "hub/engine/kernels/matmul.h"

namespace moex {

Result<RouterGates> RouterGates::load(std::shared_ptr<const ModelPackage> package,
                                      ThreadPool& threads) {
    RouterGates gates;
    gates.package_ = std::move(package);
    gates.threads_ = &threads;

    const ModelConfig& config = gates.config();
    if (!config.has_experts())
        return Error{ErrorCode::unsupported,
                     text(gates.package_->name(), ": a dense model has no experts to predict")};
    gates.layers_.resize(config.num_layers);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (!config.is_moe(layer)) continue;

        gates.moe_layers_.push_back(layer);
        MOEX_TRY(gates.load_layer(layer));
    }
    return gates;
}

Status RouterGates::load_layer(std::uint32_t index) {
    const ModelConfig& config = this->config();
    const std::string at = text("model.layers.", index, ".");
    const auto tensor = [&](const std::string& name,
                            const std::vector<std::uint64_t>& shape) -> Result<TensorView> {
        MOEX_ASSIGN(found, package_->tensor(at + name));
        if (found.shape != shape)
            return Error{ErrorCode::bad_file,
                         text(package_->directory().string(), ": ", at, name, " is ",
                              shape_text(found.shape), ", config wants ", shape_text(shape))};
        return found;
    };
    Layer& layer = layers_[index];

    MOEX_ASSIGN(norm, tensor("post_attention_layernorm.weight", {config.hidden_size}));
    layer.norm.resize(config.hidden_size);
    tensor_to_float(norm, 0, layer.norm);

    MOEX_ASSIGN(router, tensor("mlp.gate.weight", {config.num_experts, config.hidden_size}));
    layer.router = {router.data.data(), WeightDtype::f32, config.num_experts, config.hidden_size};
    if (router.dtype == TensorDtype::bf16) layer.router.dtype = WeightDtype::bf16;
    if (router.dtype == TensorDtype::f16) {
        layer.converted.resize(router.num_elements());
        tensor_to_float(router, 0, layer.converted);
        layer.router.data = layer.converted.data();
    }
    return {};
}

void RouterGates::logits(std::span<float> out, std::uint32_t layer,
                         std::span<const float> x) const {
    const std::uint32_t hidden = config().hidden_size;
    const MatmulJob job[] = {{{out.data(), config().num_experts},
                              layers_[layer].router,
                              {x.data(), hidden, static_cast<std::uint32_t>(x.size() / hidden)}}};
    matmul(job, *threads_);
}

}  // namespace moex
