#include "hub/model/package/manifest.h"

#include <algorithm>

#include "hub/model/config_json.h"
#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

using Fields = JsonFields<Json, FileWording>;

// Format versions of a package. In version 2 hub.safetensors contains codes, and in version 3 the
// configuration has plans of layers (with codes or without). Older programs must refuse such a
// package, and they do because of its version.
constexpr std::uint32_t format_version = 1, format_version_with_codes = 2,
                        format_version_with_plans = 3;

OrderedJson file_to_json(const FileRecord& file) {
    return {{"sha256", to_hex(file.sha256)}, {"bytes", file.size_bytes}};
}

Result<Sha256> hash_of(const Json& value, std::string_view what) {
    if (!value.is_string())
        return Error{ErrorCode::bad_field,
                     text(what, " is ", json_excerpt(value), ", wanted 64 hex digits")};
    auto hash = parse_sha256(value.get_ref<const std::string&>());
    if (!hash.ok())
        return Error{ErrorCode::bad_field,
                     text(what, " is ", json_excerpt(value), ", wanted 64 hex digits")};
    return hash;
}

Result<FileRecord> parse_file(const Json& object, std::string_view what) {
    if (!object.is_object() || !object.contains("sha256") || !object.contains("bytes") ||
        !object["bytes"].is_number_unsigned())
        return Error{ErrorCode::bad_field,
                     text(what, " is ", json_excerpt(object), ", wanted {sha256, bytes}")};
    MOEX_ASSIGN(hash, hash_of(object["sha256"], what));
    return FileRecord{hash, object["bytes"].get<std::uint64_t>()};
}

// Reads the ids of the end-of-sequence tokens: a token id, or a list of token ids.
Status parse_eos(const Json& value, std::uint32_t vocab_size, std::vector<std::uint32_t>& out,
                 std::string_view what) {
    const auto add = [&](const Json& id) -> Status {
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= vocab_size)
            return Error{ErrorCode::bad_field,
                         text(what, ": eos_token_id is ", json_excerpt(value),
                              ", wanted ids below vocab_size (", vocab_size, ")")};
        out.push_back(id.get<std::uint32_t>());
        return {};
    };

    if (!value.is_array()) return add(value);
    if (value.size() > 64)
        return Error{ErrorCode::bad_field,
                     text(what, ": ", value.size(), " eos_token_ids, wanted at most 64")};

    for (const Json& id : value) MOEX_TRY(add(id));
    return {};
}

Result<GenerationDefaults> parse_sampling(const Json& object, std::uint32_t vocab_size,
                                          const char* top_k_key, const char* eos_key,
                                          std::string_view what) {
    GenerationDefaults defaults;
    Fields fields(object, {std::string(what)});
    fields.boolean("do_sample", defaults.do_sample);
    fields.real("temperature", 0.0, 100.0, defaults.temperature);
    fields.real("top_p", 0.0, 1.0, defaults.top_p);
    fields.whole(top_k_key, 0, 1'000'000'000, defaults.sample_top_k);
    fields.real("min_p", 0.0, 1.0, defaults.min_p);

    fields.real("repetition_penalty", 0.01, 100.0, defaults.repetition_penalty);
    fields.real("presence_penalty", -2.0, 2.0, defaults.presence_penalty);
    fields.real("frequency_penalty", -2.0, 2.0, defaults.frequency_penalty);
    if (fields.problem()) return *fields.problem();

    if (const Json* ids = fields.find(eos_key))
        MOEX_TRY(parse_eos(*ids, vocab_size, defaults.eos_token_ids, what));
    return defaults;
}

Result<std::vector<std::vector<Sha256>>> parse_experts(const Json& manifest,
                                                       const ModelConfig& config,
                                                       std::string_view what) {
    const auto found = manifest.find("experts");
    if (found == manifest.end() || !found->is_array() || found->size() != config.num_layers)
        return Error{ErrorCode::bad_field, text(what, ": experts wants one list per layer (",
                                                config.num_layers, "), found ",
                                                found == manifest.end() ? std::string("none")
                                                : found->is_array()     ? text(found->size())
                                                                        : json_excerpt(*found))};

    std::vector<std::vector<Sha256>> experts(config.num_layers);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        const Json& row = (*found)[layer];
        if (!config.is_moe(layer)) {
            if (!row.is_null())
                return Error{ErrorCode::bad_field,
                             text(what, ": experts[", layer, "] is ", json_excerpt(row),
                                  ", wanted null for a dense layer")};
            continue;
        }

        if (!row.is_array() || row.size() != config.num_experts)
            return Error{ErrorCode::bad_field,
                         text(what, ": experts[", layer, "] is ",
                              row.is_array() ? text(row.size(), " hashes") : json_excerpt(row),
                              ", wanted ", config.num_experts, " hashes (num_experts)")};

        for (std::uint32_t expert = 0; expert < config.num_experts; ++expert) {
            MOEX_ASSIGN(hash,
                        hash_of(row[expert], text(what, ": experts[", layer, "][", expert, "]")));
            experts[layer].push_back(hash);
        }
    }

    return experts;
}

Status read_quantization(const Json& object, std::string_view what, PackageManifest& manifest) {
    Fields fields(object, {std::string(what)});
    const Json& dtype_word = member(object, "expert_dtype");
    const auto dtype = dtype_word.is_string()
                           ? parse_expert_dtype(dtype_word.get_ref<const std::string&>())
                           : Result<ExpertDtype>(Error{ErrorCode::bad_field, ""});

    if (!dtype.ok()) {
        fields.wrong("expert_dtype", "int4, mxfp4, bf16 or f32",
                     find_member(object, "expert_dtype"));
        return *fields.problem();
    }

    manifest.expert_dtype = *dtype;

    const Json& group = member(object, "group_size");
    const bool is_coded = has_codes(*dtype), is_mxfp4 = *dtype == ExpertDtype::mxfp4;
    const bool group_ok = is_mxfp4   ? group == mxfp4_block
                          : is_coded ? group == 32 || group == 64 || group == 128
                                     : group == 0;
    if (!group.is_number_unsigned() || !group_ok) {
        fields.wrong("group_size",
                     is_mxfp4   ? "32"
                     : is_coded ? "32, 64 or 128"
                                : "0",
                     find_member(object, "group_size"));
        return *fields.problem();
    }

    manifest.group_size = group.get<std::uint32_t>();

    const ModelConfig& config = manifest.config;
    if (is_coded && (config.hidden_size % manifest.group_size != 0 ||
                     config.moe_intermediate_size % manifest.group_size != 0)) {
        fields.wrong("group_size",
                     text("a divisor of hidden_size (", config.hidden_size,
                          ") and moe_intermediate_size (", config.moe_intermediate_size, ")"),
                     group);
        return *fields.problem();
    }

    return {};
}

// Reads the dtype of the hub's matrices. Manifests of version 1 do not have this field, version 2
// requires it, and version 3 may have it.
Status read_hub_dtype(const Json& object, const Json& version, std::string_view what,
                      PackageManifest& manifest) {
    const Json* const found = find_member(object, "hub_dtype");
    const bool has_codes = version != format_version;
    if (version != format_version_with_codes && !found) return {};
    Fields fields(object, {std::string(what)});
    if (has_codes && found && found->is_string()) {
        const auto dtype = parse_hub_dtype(found->get_ref<const std::string&>());
        if (dtype.ok() && *dtype != HubDtype::bf16) {
            manifest.hub_dtype = *dtype;
            return {};
        }
    }
    fields.wrong("hub_dtype",
                 has_codes ? "int8 or int4 (format_version 2 or 3)" : "nothing (format_version 1)",
                 found);
    return *fields.problem();
}

Status read_files(const Json& files, std::string_view what, PackageManifest& manifest) {
    for (const auto& [name, record] : files.items()) {
        if (std::find(std::begin(package_text_files), std::end(package_text_files), name) ==
            std::end(package_text_files))
            return Error{ErrorCode::bad_field, text(what, ": files names ", json_excerpt(name),
                                                    ", which no package holds")};

        MOEX_ASSIGN(file, parse_file(record, text(what, ": files.", name)));
        if (file.size_bytes > text_file_bytes_max(name))
            return Error{ErrorCode::bad_field,
                         text(what, ": files.", name, " has ", file.size_bytes,
                              " bytes, wanted at most ", text_file_bytes_max(name))};

        manifest.files[name] = file;
    }

    return {};
}

// Reads the records of the side files and of the draft head. A record is null if the package does
// not have the file.
// Manifests of older packages do not have these fields.
Status read_side_files(const Json& object, std::string_view what, PackageManifest& manifest) {
    for (const SideFile file : side_files) {
        const Json& record = member(object, side_file_key(file));
        if (record.is_null()) continue;

        MOEX_ASSIGN(parsed, parse_file(record, text(what, ": ", side_file_key(file))));
        if (parsed.size_bytes > side_file_bytes_max)
            return Error{ErrorCode::bad_field,
                         text(what, ": ", side_file_key(file), " has ", parsed.size_bytes,
                              " bytes, wanted at most ", side_file_bytes_max)};
        manifest.side_files[file] = parsed;
    }
    if (const Json& head = member(object, "draft_head"); !head.is_null()) {
        MOEX_ASSIGN(parsed, parse_file(head, text(what, ": draft_head")));
        if (parsed.size_bytes > manifest_bytes_max)
            return Error{ErrorCode::bad_field, text(what, ": draft_head has ", parsed.size_bytes,
                                                    " bytes, wanted at most ", manifest_bytes_max)};
        manifest.draft_head = parsed;
    }
    return {};
}

// Reads how embeddings are made. Manifests of models that do not say so have no such field.
Status read_embedding(const Json& object, std::string_view what, PackageManifest& manifest) {
    const Json* const found = find_member(object, "embedding");
    if (found == nullptr || found->is_null()) return {};
    Fields fields(*found, {std::string(what)});
    fields.boolean("normalize", manifest.embedding.normalize);
    const Json& word = member(*found, "pooling");
    for (const Pooling pooling : {Pooling::mean, Pooling::last, Pooling::first})
        if (word == pooling_name(pooling)) {
            manifest.embedding.pooling = pooling;
            if (fields.problem()) return *fields.problem();
            return {};
        }
    fields.wrong("pooling", "mean, last or first", &word);
    return *fields.problem();
}

}  // namespace

const char* pooling_name(Pooling pooling) {
    switch (pooling) {
        case Pooling::mean: return "mean";
        case Pooling::last: return "last";
        case Pooling::first: return "first";
    }
    return "?";
}

bool package_name_ok(std::string_view name) {
    return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
        return c > 0x20 && c < 0x7f && c != '"' && c != '\'' && c != '\\' && c != '<' && c != '>' &&
               c != '&';
    });
}

std::string manifest_to_json(const PackageManifest& manifest) {
    OrderedJson experts = OrderedJson::array();
    for (std::uint32_t layer = 0; layer < manifest.config.num_layers; ++layer) {
        if (!manifest.config.is_moe(layer)) {
            experts.push_back(nullptr);
            continue;
        }
        OrderedJson row = OrderedJson::array();
        for (const Sha256& hash : manifest.experts[layer]) row.push_back(to_hex(hash));
        experts.push_back(std::move(row));
    }

    OrderedJson files = OrderedJson::object();
    for (const auto& [name, file] : manifest.files) files[name] = file_to_json(file);
    OrderedJson hub = file_to_json(manifest.hub);
    hub["file"] = "hub.safetensors";
    const GenerationDefaults& generation = manifest.generation;
    OrderedJson sampling = {{"do_sample", generation.do_sample},
                            {"temperature", generation.temperature},
                            {"top_p", generation.top_p},
                            {"sample_top_k", generation.sample_top_k},
                            {"eos_token_ids", generation.eos_token_ids}};

    // Write the values below only if the package uses them, so that other packages keep the
    // manifest bytes that older versions wrote.
    if (generation.min_p != 0.0) sampling["min_p"] = generation.min_p;
    if (generation.repetition_penalty != 1.0)
        sampling["repetition_penalty"] = generation.repetition_penalty;
    if (generation.presence_penalty != 0.0)
        sampling["presence_penalty"] = generation.presence_penalty;
    if (generation.frequency_penalty != 0.0)
        sampling["frequency_penalty"] = generation.frequency_penalty;
    const auto side_file = [&](SideFile file) -> OrderedJson {
        const auto found = manifest.side_files.find(file);
        return found == manifest.side_files.end() ? OrderedJson() : file_to_json(found->second);
    };
    const bool has_codes = manifest.hub_dtype != HubDtype::bf16;
    OrderedJson quantization = {{"expert_dtype", expert_dtype_name(manifest.expert_dtype)},
                                {"group_size", manifest.group_size}};
    if (has_codes) quantization["hub_dtype"] = hub_dtype_name(manifest.hub_dtype);
    OrderedJson object = {
        {"format", "moex-package"},
        {"format_version", needs_plans(manifest.config) ? format_version_with_plans
                           : has_codes                  ? format_version_with_codes
                                                        : format_version},
        {"name", manifest.name},
        {"config", OrderedJson::parse(to_json(manifest.config).dump())},
        {"quantization", quantization},
        {"generation", sampling},
        {"hub", hub},
        {"files", files},
        {"experts", experts},
        {"signatures", nullptr},
        {"default_vectors", side_file(SideFile::default_vectors)},
        {"estimator", side_file(SideFile::estimator)},
        {"shadow", nullptr}};

    if (manifest.draft_head) object["draft_head"] = file_to_json(*manifest.draft_head);
    if (manifest.embedding != EmbeddingForm{})
        object["embedding"] = {{"pooling", pooling_name(manifest.embedding.pooling)},
                               {"normalize", manifest.embedding.normalize}};
    return object.dump(1) + "\n";
}

Result<PackageManifest> parse_manifest(std::string_view json_text, std::string_view what) {
    MOEX_ASSIGN(object, parse_strict_json(json_text, what, {.depth_max = 8}));
    if (member(object, "format") != "moex-package")
        return Error{ErrorCode::bad_field,
                     text(what, ": not a package manifest (format is not \"moex-package\")")};
    const Json& version = member(object, "format_version");
    if (version != format_version && version != format_version_with_codes &&
        version != format_version_with_plans)
        return Error{
            ErrorCode::unsupported,
            text(what, ": format_version is ", json_excerpt(version), ", this program reads ",
                 format_version, " to ", format_version_with_plans, "; from a newer moex-hub?")};

    Fields fields(object, {std::string(what)});
    PackageManifest manifest;
    const Json& name = member(object, "name");
    if (name.is_string() && package_name_ok(name.get_ref<const std::string&>()))
        manifest.name = name.get<std::string>();
    else
        fields.wrong("name", "1 to 128 printable characters without spaces",
                     find_member(object, "name"));

    const Json *config_object = fields.object("config"),
               *quantization = fields.object("quantization"),
               *generation = fields.object("generation"), *hub = fields.object("hub"),
               *files = fields.object("files");
    if (fields.problem()) return *fields.problem();

    auto config = parse_model_config(*config_object);
    if (!config.ok()) return Error{config.error().code, text(what, ": ", config.error().message)};

    manifest.config = std::move(*config);
    MOEX_TRY(read_quantization(*quantization, what, manifest));
    MOEX_TRY(read_hub_dtype(*quantization, version, what, manifest));

    MOEX_ASSIGN(defaults, parse_sampling(*generation, manifest.config.vocab_size, "sample_top_k",
                                         "eos_token_ids", what));
    manifest.generation = std::move(defaults);
    MOEX_ASSIGN(hub_file, parse_file(*hub, text(what, ": hub")));
    manifest.hub = hub_file;
    MOEX_TRY(read_files(*files, what, manifest));
    MOEX_TRY(read_side_files(object, what, manifest));
    MOEX_TRY(read_embedding(object, what, manifest));

    MOEX_ASSIGN(experts, parse_experts(object, manifest.config, what));
    manifest.experts = std::move(experts);
    return manifest;
}

Result<GenerationDefaults> parse_generation_config(std::string_view generation_json,
                                                   std::string_view config_json,
                                                   std::uint32_t vocab_size,
                                                   std::string_view what) {
    GenerationDefaults defaults;
    if (!generation_json.empty()) {
        MOEX_ASSIGN(object, parse_strict_json(generation_json, what));
        if (!object.is_object())
            return Error{ErrorCode::bad_field,
                         text(what, ": ", json_excerpt(object), ", wanted an object")};
        MOEX_ASSIGN(parsed, parse_sampling(object, vocab_size, "top_k", "eos_token_id", what));
        defaults = std::move(parsed);
    }

    if (defaults.eos_token_ids.empty()) {
        MOEX_ASSIGN(config, parse_strict_json(config_json, "config.json"));
        if (const Json& ids = member(config, "eos_token_id"); !ids.is_null())
            MOEX_TRY(parse_eos(ids, vocab_size, defaults.eos_token_ids, "config.json"));
    }

    return defaults;
}

std::vector<std::string> unread_generation_keys(std::string_view generation_json) {
    // keys that are read, that name tokens which chat templates write, or that only steer
    // transformers' own loops
    constexpr std::string_view known[] = {"do_sample",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "bos_token_id",
                                          "max_length",
                                          "max_new_tokens",
                                          "use_cache",
                                          "_from_model_config",
                                          "transformers_version",
                                          "repetition_penalty",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "cache_implementation",
                                          "return_dict_in_generate",
                                          "trust_remote_code"};
    std::vector<std::string> unread;
    const auto object = parse_strict_json(generation_json, "generation_config.json");
    if (!object.ok() || !object->is_object()) return unread;
    for (const auto& [name, value] : object->items()) {
        const bool is_known = std::find(std::begin(known), std::end(known), name) !=
                              std::end(known);
        const bool is_off = value.is_null() || value == false || value == 0 || value == 1 ||
                            value == "" ||
                            ((value.is_array() || value.is_object()) && value.empty());
        if (!is_known && !is_off) unread.push_back(name);
    }
    return unread;
}

}  // namespace moex
