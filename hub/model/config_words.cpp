#include "hub/model/config_words.h"

#include <algorithm>

#include "protocol/text.h"

namespace moex {
namespace {

// Returns the layers of a plan as ranges: "0-3, 8".
std::string ranges_of(const ModelConfig& config, const LayerPlan& plan) {
    std::string out;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (config.layers[layer] != plan) continue;
        const std::uint32_t first = layer;
        while (layer + 1 < config.num_layers && config.layers[layer + 1] == plan) ++layer;
        out += text(out.empty() ? "" : ", ", first, layer > first ? text("-", layer) : "");
    }
    return out;
}

}  // namespace

std::vector<std::string> layer_lines(const ModelConfig& config) {
    std::vector<std::string> lines;
    std::vector<LayerPlan> plans;
    for (const LayerPlan& plan : config.layers) {
        if (std::find(plans.begin(), plans.end(), plan) != plans.end()) continue;
        plans.push_back(plan);
        std::string words;
        for (const std::string& word : plan_words(plan))
            words += text(words.empty() ? "" : "; ", word);
        lines.push_back(text(ranges_of(config, plan), ": ", words.empty() ? "plain" : words));
    }
    if (config.embedding_multiplier != 1.0 || config.logits_divisor != 1.0)
        lines.push_back(text("embeddings times ", config.embedding_multiplier, ", logits over ",
                             config.logits_divisor));
    return lines;
}

}  // namespace moex
