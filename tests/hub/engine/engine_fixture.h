// A small model with random weights on disk, which is opened once per test program.
#pragma once

#include <filesystem>
#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "hub/base/sha256.h"
#include "hub/engine/decoder.h"
#include "hub/engine/local_experts.h"
#include "hub/engine/step_device.h"
#include "hub/model/config_json.h"
#include "hub/model/pack/synth.h"
#include "hub/model/package/package.h"

namespace moex::test {

// A temporary folder of this process, which is deleted when the process ends.
class TemporaryFolder {
  public:
    explicit TemporaryFolder(const std::string& name)
        : path_(std::filesystem::temp_directory_path() /
                text("moex-", name, "-", static_cast<long long>(::getpid()))) {
        std::filesystem::remove_all(path_);
        std::filesystem::create_directories(path_);
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

// A device that returns only logits, as a GPU does: it gives no hidden rows and takes no
// speculators.
class LogitsOnly : public StepDevice {
  public:
    explicit LogitsOnly(Decoder& decoder) : decoder_(decoder) {}
    const ModelConfig& config() const override { return decoder_.config(); }
    Result<StepResult> run(std::span<const StepRows> batch, ExpertBackend& experts,
                           std::uint32_t micro_batches, std::stop_token stop) override {
        return decoder_.run(batch, experts, micro_batches, std::move(stop));
    }
    void recycle(StepResult&& result) override { decoder_.recycle(std::move(result)); }
    ThreadPool& threads() const override { return decoder_.threads(); }

  private:
    Decoder& decoder_;
};

inline ThreadPool& compute_threads() {
    // At exit, OpenSSL frees only data that was created after OpenSSL's first use. So OpenSSL is
    // first used here, before the threads exist: its data for these threads, which compute digests,
    // is then freed.
    [[maybe_unused]] static const Sha256 first_use = sha256({});
    static ThreadPool threads(2);
    return threads;
}

// Returns the configuration of a model with every kind of layer: MoE and dense layers, biases,
// grouped heads, and two int4 groups per row.
inline ModelConfig tiny_config() {
    ModelConfig config;
    config.hidden_size = 64;
    config.num_layers = 4;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 32;
    config.vocab_size = 256;
    config.context_tokens = 256;
    config.num_experts = 8;
    config.top_k = 2;
    config.moe_intermediate_size = 96;
    config.intermediate_size = 160;
    config.layers = plain_layers({}, std::vector<std::uint8_t>{1, 0, 1, 1});
    config.tied_embeddings = true;
    return config;
}

// Returns the configuration of a model in which three of four layers have a gated delta rule.
inline ModelConfig hybrid_config() {
    ModelConfig config = tiny_config();
    config.delta_net = {
        .key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 24, .conv_taps = 4};
    for (LayerPlan& plan : config.layers) {
        plan.norms_add_one = true;
        plan.mixer = Mixer::gated_delta_rule;
    }
    LayerPlan& attends = config.layers[2];
    attends.mixer = Mixer::attention;
    attends.has_output_gate = true;
    attends.qk_norm = QkNorm::per_head;
    attends.rope.rotary_size = 8;
    attends.shared_size = 40;
    attends.has_shared_gate = true;
    return config;
}

inline std::shared_ptr<const ModelPackage> synth(const ModelConfig& config, const std::string& name,
                                                 ExpertDtype dtype = ExpertDtype::int4) {
    static const TemporaryFolder folder("engine");
    const auto out = folder.path() / name;
    const auto report = synth_package(config, name, 7, out, {.expert_dtype = dtype},
                                      compute_threads(), {});
    if (!report.ok()) throw std::runtime_error(report.error().message);
    auto opened = ModelPackage::open(out);
    if (!opened.ok()) throw std::runtime_error(opened.error().message);
    return std::move(opened).value();
}
inline std::shared_ptr<const ModelPackage> tiny_package() {
    static const std::shared_ptr<const ModelPackage> package = synth(tiny_config(), "tiny");
    return package;
}
inline std::shared_ptr<const ModelPackage> hybrid_package() {
    static const std::shared_ptr<const ModelPackage> package = synth(hybrid_config(), "hybrid");
    return package;
}

inline std::vector<TokenId> random_tokens(std::size_t count, std::uint32_t vocab_size,
                                          std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<TokenId> ids(count);
    for (TokenId& id : ids) id = random() % vocab_size;
    return ids;
}
inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float scale = 1.0f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

}  // namespace moex::test
