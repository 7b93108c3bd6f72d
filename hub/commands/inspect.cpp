// moex-hub inspect: prints the content of a package, as text for people or as JSON.
#include <cstdio>

#include <nlohmann/json.hpp>

#include "hub/commands/command.h"
#include "hub/commands/load_model.h"
#include "hub/commands/output.h"
#include "hub/commands/progress.h"
#include "hub/model/config_json.h"
#include "hub/model/config_words.h"
#include "hub/model/package/draft_head.h"
#include "hub/model/package/side_tensors.h"

namespace moex {
namespace {

bool has_side_file(const ModelPackage& package, SideFile file) {
    return SideTensors::open(package, file).ok();
}

// Figures of a package for which ModelPackage has no getter.
struct PackageFacts {
    std::uint32_t num_moe_layers = 0;
    std::optional<Sha256> first_blob;  // the blob with the lowest hash
    std::uint64_t hub_bytes = 0;
    bool has_tokenizer = false, has_template = false;
};

PackageFacts facts_of(const ModelPackage& package, const std::filesystem::path& directory) {
    const ModelConfig& config = package.config();
    PackageFacts facts;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (!config.is_moe(layer)) continue;

        ++facts.num_moe_layers;
        for (std::uint32_t expert = 0; expert < config.num_experts; ++expert) {
            const Sha256 blob = package.blob_hash(layer, expert);
            facts.first_blob = std::min(facts.first_blob.value_or(blob), blob);
        }
    }

    std::error_code failure;
    facts.hub_bytes = std::filesystem::file_size(directory / "hub.safetensors", failure);
    facts.has_tokenizer = package.tokenizer_file("tokenizer.json").has_value();
    const std::string tokenizer_config =
        package.tokenizer_file("tokenizer_config.json").value_or("");
    facts.has_template = !tokenizer_config.empty() &&
                         ChatTemplate::from_tokenizer_config(tokenizer_config).ok();
    return facts;
}

void print_json(const ModelPackage& package, const PackageFacts& facts) {
    const std::uint64_t num_blobs = package.num_blobs();
    nlohmann::ordered_json out{
        {"name", package.name()},
        {"manifest_sha256", package.manifest_sha256()},
        {"config", to_json(package.config())},
        {"expert_dtype", expert_dtype_name(package.expert_dtype())},
        {"group_size", package.expert_shape().group_size},
        {"expert_blob_bytes", package.expert_blob_bytes()},
        {"num_moe_layers", facts.num_moe_layers},
        {"layers", layer_lines(package.config())},
        {"num_blobs", num_blobs},
        {"blobs_missing", package.num_missing_blobs()},
        {"expert_bytes", num_blobs * package.expert_blob_bytes()},
        {"hub_dtype", hub_dtype_name(package.hub_dtype())},
        {"hub_bytes", facts.hub_bytes},
        {"default_vectors", has_side_file(package, SideFile::default_vectors)},
        {"estimator", has_side_file(package, SideFile::estimator)},
        {"tokenizer", facts.has_tokenizer},
        {"chat_template", facts.has_template}};

    const GenerationDefaults& defaults = package.generation_defaults();
    out["generation"] = {{"do_sample", defaults.do_sample},
                         {"temperature", defaults.temperature},
                         {"top_p", defaults.top_p},
                         {"top_k", defaults.sample_top_k},
                         {"min_p", defaults.min_p},
                         {"repetition_penalty", defaults.repetition_penalty},
                         {"presence_penalty", defaults.presence_penalty},
                         {"frequency_penalty", defaults.frequency_penalty},
                         {"eos_token_ids", defaults.eos_token_ids}};
    if (facts.first_blob) out["first_blob"] = to_hex(*facts.first_blob);
    (void)print_now(out.dump(2) + '\n');
}

void print_line(const char* name, const std::string& value) {
    std::printf("%-14s%s\n", name, value.c_str());
}

void print_model(const ModelConfig& config, std::uint32_t num_moe_layers) {
    print_line("model",
               text(config.architecture, ": hidden ", config.hidden_size, ", ", config.num_layers,
                    " layers (", num_moe_layers, " with experts), vocabulary ", config.vocab_size,
                    ", context ", config.context_tokens));
    print_line("attention",
               text(config.num_heads, " heads, ", config.num_kv_heads, " for keys and values, ",
                    config.head_dim, " wide, rope theta ", config.layers.front().rope.theta));
    print_line(
        "experts",
        config.has_experts()
            ? text(config.num_experts, " per layer, ", config.top_k, " per token, intermediate ",
                   config.moe_intermediate_size,
                   config.expert_width > 0 ? text(" (", config.expert_width, ", padded with zeros)")
                                           : std::string())
            : text("none: a dense model, intermediate ", config.intermediate_size));
    for (const std::string& line : layer_lines(config)) print_line("layers", line);
}

void print_stored(const ModelPackage& package, const PackageFacts& facts) {
    const std::uint64_t num_blobs = package.num_blobs(), blob_bytes = package.expert_blob_bytes();
    const std::uint32_t group = package.expert_shape().group_size;
    if (package.config().has_experts())
        print_line("stored as", text(expert_dtype_name(package.expert_dtype()),
                                     group > 0 ? text(" in groups of ", group) : std::string(),
                                     ", ", bytes_text(blob_bytes), " each, ", num_blobs, " blobs, ",
                                     bytes_text(num_blobs * blob_bytes), " in all"));
    if (const std::uint32_t missing = package.num_missing_blobs(); missing > 0)
        print_line("missing", text(missing, " of ", num_blobs, " blobs are not in weights/"));
    const HubDtype hub_dtype = package.hub_dtype();
    print_line("hub", text(bytes_text(facts.hub_bytes), ", matrices in ", hub_dtype_name(hub_dtype),
                           hub_dtype == HubDtype::bf16 ? " or f32" : ""));

    if (package.has_draft_head()) {
        const auto head = open_draft_head(package);
        print_line("drafts", head.ok() ? "a head of the checkpoint drafts tokens"
                                       : one_line(head.error().message));
    }
    if (has_side_file(package, SideFile::default_vectors) ||
        has_side_file(package, SideFile::estimator))
        print_line("foresight",
                   text(has_side_file(package, SideFile::default_vectors) ? "default vectors" : "",
                        has_side_file(package, SideFile::estimator) ? ", estimator" : ""));

    const char* const with_template = facts.has_template ? "yes, with a chat template"
                                                         : "yes, without a chat template";
    print_line("tokenizer", facts.has_tokenizer ? with_template : "none: token ids only");
}

void print_sampling(const GenerationDefaults& defaults) {
    print_line("sampling",
               defaults.do_sample
                   ? text("temperature ", defaults.temperature, ", top_p ", defaults.top_p,
                          ", top_k ", defaults.sample_top_k, ", min_p ", defaults.min_p)
                   : "greedy");
    if (defaults.repetition_penalty != 1.0)
        print_line("repetition", text("penalty ", defaults.repetition_penalty));
    if (defaults.presence_penalty != 0.0 || defaults.frequency_penalty != 0.0)
        print_line("penalties", text("presence ", defaults.presence_penalty, ", frequency ",
                                     defaults.frequency_penalty));
}

}  // namespace

int run_inspect(const Invocation& invocation) {
    std::filesystem::path directory;
    if (const std::string* given = invocation.argument("DIR")) {
        directory = *given;
    } else {
        auto found = find_model(invocation.settings);
        if (!found.ok()) return fail(found.error().message);
        directory = *found;
    }

    auto opened = ModelPackage::open(directory);
    if (!opened.ok()) return fail(opened.error().message);
    const ModelPackage& package = **opened;
    const PackageFacts facts = facts_of(package, directory);

    if (invocation.argument("--json")) {
        print_json(package, facts);
        return exit_stopped;
    }
    print_line("package", text(package.name(), " (", directory.string(), ")"));
    print_line("manifest", package.manifest_sha256());
    print_model(package.config(), facts.num_moe_layers);
    print_stored(package, facts);
    print_sampling(package.generation_defaults());
    return exit_stopped;
}

}  // namespace moex
