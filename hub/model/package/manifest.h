// PackageManifest: manifest.json of a package as a struct. Code that opens a package trusts the
// manifest after every field was checked. `pack` writes manifest.json last.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/config.h"
#include "hub/model/package/embedding_form.h"
#include "hub/model/package/generation_defaults.h"
#include "hub/model/package/side_file.h"
#include "protocol/hub_codes.h"
#include "protocol/sha256.h"
#include "protocol/tensor_format.h"

namespace moex {

inline constexpr std::uint64_t manifest_bytes_max = 64u << 20;

struct FileRecord {
    Sha256 sha256{};
    std::uint64_t size_bytes = 0;
};

struct PackageManifest {
    std::string name;
    ModelConfig config;
    ExpertDtype expert_dtype = ExpertDtype::int4;
    std::uint32_t group_size = 0;  // 0 unless int4 or mxfp4
    HubDtype hub_dtype = HubDtype::bf16;
    GenerationDefaults generation;
    EmbeddingForm embedding;
    FileRecord hub;  // hub.safetensors
    // records of tokenizer.json and other files whose names are in package_text_files
    std::map<std::string, FileRecord> files;
    std::map<SideFile, FileRecord> side_files;
    // manifest.json of the head that drafts tokens (hub/model/package/draft_head.h), if there is
    // one
    std::optional<FileRecord> draft_head;
    // blob hash of each expert, [num_layers][num_experts]; a dense layer has an empty list
    std::vector<std::vector<Sha256>> experts;

    ExpertShape expert_shape() const {
        ExpertShape shape = config.expert_shape(group_size);
        if (has_codes(expert_dtype)) shape.codes = expert_dtype;
        return shape;
    }
};

// The names of text files that a package may copy unchanged from a checkpoint.
inline constexpr std::string_view package_text_files[] = {"tokenizer.json", "tokenizer_config.json",
                                                          "generation_config.json"};
constexpr std::uint64_t text_file_bytes_max(std::string_view file_name) {
    return file_name == "tokenizer.json" ? 64u << 20 : 8u << 20;
}

// Returns the manifest as JSON. Equal manifests give equal bytes, because the text contains no
// times and no machine names.
std::string manifest_to_json(const PackageManifest& manifest);
Result<PackageManifest> parse_manifest(std::string_view json_text, std::string_view what);

// Reads generation_config.json. If it has no eos_token_id, the result has the ids of config.json.
// Errors name the file by `what`.
Result<GenerationDefaults> parse_generation_config(std::string_view generation_json,
                                                   std::string_view config_json,
                                                   std::uint32_t vocab_size, std::string_view what);
// Returns the keys of generation_config.json that no part of this program reads and that change
// what a model generates, e.g. "num_beams". Values that have no effect are left out.
std::vector<std::string> unread_generation_keys(std::string_view generation_json);
// The word of a pooling in manifest.json: "mean", "last" or "first".
const char* pooling_name(Pooling pooling);
// Returns true if `name` is suitable as a model name in API answers, pages and logs: 1 to 128
// printable ASCII characters without spaces or quotes.
bool package_name_ok(std::string_view name);

}  // namespace moex
