#include "hub/foresight/predict/router_gates.h"

#include "hub/engine/kernels/matmul.h"
#include "hub/model/package/hub_specs.h"

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
    const auto tensor = [&](HubPart part) -> Result<TensorView> {
        const HubTensorSpec spec = hub_tensor_spec(config, part, index);
        MOEX_ASSIGN(found, package_->tensor(spec.name));
        if (found.shape != spec.shape)
            return Error{ErrorCode::bad_file,
                         text(package_->directory().string(), ": ", spec.name, " is ",
                              shape_text(found.shape), ", config wants ", shape_text(spec.shape))};
        return found;
    };
    const auto read = [&](HubPart part, std::vector<float>& out) -> Status {
        MOEX_ASSIGN(found, tensor(part));
        out.resize(found.num_elements());
        tensor_to_float(found, 0, out);
        return {};
    };
    Layer& layer = layers_[index];
    const LayerPlan& plan = config.layers[index];

    MOEX_TRY(read(HubPart::post_attention_norm, layer.norm));
    if (plan.norms_add_one)
        for (float& weight : layer.norm) weight += 1.0f;
    if (plan.router.has_bias) MOEX_TRY(read(HubPart::router_bias, layer.bias));
    if (plan.router.has_correction_bias)
        MOEX_TRY(read(HubPart::correction_bias, layer.correction_bias));

    MOEX_ASSIGN(router, tensor(HubPart::router));
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
    if (layers_[layer].bias.empty()) return;
    const std::size_t experts = config().num_experts;
    for (std::size_t at = 0; at < out.size(); at += experts)
        add_to(out.subspan(at, experts), layers_[layer].bias);
}

RouterOptions RouterGates::options(std::uint32_t layer) const {
    return {config().top_k, config().layers[layer].router, layers_[layer].correction_bias};
}

}  // namespace moex
