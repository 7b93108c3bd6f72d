#include "hub/foresight/predict/expert_profile.h"

#include <algorithm>
#include <mutex>

#include "hub/model/package/side_tensors.h"

namespace moex {
namespace {

class Calibration {
  public:
    Calibration(const ModelConfig& config, const ExpertCompute& compute, ThreadPool& threads)
        : compute_(compute),
          threads_(threads),
          profile_{.num_layers = config.num_layers,
                   .num_experts = config.num_experts,
                   .hidden_size = config.hidden_size} {
        const std::size_t units = std::size_t{config.num_layers} * config.num_experts;
        profile_.uses.resize(units);
        sums_.resize(units * config.hidden_size);
    }

    // Adds the answers for a layer's rows to the sums of their experts, for each expert in the
    // order of the text. Different experts are processed in parallel.
    void watch(const RouteView& route) {
        threads_.parallel_for(route.num_experts, 1, [&](std::size_t begin, std::size_t end) {
            for (std::size_t expert = begin; expert < end; ++expert) add(route, expert);
        });
    }

    Status status() const { return status_; }
    ExpertProfile finish(std::uint64_t num_tokens) {
        profile_.num_tokens = num_tokens;
        profile_.default_vectors.resize(sums_.size());
        for (std::size_t i = 0; i < sums_.size(); ++i) {
            const std::uint64_t uses = profile_.uses[i / profile_.hidden_size];
            if (uses > 0)
                profile_.default_vectors[i] = static_cast<float>(sums_[i] /
                                                                 static_cast<double>(uses));
        }
        return std::move(profile_);
    }

  private:
    void add(const RouteView& route, std::size_t expert) {
        const std::size_t hidden = profile_.hidden_size;
        std::vector<float> x;
        for (std::size_t pair = 0; pair < route.expert_ids.size(); ++pair) {
            if (route.expert_ids[pair] != expert) continue;
            const auto row = route.hidden.subspan(pair / route.top_k * hidden, hidden);
            x.insert(x.end(), row.begin(), row.end());
        }
        if (x.empty()) return;

        const std::size_t num_rows = x.size() / hidden;
        const std::vector<float> gates(num_rows, 1.0f);
        std::vector<float> y(x.size());
        const Status computed = compute_.compute(route.layer, static_cast<std::uint32_t>(expert), x,
                                                 gates, y);
        if (!computed.ok()) {
            const std::lock_guard lock(mutex_);
            status_ = computed;
            return;
        }

        const std::size_t unit = std::size_t{route.layer} * profile_.num_experts + expert;
        profile_.uses[unit] += num_rows;
        double* sum = sums_.data() + unit * hidden;
        for (std::size_t i = 0; i < y.size(); ++i) sum[i % hidden] += double{y[i]};
    }

    const ExpertCompute& compute_;
    ThreadPool& threads_;
    ExpertProfile profile_;
    std::vector<double> sums_;  // [num_layers, num_experts, hidden_size]
    std::mutex mutex_;
    Status status_;
};

}  // namespace

Result<ExpertProfile> calibrate_experts(
    Decoder& decoder, ExpertBackend& experts, const ExpertCompute& compute,
    std::span<const TokenId> tokens, const WindowOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t)>& ended) {
    MOEX_ASSIGN(num_windows, count_windows(decoder.config(), tokens.size(), options));

    Calibration calibration(decoder.config(), compute, decoder.threads());
    MOEX_TRY(walk_windows(
        decoder, experts, tokens, options,
        [&](const RouteView& route) { calibration.watch(route); }, ended));
    MOEX_TRY(calibration.status());
    return calibration.finish(std::uint64_t{num_windows} * options.window_tokens);
}

std::vector<SideTensor> to_side_tensors(const ExpertProfile& profile, const ModelConfig& config) {
    std::vector<SideTensor> tensors{
        {.name = "num_tokens", .shape = {1}, .values = {static_cast<float>(profile.num_tokens)}}};
    const std::uint64_t experts = profile.num_experts, hidden = profile.hidden_size;
    for (std::uint32_t layer = 0; layer < profile.num_layers; ++layer) {
        if (!config.is_moe(layer)) continue;

        const auto uses = profile.uses_of(layer);
        const auto vectors =
            std::span(profile.default_vectors).subspan(layer * experts * hidden, experts * hidden);
        tensors.push_back({.name = text("layers.", layer, ".uses"),
                           .shape = {experts},
                           .values = {uses.begin(), uses.end()}});
        tensors.push_back({.name = text("layers.", layer, ".default_vectors"),
                           .dtype = TensorDtype::bf16,
                           .shape = {experts, hidden},
                           .values = {vectors.begin(), vectors.end()}});
    }
    return tensors;
}

Result<ExpertProfile> load_expert_profile(const ModelPackage& package) {
    const ModelConfig& config = package.config();
    const std::uint64_t experts = config.num_experts, hidden = config.hidden_size;
    MOEX_ASSIGN(file, SideTensors::open(package, SideFile::default_vectors));
    MOEX_ASSIGN(num_tokens, file.values("num_tokens", {1}));
    ExpertProfile profile{.num_layers = config.num_layers,
                          .num_experts = config.num_experts,
                          .hidden_size = config.hidden_size,
                          .num_tokens = static_cast<std::uint64_t>(std::max(num_tokens[0], 0.0f))};
    profile.uses.resize(config.num_layers * experts);
    profile.default_vectors.resize(config.num_layers * experts * hidden);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (!config.is_moe(layer)) continue;

        MOEX_ASSIGN(uses, file.values(text("layers.", layer, ".uses"), {experts}));
        MOEX_ASSIGN(vectors,
                    file.values(text("layers.", layer, ".default_vectors"), {experts, hidden}));
        std::transform(
            uses.begin(), uses.end(), profile.uses.begin() + layer * experts,
            [](float count) { return static_cast<std::uint64_t>(std::clamp(count, 0.0f, 1e15f)); });
        std::copy(vectors.begin(), vectors.end(),
                  profile.default_vectors.begin() +
                      static_cast<std::ptrdiff_t>(layer * experts * hidden));
    }
    return profile;
}

}  // namespace moex
