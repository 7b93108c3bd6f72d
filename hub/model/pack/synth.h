// `moex-hub synth` writes a random package of any shape, for benches. It writes the weights as a
// stream. Each expert is seeded by (seed, layer, expert), so that neither threads nor an
// interruption change a byte. Shapes: "bench-moe", "qwen3-30b-a3b", "paper", "tiny",
// "many-experts", "demo", "gpt-oss-20b", "glm-4.5-air", "qwen3-next-80b-a3b",
// "qwen3.6-35b-a3b", "qwen3-0.6b" or "tiny-hybrid". Where the checkpoints of a family have a head
// that drafts tokens, the package has one, too. It is never right about the random text: it shows
// what drafts cost.
#pragma once

#include <cstdint>
#include <string_view>

#include "hub/model/config.h"
#include "hub/model/pack/packer.h"

namespace moex {

Result<ModelConfig> synth_shape(std::string_view shape);
// Returns the shape `config` with another number of layers. Added layers are like its last layer.
ModelConfig with_num_layers(ModelConfig config, std::uint32_t num_layers);
Result<PackReport> synth_package(const ModelConfig& config, std::string_view name,
                                 std::uint64_t seed, const std::filesystem::path& out,
                                 const PackOptions& options, ThreadPool& threads,
                                 const std::function<void(const PackProgress&)>& progress);

}  // namespace moex
