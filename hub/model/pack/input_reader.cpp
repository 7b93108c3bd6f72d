#include "hub/model/pack/input_reader.h"

#include <algorithm>
#include <array>
#include <set>

#include "hub/base/sha256.h"
#include "hub/model/json_fields.h"
#include "hub/model/pack/pack_texts.h"
#include "hub/model/pack/readers/open_model.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// Version of the packer. It must change when the same input gives other bytes. A packer never
// resumes an unfinished package of another version.
constexpr std::string_view packer_version = "moex-pack 4";

// Finds the expert weights of a layer. transformers 4 and 5 write one tensor per expert and
// projection. transformers 5 can also write one fused tensor for all experts of a layer. A GGUF
// file has one tensor per projection.
Result<std::vector<ExpertSource>> find_experts(const PackInput& input, std::uint32_t layer) {
    const ModelSource& source = input.source;
    const std::uint64_t hidden = input.config.hidden_size, inner = input.inner_size,
                        count = input.config.num_experts;
    const std::string at = text("model.layers.", layer, ".mlp.experts.");
    std::vector<ExpertSource> experts(count);

    if (source.find(at + "gate_up_proj") != nullptr) {
        MOEX_ASSIGN(gate_up,
                    source.require(at + "gate_up_proj", std::array{count, 2 * inner, hidden},
                                   "num_experts, 2 * moe_intermediate_size, hidden_size"));
        MOEX_ASSIGN(down, source.require(at + "down_proj", std::array{count, hidden, inner},
                                         "num_experts, hidden_size, moe_intermediate_size"));
        for (std::uint64_t e = 0; e < count; ++e)
            experts[e] = {
                {gate_up, e * 2 * inner}, {gate_up, (e * 2 + 1) * inner}, {down, e * hidden}};
        return experts;
    }

    if (source.find(at + "gate_proj.weight") != nullptr) {
        const std::string_view words = "num_experts, moe_intermediate_size, hidden_size";
        MOEX_ASSIGN(
            gate, source.require(at + "gate_proj.weight", std::array{count, inner, hidden}, words));
        MOEX_ASSIGN(up,
                    source.require(at + "up_proj.weight", std::array{count, inner, hidden}, words));
        MOEX_ASSIGN(down, source.require(at + "down_proj.weight", std::array{count, hidden, inner},
                                         "num_experts, hidden_size, moe_intermediate_size"));
        for (std::uint64_t e = 0; e < count; ++e)
            experts[e] = {{gate, e * inner}, {up, e * inner}, {down, e * hidden}};
        return experts;
    }

    for (std::uint64_t e = 0; e < count; ++e) {
        const std::string expert = text(at, e, ".");
        MOEX_ASSIGN(gate, source.require(expert + "gate_proj.weight", std::array{inner, hidden},
                                         "moe_intermediate_size, hidden_size"));
        MOEX_ASSIGN(up, source.require(expert + "up_proj.weight", std::array{inner, hidden},
                                       "moe_intermediate_size, hidden_size"));
        MOEX_ASSIGN(down, source.require(expert + "down_proj.weight", std::array{hidden, inner},
                                         "hidden_size, moe_intermediate_size"));
        experts[e] = {{gate, 0}, {up, 0}, {down, 0}};
    }
    return experts;
}

// Calls `visit` for every matrix of every expert.
template <class Visit>
void for_each_matrix(PackInput& input, const Visit& visit) {
    for (auto& layer : input.experts)
        for (ExpertSource& expert : layer)
            for (ExpertMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) visit(*matrix);
}

Status find_hub_tensors(PackInput& input) {
    input.hub_specs = hub_tensor_specs(input.config);
    std::size_t num_other = 0;  // matrices that are not bf16 in the model
    std::string format;
    for (const HubTensorSpec& spec : input.hub_specs) {
        MOEX_ASSIGN(tensor, input.source.require(spec.name, spec.shape, spec.shape_words));
        const bool loses_bits = tensor->info().plain != TensorDtype::bf16;
        const bool keep = loses_bits && (spec.precise || input.options.hub_f32);
        if (loses_bits && !spec.precise) {
            ++num_other;
            format = tensor->info().format;
        }
        input.hub_sources.push_back(tensor);
        input.hub_dtypes.push_back(keep ? TensorDtype::f32 : TensorDtype::bf16);
    }
    if (num_other > 0 && input.options.hub_dtype == HubDtype::bf16)
        input.warnings.push_back(
            input.options.hub_f32
                ? text(num_other, " matrices of the hub are ", format,
                       " and are stored as f32, so that no bit is lost; --hub-dtype bf16 halves "
                       "their bytes")
                : text(num_other, " matrices of the hub are ", format, " and are rounded to bf16"));
    if (input.options.hub_dtype != HubDtype::bf16) MOEX_TRY(check_rows_for_codes(input.config));
    input.hub = hub_entries(input.hub_specs, input.options.hub_dtype,
                            [&](std::size_t i) { return input.hub_dtypes[i]; });
    return {};
}

// Returns the layer that a tensor belongs to by its name, or nothing if it is outside the layers
// that this program computes.
bool is_inside_layers(std::string_view name, std::uint32_t num_layers) {
    constexpr std::string_view prefix = "model.layers.";
    if (!name.starts_with(prefix)) return false;
    name.remove_prefix(prefix.size());
    std::uint64_t layer = 0;
    std::size_t digits = 0;
    for (; digits < name.size() && digits < 6 && name[digits] >= '0' && name[digits] <= '9';
         ++digits)
        layer = layer * 10 + static_cast<std::uint64_t>(name[digits] - '0');
    return digits > 0 && layer < num_layers;
}

// Returns true for a bias of zeros, which changes nothing. Some tools that quantise a model write
// one for every module.
Result<bool> is_zero_bias(const TensorReader& reader) {
    const TensorInfo& info = reader.info();
    if (!info.name.ends_with(".bias") || info.shape.size() != 1 || !info.is_readable ||
        info.shape[0] > 1u << 20)
        return false;
    std::vector<float> values(info.shape[0]);
    Bytes scratch;
    MOEX_TRY(reader.read_rows(0, values, scratch));
    return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
}

// Refuses a tensor inside a layer that this program does not use, because the packed model would
// give other answers than the checkpoint. Other tensors give a warning: drafts of further tokens,
// vision towers.
Status check_unused(PackInput& input, const std::set<const TensorReader*>& used) {
    std::size_t unused = 0;
    std::string names;
    for (const auto& [name, reader] : input.source.readers) {
        if (used.contains(reader.get()) || input.source.ignored.contains(name)) continue;
        MOEX_ASSIGN(is_zero, is_zero_bias(*reader));
        if (is_zero) continue;
        if (is_inside_layers(name, input.config.num_layers) || name.ends_with(".bias"))
            return Error{ErrorCode::unsupported,
                         text(reader->info().where(), ": ", input.config.architecture,
                              " has no such ", name.ends_with(".bias") ? "bias" : "tensor",
                              " by its config.json; from another model?")};
        if (unused++ < 3) names += text(unused == 1 ? "" : ", ", name.substr(0, 200));
    }
    if (unused > 0)
        input.warnings.push_back(text(unused,
                                      " tensors outside the layers are not part of the model"
                                      " and were left out: ",
                                      names, unused > 3 ? ", ..." : ""));
    return {};
}

Status find_tensors(PackInput& input) {
    MOEX_TRY(find_hub_tensors(input));
    for (std::uint32_t layer = 0; layer < input.config.num_layers; ++layer) {
        input.experts.emplace_back();
        if (!input.config.is_moe(layer)) continue;
        MOEX_ASSIGN(experts, find_experts(input, layer));
        input.experts.back() = std::move(experts);
    }

    std::set<const TensorReader*> used(input.hub_sources.begin(), input.hub_sources.end());
    for_each_matrix(input, [&](const ExpertMatrix& matrix) { used.insert(matrix.tensor); });
    for (const TensorReader* reader : used) input.used_bytes += reader->info().stored_bytes;
    return check_unused(input, used);
}

// Chooses the group size of INT4 experts, and which matrices are copied as quantised INT4 codes. If
// the model's file has INT4 groups already, the package's group size divides the file's group size.
Status choose_groups(PackInput& input) {
    if (input.options.expert_dtype != ExpertDtype::int4) return {};
    std::uint32_t group_size_max = input.options.group_size_max;
    for_each_matrix(input, [&](const ExpertMatrix& matrix) {
        const std::uint32_t group = matrix.tensor->info().int4_group;
        if (group >= 32) group_size_max = std::min(group_size_max, group);
    });

    // The manifest of a dense model also states a group size, although the model has no experts.
    MOEX_ASSIGN(group_size,
                choose_group_size(input.config.hidden_size,
                                  input.config.has_experts() ? input.config.moe_intermediate_size
                                                             : input.config.hidden_size,
                                  group_size_max));
    input.shape.group_size = group_size;

    for_each_matrix(input, [&](ExpertMatrix& matrix) {
        const TensorInfo& info = matrix.tensor->info();
        matrix.keeps_codes = info.int4_group > 0 && info.int4_group % group_size == 0 &&
                             info.row_size() % group_size == 0;
    });
    return {};
}

// With --keep-format: refuses the first matrix that would be rounded to another format.
Status check_keep_format(PackInput& input) {
    if (!input.options.keep_format) return {};
    const auto refuse = [](const TensorInfo& info, std::string_view form) {
        return Error{ErrorCode::unsupported,
                     text(info.where(), " is ", info.format, " and would become ", form,
                          ", which --keep-format forbids; leave it out, or choose --expert-dtype "
                          "f32")};
    };
    const ExpertDtype dtype = input.options.expert_dtype;
    const TensorInfo* rounded = nullptr;
    for_each_matrix(input, [&](const ExpertMatrix& matrix) {
        const TensorInfo& info = matrix.tensor->info();
        const bool is_kept = dtype == ExpertDtype::f32 || matrix.keeps_codes ||
                             (dtype == ExpertDtype::bf16 && info.plain == TensorDtype::bf16);
        if (!is_kept && rounded == nullptr) rounded = &info;
    });
    if (rounded != nullptr) return refuse(*rounded, expert_dtype_name(dtype));

    for (std::size_t i = 0; i < input.hub.of.size(); ++i) {
        const HubEntry& entry = input.hub.of[i];
        const TensorInfo& info = input.hub_sources[entry.spec_index]->info();
        if (entry.codes) return refuse(info, tensor_dtype_name(*entry.codes));
        if (input.hub_dtypes[entry.spec_index] == TensorDtype::bf16 &&
            info.plain != TensorDtype::bf16)
            return refuse(info, "bf16");
    }
    return {};
}

// A key of config.json that changes what a model computes, with the values that change nothing.
// The families that this program computes have no use for another value.
struct NeutralKey {
    std::string_view key;
    std::vector<Json> neutral;
};

// Refuses keys that would change the mathematics of a supported family. transformers ignores most
// of these keys here, so a model that has them was made for another program.
Status check_neutral_keys(const Json& config) {
    static const NeutralKey keys[] = {
        {"scoring_func", {"softmax"}},
        {"routed_scaling_factor", {1}},
        {"n_group", {0, 1}},
        {"topk_group", {0, 1}},
        {"n_shared_experts", {0}},
        {"num_shared_experts", {0}},
        {"shared_expert_intermediate_size", {0}},
        {"final_logit_softcapping", {}},
        {"attn_logit_softcapping", {}},
        {"clip_qkv", {}},
        {"swiglu_limit", {}},
        {"embedding_multiplier", {1}},
        {"attention_multiplier", {}},
        {"residual_multiplier", {1}},
        {"logits_scaling", {1}},
        {"logit_scale", {1}},
        {"is_causal", {true}},
        {"use_bidirectional_attention", {false}},
    };
    for (const NeutralKey& one : keys) {
        const Json& value = member(config, one.key);
        if (value.is_null() ||
            std::find(one.neutral.begin(), one.neutral.end(), value) != one.neutral.end())
            continue;
        return Error{
            ErrorCode::unsupported,
            text("config: ", one.key, " is ", json_excerpt(value), ", which models of type ",
                 json_excerpt(member(config, "model_type")), " do not compute here")};
    }
    return {};
}

// Reads the configuration. An expert's width that is no multiple of 32 is padded.
Status read_config(PackInput& input) {
    const std::string& what = input.source.config_what;
    MOEX_ASSIGN(object, parse_strict_json(input.source.config_json, what));
    std::uint32_t inner = 0;
    if (const auto width = whole_number(member(object, "moe_intermediate_size"));
        width && *width > 0 && *width < 1 << 18) {
        inner = static_cast<std::uint32_t>(*width);
        object["moe_intermediate_size"] = (inner + 31) / 32 * 32;
    }

    const auto config = parse_hf_config(object);
    if (!config.ok()) return Error{config.error().code, text(what, ": ", config.error().message)};
    if (const Status status = check_neutral_keys(object); !status.ok())
        return Error{status.error().code, text(what, ": ", status.error().message)};
    if (!member(object, "auto_map").is_null())
        input.source.warnings.push_back(
            "config.json names code of the checkpoint's own (auto_map), which never runs here");
    input.config = *config;
    input.inner_size = config->has_experts() ? inner : 0;
    input.shape = {config->hidden_size, config->moe_intermediate_size, 0};
    return {};
}

// Returns the name of a model by its path: the folder's name, the name of a GGUF file without the
// number of a split, or the repository's name in a cache of Hugging Face:
// .../models--Qwen--Qwen3-30B-A3B/snapshots/COMMIT is Qwen3-30B-A3B.
std::string name_of(const fs::path& path) {
    std::error_code ignored;
    const bool is_file = path.extension() == ".gguf";
    fs::path full = is_file ? fs::absolute(path, ignored).lexically_normal()
                            : fs::weakly_canonical(path, ignored);
    if (!full.has_filename()) full = full.parent_path();

    std::string name = is_file ? full.stem().string() : full.filename().string();
    if (const std::size_t split = name.rfind("-00001-of-"); is_file && split != std::string::npos)
        return name.substr(0, split);
    const fs::path snapshots = full.parent_path();
    const std::string repository = snapshots.parent_path().filename().string();
    if (is_file || snapshots.filename() != "snapshots" || !repository.starts_with("models--"))
        return name;
    return repository.substr(repository.rfind("--") + 2);
}

Status choose_name(PackInput& input, const fs::path& path) {
    if (input.options.name.empty()) input.options.name = name_of(path);
    if (package_name_ok(input.options.name)) return {};
    return Error{ErrorCode::invalid_argument,
                 text("package name ", json_excerpt(input.options.name),
                      ", wanted 1 to 128 printable characters without spaces (--name)")};
}

std::string identity_of(const PackInput& input) {
    const PackOptions& options = input.options;
    std::string identity = text(packer_version, '\n', expert_dtype_name(options.expert_dtype), ' ',
                                input.shape.group_size, ' ', options.hub_f32, ' ', options.name,
                                '\n', to_hex(sha256(as_byte_view(input.source.config_json))), '\n',
                                input.source.fingerprint);
    if (options.hub_dtype != HubDtype::bf16)
        identity += text("hub ", hub_dtype_name(options.hub_dtype), '\n');
    for (const auto& [name, content] : input.texts)
        identity += text(name, ' ', to_hex(sha256(as_byte_view(content))), '\n');
    return identity;
}

}  // namespace

Result<PackInput> read_pack_input(const fs::path& path, const PackOptions& options) {
    MOEX_ASSIGN(source, open_model_source(path));
    PackInput input{.source = std::move(source), .options = options};
    MOEX_TRY(read_config(input));
    MOEX_TRY(choose_name(input, path));
    input.warnings = input.source.warnings;

    MOEX_TRY(find_tensors(input));
    MOEX_TRY(choose_groups(input));
    MOEX_TRY(check_keep_format(input));
    input.layout = expert_blob_layout(input.shape, options.expert_dtype);
    MOEX_TRY(read_pack_texts(input));
    input.identity = identity_of(input);
    return input;
}

}  // namespace moex
