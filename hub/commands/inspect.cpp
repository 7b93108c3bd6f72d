// moex-hub inspect: what a package holds, for people and as JSON.
#include <cstdio>

#include <nlohmann/json.hpp>

#include "hub/commands/command.h"
#include "hub/commands/load_model.h"
#include "hub/commands/progress.h"

namespace moex {
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
    const ModelConfig& config = package.config();
    std::uint32_t num_moe_layers = 0;
    std::optional<Sha256> first_blob;  // in the order of hashes
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (!config.is_moe(layer)) continue;
        ++num_moe_layers;
        for (std::uint32_t expert = 0; expert < config.num_experts; ++expert)
            first_blob = std::min(first_blob.value_or(package.blob_hash(layer, expert)),
                                  package.blob_hash(layer, expert));
    }
    const std::uint64_t num_blobs = package.num_blobs();
    const std::uint32_t num_missing = package.num_missing_blobs();
    std::error_code failure;
    const std::uint64_t hub_bytes = std::filesystem::file_size(directory / "hub.safetensors",
                                                               failure);
    const bool has_tokenizer = package.tokenizer_file("tokenizer.json").has_value();
    const std::string tokenizer_config =
        package.tokenizer_file("tokenizer_config.json").value_or("");
    const bool has_template = !tokenizer_config.empty() &&
                              ChatTemplate::from_tokenizer_config(tokenizer_config).ok();
    const GenerationDefaults& defaults = package.generation_defaults();

    if (invocation.argument("--json")) {
        nlohmann::ordered_json out{{"name", package.name()},
                                   {"manifest_sha256", package.manifest_sha256()},
                                   {"config", to_json(config)},
                                   {"expert_dtype", expert_dtype_name(package.expert_dtype())},
                                   {"group_size", package.expert_shape().group_size},
                                   {"expert_blob_bytes", package.expert_blob_bytes()},
                                   {"num_moe_layers", num_moe_layers},
                                   {"num_blobs", num_blobs},
                                   {"blobs_missing", num_missing},
                                   {"expert_bytes", num_blobs * package.expert_blob_bytes()},
                                   {"hub_bytes", hub_bytes},
                                   {"tokenizer", has_tokenizer},
                                   {"chat_template", has_template}};
        out["generation"] = {{"do_sample", defaults.do_sample},
                             {"temperature", defaults.temperature},
                             {"top_p", defaults.top_p},
                             {"top_k", defaults.sample_top_k},
                             {"min_p", defaults.min_p},
                             {"repetition_penalty", defaults.repetition_penalty},
                             {"eos_token_ids", defaults.eos_token_ids}};
        if (first_blob) out["first_blob"] = to_hex(*first_blob);
        std::printf("%s\n", out.dump(2).c_str());
        return exit_stopped;
    }
    const auto line = [](const char* name, const std::string& value) {
        std::printf("%-14s%s\n", name, value.c_str());
    };
    line("package", text(package.name(), " (", directory.string(), ")"));
    line("manifest", package.manifest_sha256());
    line("model",
         text(config.architecture, ": hidden ", config.hidden_size, ", ", config.num_layers,
              " layers (", num_moe_layers, " with experts), vocabulary ", config.vocab_size,
              ", context ", config.context_tokens));
    line("attention",
         text(config.num_heads, " heads, ", config.num_kv_heads, " for keys and values, ",
              config.head_dim, " wide, rope theta ", config.rope_theta));
    line("experts", text(config.num_experts, " per layer, ", config.top_k,
                         " per token, intermediate ", config.moe_intermediate_size));
    line("stored as",
         text(expert_dtype_name(package.expert_dtype()),
              package.expert_shape().group_size > 0
                  ? text(" in groups of ", package.expert_shape().group_size)
                  : std::string(),
              ", ", bytes_text(package.expert_blob_bytes()), " each, ", num_blobs, " blobs, ",
              bytes_text(num_blobs * package.expert_blob_bytes()), " in all"));
    if (num_missing > 0)
        line("missing", text(num_missing, " of ", num_blobs, " blobs are not in weights/"));
    line("hub", bytes_text(hub_bytes));
    line("tokenizer", has_tokenizer ? (has_template ? "yes, with a chat template"
                                                    : "yes, without a chat template")
                                    : "none: token ids only");
    line("sampling", defaults.do_sample
                         ? text("temperature ", defaults.temperature, ", top_p ", defaults.top_p,
                                ", top_k ", defaults.sample_top_k, ", min_p ", defaults.min_p)
                         : "greedy");
    if (defaults.repetition_penalty != 1.0)
        line("repetition", text("penalty ", defaults.repetition_penalty));
    return exit_stopped;
}

}  // namespace moex
