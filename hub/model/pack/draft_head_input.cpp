#include "hub/model/pack/draft_head_input.h"

#include <algorithm>
#include <utility>

#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

constexpr std::string_view beginning = "mtp.";

// Returns the name in a package of a tensor of the head; `name` is without its beginning.
std::string package_name(std::string_view name) {
    constexpr std::pair<std::string_view, std::string_view> names[] = {
        {"norm.weight", "model.norm.weight"},
        {"fc.weight", "draft.join.weight"},
        {"pre_fc_norm_embedding.weight", "draft.embedding_norm.weight"},
        {"pre_fc_norm_hidden.weight", "draft.hidden_norm.weight"}};
    for (const auto& [theirs, ours] : names)
        if (name == theirs) return std::string(ours);
    return text("model.", name);
}

// Returns true if config.json says that the head uses the model's embeddings.
bool shares_embeddings(const ModelSource& source) {
    const auto object = parse_strict_json(source.config_json, source.config_what);
    if (!object.ok()) return true;
    const Json& inner = member(*object, "text_config");
    for (const Json* const part : {&*object, &inner})
        if (member(*part, "mtp_use_dedicated_embeddings") == true) return false;
    return true;
}

}  // namespace

std::optional<ModelConfig> draft_head_config(const ModelConfig& model) {
    const auto plan = std::find_if(
        model.layers.rbegin(), model.layers.rend(), [&](const LayerPlan& one) {
            return one.mixer == Mixer::attention && one.is_routed == model.has_experts();
        });
    if (plan == model.layers.rend()) return std::nullopt;
    ModelConfig config = model;
    config.layers.assign(1, *plan);
    config.num_layers = 1;
    config.delta_net = {};
    config.is_draft_head = true;
    return config;
}

std::unique_ptr<PackInput> take_draft_head(PackInput& model) {
    const ModelSource& source = model.source;
    if (!model.family->has_draft_head || source.find("mtp.fc.weight") == nullptr) return nullptr;
    const auto& readers = source.readers;
    const auto deeper = readers.lower_bound("mtp.layers.1");
    const bool is_deeper = deeper != readers.end() && deeper->first.starts_with("mtp.layers.1");
    const auto config = draft_head_config(model.config);
    if (is_deeper || !config || !shares_embeddings(source)) return nullptr;

    auto head = std::make_unique<PackInput>();
    head->source = {.path = source.path,
                    .config_json = source.config_json,
                    .config_what = source.config_what,
                    .ignored = source.ignored,
                    .format = source.format,
                    .fingerprint = source.fingerprint,
                    .files = source.files};
    for (auto at = readers.lower_bound(beginning);
         at != readers.end() && at->first.starts_with(beginning);) {
        auto node = model.source.readers.extract(at++);
        node.key() = package_name(std::string_view(node.key()).substr(beginning.size()));
        head->source.readers.insert(std::move(node));
    }
    head->config = *config;
    head->family = model.family;
    head->options = model.options;
    head->options.name = text(model.options.name.substr(0, 117), "-draft-head");
    head->inner_size = model.inner_size;
    head->shape = config->expert_shape(0);
    return head;
}

}  // namespace moex
