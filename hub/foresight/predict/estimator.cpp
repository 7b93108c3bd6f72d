#include "hub/foresight/predict/estimator.h"

#include <algorithm>
#include <cmath>

#include "hub/engine/kernels/matmul.h"
#include "hub/foresight/predict/gate_predictors.h"
#include "hub/foresight/predict/random.h"
#include "hub/model/package/package.h"
#include "hub/model/package/side_tensors.h"
#include "protocol/check.h"

namespace moex {
namespace {

constexpr float norm_eps = 1e-5f;
constexpr const char* part_names[] = {
    "projection.weight", "embedding",   "inner.weight", "inner.bias",  "outer.weight",
    "outer.bias",        "norm.weight", "norm.bias",    "head.weight", "head.bias"};
static_assert(std::size(part_names) == Estimator::num_parts);

std::uint64_t product_of(std::span<const std::uint64_t> shape) {
    std::uint64_t product = 1;
    for (const std::uint64_t size : shape) product *= size;
    return product;
}

// Computes out [rows, num_out] = x [rows, num_in] · weightsᵀ.
void multiply(std::span<float> out, std::span<const float> weights, std::span<const float> x,
              std::size_t num_in, ThreadPool& threads) {
    const auto num_out = static_cast<std::uint32_t>(weights.size() / num_in);
    const MatmulJob job[] = {
        {{out.data(), num_out},
         {weights.data(), WeightDtype::f32, num_out, static_cast<std::uint32_t>(num_in)},
         {x.data(), num_in, static_cast<std::uint32_t>(x.size() / num_in)}}};
    matmul(job, threads);
}

// Transposes [rows, columns] to [columns, rows].
std::vector<float> transposed(std::span<const float> x, std::size_t columns) {
    const std::size_t rows = x.size() / columns;
    std::vector<float> out(x.size());
    constexpr std::size_t tile = 16;
    for (std::size_t r0 = 0; r0 < rows; r0 += tile)
        for (std::size_t c0 = 0; c0 < columns; c0 += tile)
            for (std::size_t r = r0; r < std::min(r0 + tile, rows); ++r)
                for (std::size_t c = c0; c < std::min(c0 + tile, columns); ++c)
                    out[c * rows + r] = x[r * columns + c];
    return out;
}

// Computes dx [rows, num_in] = dy [rows, num_out] · weights [num_out, num_in]
void multiply_back(std::span<float> dx, std::span<const float> weights, std::span<const float> dy,
                   std::size_t num_in, ThreadPool& threads) {
    multiply(dx, transposed(weights, num_in), dy, weights.size() / num_in, threads);
}

// Computes dw [num_out, num_in] = dyᵀ · x
void weight_gradient(std::span<float> dw, std::span<const float> dy, std::span<const float> x,
                     std::size_t num_in, ThreadPool& threads) {
    const std::size_t rows = x.size() / num_in;
    multiply(dw, transposed(x, num_in), transposed(dy, dy.size() / rows), rows, threads);
}

void add_to_rows(std::span<float> rows, std::span<const float> bias) {
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += bias[i % bias.size()];
}
void sum_rows(std::span<float> sum, std::span<const float> rows) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (std::size_t i = 0; i < rows.size(); ++i) sum[i % sum.size()] += rows[i];
}
float sigmoid(float value) { return 1 / (1 + std::exp(-value)); }

// Normalises each row of u: unit = (u − mean) · scale, with scale = 1 / sqrt(variance + eps).
void normalise(std::span<float> unit, std::span<float> scale, std::span<const float> u,
               std::size_t width) {
    for (std::size_t row = 0; row < scale.size(); ++row) {
        const auto from = u.subspan(row * width, width);
        float mean = 0, variance = 0;
        for (const float value : from) mean += value;
        mean /= static_cast<float>(width);
        for (const float value : from) variance += (value - mean) * (value - mean);
        variance /= static_cast<float>(width);

        scale[row] = 1 / std::sqrt(variance + norm_eps);
        for (std::size_t i = 0; i < width; ++i)
            unit[row * width + i] = (from[i] - mean) * scale[row];
    }
}

// Replaces the gradient of normalise()'s result by the gradient of its argument.
void normalise_back(std::span<float> gradient, std::span<const float> unit,
                    std::span<const float> scale, std::size_t width) {
    for (std::size_t row = 0; row < scale.size(); ++row) {
        float mean = 0, along = 0;
        for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
            mean += gradient[i];
            along += gradient[i] * unit[i];
        }
        mean /= static_cast<float>(width);
        along /= static_cast<float>(width);
        for (std::size_t i = row * width; i < (row + 1) * width; ++i)
            gradient[i] = scale[row] * (gradient[i] - mean - unit[i] * along);
    }
}

}  // namespace

Estimator::Estimator(EstimatorShape shape) : shape_(shape) {
    for (int i = 0; i < num_parts; ++i)
        offsets_[i + 1] = offsets_[i] + product_of(shape_of(static_cast<Part>(i)));
    parameters_.resize(offsets_[num_parts]);
}

Estimator::Estimator(EstimatorShape shape, std::uint64_t seed) : Estimator(shape) {
    SplitMix64 random(seed);
    const auto fill = [&](Part which, float range) {
        for (float& value : part(parameters(), which)) value = (2 * random.unit() - 1) * range;
    };
    const auto range_of = [](std::uint32_t num_in) {
        // bound of uniform values with a variance of 1 / num_in
        return std::sqrt(3.0f / static_cast<float>(num_in));
    };
    fill(projection, range_of(shape.hidden_size));
    fill(embedding, 0.5f);
    fill(inner_weight, range_of(shape.width));
    fill(outer_weight, range_of(shape.inner));
    for (float& value : part(parameters(), norm_weight)) value = 1;
}

std::vector<std::uint64_t> Estimator::shape_of(Part part) const {
    const std::uint64_t width = shape_.width, inner = shape_.inner, targets = shape_.num_targets;
    switch (part) {
        case projection: return {width, shape_.hidden_size};
        case embedding: return {targets, width};
        case inner_weight: return {inner, width};
        case inner_bias: return {inner};
        case outer_weight: return {width, inner};
        case outer_bias:
        case norm_weight:
        case norm_bias: return {width};
        case head_weight: return {targets, shape_.num_experts, width};
        case head_bias: return {targets, shape_.num_experts};
        case num_parts: break;
    }
    return {};
}

std::vector<SideTensor> Estimator::to_side_tensors() const {
    std::vector<SideTensor> tensors;
    for (int i = 0; i < num_parts; ++i) {
        const auto values = part(static_cast<Part>(i));
        const auto shape = shape_of(static_cast<Part>(i));
        tensors.push_back({.name = part_names[i],
                           .dtype = shape.size() > 1 ? TensorDtype::bf16 : TensorDtype::f32,
                           .shape = shape,
                           .values = {values.begin(), values.end()}});
    }
    return tensors;
}

Result<Estimator> Estimator::load(const ModelPackage& package) {
    const ModelConfig& config = package.config();
    const auto num_moe = static_cast<std::uint32_t>(
        std::count_if(config.layers.begin(), config.layers.end(),
                      [](const LayerPlan& plan) { return plan.is_routed; }));
    MOEX_ASSIGN(file, SideTensors::open(package, SideFile::estimator));
    MOEX_ASSIGN(inner, file.shape_of(part_names[inner_weight]));
    constexpr std::uint64_t size_max = 1 << 16;
    if (inner.size() != 2 || std::max(inner[0], inner[1]) > size_max)
        return Error{ErrorCode::bad_file,
                     text(package.directory().string(), ": estimator: ", part_names[inner_weight],
                          " is ", shape_text(inner))};

    Estimator estimator({.hidden_size = config.hidden_size,
                         .num_experts = config.num_experts,
                         .num_targets = num_moe > 0 ? num_moe - 1 : 0,
                         .width = static_cast<std::uint32_t>(inner[1]),
                         .inner = static_cast<std::uint32_t>(inner[0])});
    for (int i = 0; i < num_parts; ++i) {
        const auto which = static_cast<Part>(i);
        MOEX_ASSIGN(values, file.values(part_names[i], estimator.shape_of(which)));
        std::copy(values.begin(), values.end(),
                  estimator.part(estimator.parameters(), which).begin());
    }
    return estimator;
}

void Estimator::forward(Pass& pass, std::span<const float> x, std::span<const Block> blocks,
                        ThreadPool& threads) const {
    const std::size_t width = shape_.width, num_rows = x.size() / shape_.hidden_size;
    for (auto* rows : {&pass.z, &pass.u, &pass.normed, &pass.unit}) rows->resize(num_rows * width);
    for (auto* rows : {&pass.a, &pass.s}) rows->resize(num_rows * shape_.inner);
    pass.scale.resize(num_rows);
    pass.logits.resize(num_rows * shape_.num_experts);

    multiply(pass.z, part(projection), x, shape_.hidden_size, threads);
    for (const Block& block : blocks)
        add_to_rows(std::span(pass.z).subspan(block.first_row * width, block.num_rows * width),
                    part(embedding).subspan(block.target * width, width));

    multiply(pass.a, part(inner_weight), pass.z, width, threads);
    add_to_rows(pass.a, part(inner_bias));
    for (std::size_t i = 0; i < pass.a.size(); ++i) pass.s[i] = pass.a[i] * sigmoid(pass.a[i]);

    multiply(pass.u, part(outer_weight), pass.s, shape_.inner, threads);
    add_to_rows(pass.u, part(outer_bias));
    for (std::size_t i = 0; i < pass.u.size(); ++i) pass.u[i] += pass.z[i];

    normalise(pass.unit, pass.scale, pass.u, width);
    for (std::size_t i = 0; i < pass.unit.size(); ++i)
        pass.normed[i] = pass.unit[i] * part(norm_weight)[i % width] + part(norm_bias)[i % width];

    const std::size_t experts = shape_.num_experts;
    for (const Block& block : blocks) {
        const auto out =
            std::span(pass.logits).subspan(block.first_row * experts, block.num_rows * experts);
        multiply(out, part(head_weight).subspan(block.target * experts * width, experts * width),
                 std::span(pass.normed).subspan(block.first_row * width, block.num_rows * width),
                 width, threads);
        add_to_rows(out, part(head_bias).subspan(block.target * experts, experts));
    }
}

void Estimator::backward(std::span<float> gradient, const Pass& pass, std::span<const float> x,
                         std::span<const float> logit_gradient, std::span<const Block> blocks,
                         ThreadPool& threads) const {
    MOEX_CHECK(gradient.size() == parameters_.size(), "a gradient is laid out as the parameters");
    const std::size_t width = shape_.width, experts = shape_.num_experts, inner = shape_.inner;
    std::fill(gradient.begin(), gradient.end(), 0.0f);

    std::vector<float> du(pass.u.size()), da(pass.a.size()), dz(pass.z.size());
    for (const Block& block : blocks) {
        const auto dy = logit_gradient.subspan(block.first_row * experts, block.num_rows * experts);
        const std::size_t first = block.first_row * width, size = block.num_rows * width;
        const std::size_t head = block.target * experts;
        sum_rows(part(gradient, head_bias).subspan(head, experts), dy);
        weight_gradient(part(gradient, head_weight).subspan(head * width, experts * width), dy,
                        std::span(pass.normed).subspan(first, size), width, threads);
        multiply_back(std::span(du).subspan(first, size),
                      part(head_weight).subspan(head * width, experts * width), dy, width, threads);
    }

    sum_rows(part(gradient, norm_bias), du);
    for (std::size_t i = 0; i < du.size(); ++i) {
        part(gradient, norm_weight)[i % width] += du[i] * pass.unit[i];
        du[i] *= part(norm_weight)[i % width];
    }
    normalise_back(du, pass.unit, pass.scale, width);

    sum_rows(part(gradient, outer_bias), du);
    weight_gradient(part(gradient, outer_weight), du, pass.s, inner, threads);
    multiply_back(da, part(outer_weight), du, inner, threads);
    for (std::size_t i = 0; i < da.size(); ++i) {
        const float gate = sigmoid(pass.a[i]);
        da[i] *= gate * (1 + pass.a[i] * (1 - gate));
    }

    sum_rows(part(gradient, inner_bias), da);
    weight_gradient(part(gradient, inner_weight), da, pass.z, width, threads);
    multiply_back(dz, part(inner_weight), da, width, threads);
    for (std::size_t i = 0; i < dz.size(); ++i) dz[i] += du[i];

    for (const Block& block : blocks)
        sum_rows(part(gradient, embedding).subspan(block.target * width, width),
                 std::span(dz).subspan(block.first_row * width, block.num_rows * width));
    weight_gradient(part(gradient, projection), dz, x, shape_.hidden_size, threads);
}

namespace {

class EstimatorPredictor : public ExpertPredictor {
  public:
    EstimatorPredictor(std::shared_ptr<const RouterGates> gates,
                       std::shared_ptr<const ExpertProfile> profile,
                       std::shared_ptr<const Estimator> estimator)
        : gates_(std::move(gates)),
          profile_(std::move(profile)),
          estimator_(std::move(estimator)) {}
    std::string_view name() const override { return "estimator"; }
    bool predict(const RouteView& seen, std::uint32_t target_layer,
                 std::span<float> confidence) override {
        const auto layers = gates_->moe_layers();
        const auto target = std::find(layers.begin(), layers.end(), target_layer);
        if (target == layers.begin() || target == layers.end() || *(target - 1) != seen.layer)
            return false;

        hidden_.resize(seen.residual.size());
        quasi_hidden(hidden_, seen, target_layer, *gates_, *profile_);
        gates_->logits(confidence, target_layer, hidden_);

        const Estimator::Block block{
            .target = static_cast<std::uint32_t>(target - layers.begin() - 1),
            .num_rows = seen.num_tokens};
        estimator_->forward(pass_, hidden_, {&block, 1}, gates_->threads());
        for (std::size_t i = 0; i < confidence.size(); ++i) confidence[i] += pass_.logits[i];
        return true;
    }

  private:
    std::shared_ptr<const RouterGates> gates_;
    std::shared_ptr<const ExpertProfile> profile_;
    std::shared_ptr<const Estimator> estimator_;
    std::vector<float> hidden_;
    Estimator::Pass pass_;
};

}  // namespace

std::unique_ptr<ExpertPredictor> make_estimator_predictor(
    std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile,
    std::shared_ptr<const Estimator> estimator) {
    return std::make_unique<EstimatorPredictor>(std::move(gates), std::move(profile),
                                                std::move(estimator));
}

}  // namespace moex
