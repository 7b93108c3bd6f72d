#include "hub/model/pack/input_reader.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "hub/base/sha256.h"
#include "hub/model/hf_config.h"
#include "hub/model/json_fields.h"
#include "hub/model/pack/arrange_tensors.h"
#include "hub/model/pack/draft_head_input.h"
#include "hub/model/pack/expert_finder.h"
#include "hub/model/pack/pack_texts.h"
#include "hub/model/pack/readers/open_model.h"
#include "hub/model/package/manifest.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// Version of the packer. It must change when the same input gives other bytes. A packer never
// resumes an unfinished package of another version.
constexpr std::string_view packer_version = "moex-pack 5";

Result<std::vector<ExpertSource>> find_experts(const PackInput& input, std::uint32_t layer) {
    const ExpertPlace place{.source = input.source,
                            .layer = layer,
                            .hidden = input.config.hidden_size,
                            .inner = input.inner_size,
                            .count = input.config.num_experts,
                            .has_bias = input.config.layers[layer].has_expert_bias};
    return find_experts(place, *input.family);
}

// Calls `visit` for every matrix of every expert.
template <class Visit>
void for_each_matrix(PackInput& input, const Visit& visit) {
    for (auto& layer : input.experts)
        for (ExpertSource& expert : layer)
            for (ExpertMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) visit(*matrix);
}

// Returns the name that a hub's tensor has in the checkpoint: the family's own name, if the
// checkpoint has it, or the package's name.
std::string name_in_source(const PackInput& input, const std::string& name) {
    for (const TensorAlias& alias : input.family->aliases) {
        if (!name.ends_with(text('.', alias.ours))) continue;
        const std::string theirs = text(
            std::string_view(name).substr(0, name.size() - alias.ours.size()), alias.theirs);
        const bool has_ours = input.source.find(name) != nullptr;
        return has_ours && input.source.find(theirs) == nullptr ? name : theirs;
    }
    return name;
}

Status find_hub_tensors(PackInput& input) {
    input.hub_specs = hub_tensor_specs(input.config);
    std::size_t num_other = 0;  // matrices that are not bf16 in the model
    std::string format;
    for (const HubTensorSpec& spec : input.hub_specs) {
        MOEX_ASSIGN(tensor, input.source.require(name_in_source(input, spec.name), spec.shape,
                                                 spec.shape_words));
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

// Returns the layer that a tensor belongs to by its name, or nothing if it is outside the layers.
std::optional<std::uint64_t> layer_of(std::string_view name) {
    constexpr std::string_view prefix = "model.layers.";
    if (!name.starts_with(prefix)) return std::nullopt;
    name.remove_prefix(prefix.size());
    std::uint64_t layer = 0;
    std::size_t digits = 0;
    for (; digits < name.size() && digits < 6 && name[digits] >= '0' && name[digits] <= '9';
         ++digits)
        layer = layer * 10 + static_cast<std::uint64_t>(name[digits] - '0');
    return digits > 0 ? std::optional(layer) : std::nullopt;
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

// Parts of a checkpoint that answers to a text do not need, by the beginning of their names.
struct OtherPart {
    std::string_view prefix, what;
};
constexpr OtherPart other_parts[] = {{"model.visual.", "which reads pictures"},
                                     {"visual.", "which reads pictures"},
                                     {"mtp.", "which drafts tokens and changes no answer"}};

// Refuses a tensor inside a layer that this program does not use, because the packed model would
// give other answers than the checkpoint. Other tensors give a warning: layers that draft further
// tokens, which come after the model's own, and vision towers.
Status check_unused(PackInput& input, const std::set<const TensorReader*>& used) {
    std::size_t unused = 0;
    std::string names;
    std::map<std::uint64_t, std::size_t> drafts;  // tensors of each layer after the last
    std::map<const OtherPart*, std::size_t> others;
    for (const auto& [name, reader] : input.source.readers) {
        if (used.contains(reader.get()) || input.source.ignored.contains(name)) continue;
        const auto layer = layer_of(name);
        if (layer && *layer >= input.config.num_layers) {
            ++drafts[*layer];
            continue;
        }
        const auto* const other = std::ranges::find_if(
            other_parts, [&](const OtherPart& part) { return name.starts_with(part.prefix); });
        if (other != std::end(other_parts)) {
            ++others[other];
            continue;
        }
        MOEX_ASSIGN(is_zero, is_zero_bias(*reader));
        if (is_zero) continue;
        if (layer || name.ends_with(".bias"))
            return Error{ErrorCode::unsupported,
                         text(reader->info().where(), ": ", input.config.architecture,
                              " has no such ", name.ends_with(".bias") ? "bias" : "tensor",
                              " by its config.json; from another model?")};
        if (unused++ < 3) names += text(unused == 1 ? "" : ", ", name.substr(0, 200));
    }
    for (const auto& [layer, count] : drafts)
        input.warnings.push_back(text("model.layers.", layer, " (", count,
                                      " tensors) comes after the model's last layer and was left "
                                      "out: a layer that drafts tokens changes no answer"));
    for (const auto& [part, count] : others)
        input.warnings.push_back(
            text(part->prefix, "* (", count, " tensors), ", part->what, ", was left out"));
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
    for (const auto& layer : input.experts)
        for (const ExpertSource& expert : layer)
            if (expert.biases) used.insert({expert.biases->gate_up, expert.biases->down});
    for (const TensorReader* reader : used) input.used_bytes += reader->info().stored_bytes;
    return check_unused(input, used);
}

// Returns an error that names the first matrix which does not have the MXFP4 codes of a blob.
Status check_mxfp4(PackInput& input) {
    const TensorInfo* other = nullptr;
    bool has_experts = false;
    for_each_matrix(input, [&](const ExpertMatrix& matrix) {
        const TensorInfo& info = matrix.tensor->info();
        has_experts = true;
        const bool is_whole = info.is_mxfp4 && info.row_size() % mxfp4_block == 0 &&
                              !matrix.is_transposed;
        if (!is_whole && other == nullptr) other = &info;
    });
    if (other != nullptr)
        return Error{ErrorCode::unsupported,
                     text(other->where(), " is ", other->format,
                          ", and only experts that the checkpoint has in MXFP4 are kept in it")};
    if (!has_experts) return Error{ErrorCode::unsupported, "the model has no experts in MXFP4"};
    return {};
}

void keep_mxfp4(PackInput& input) {
    input.options.expert_dtype = input.shape.codes = ExpertDtype::mxfp4;
    input.shape.group_size = mxfp4_block;
    for_each_matrix(input, [](ExpertMatrix& matrix) { matrix.keeps_codes = true; });
}

// Chooses the group size of INT4 experts, and which matrices are copied as quantised INT4 codes. If
// the model's file has INT4 groups already, the package's group size divides the file's group size.
Status choose_groups(PackInput& input) {
    const bool wants_mxfp4 = input.options.expert_dtype == ExpertDtype::mxfp4;
    if (wants_mxfp4) MOEX_TRY(check_mxfp4(input));
    if (!wants_mxfp4 && input.options.expert_dtype != ExpertDtype::int4) return {};
    if (wants_mxfp4 || (input.options.keeps_mxfp4 && check_mxfp4(input).ok())) {
        keep_mxfp4(input);
        return {};
    }
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
                             info.row_size() % group_size == 0 && matrix.row_step == 1 &&
                             !matrix.is_transposed;
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

Status read_config(PackInput& input) {
    const std::string& what = input.source.config_what;
    MOEX_ASSIGN(object, parse_strict_json(input.source.config_json, what));
    const auto config = parse_hf_config(object);
    if (!config.ok()) return Error{config.error().code, text(what, ": ", config.error().message)};
    if (!member(object, "auto_map").is_null())
        input.source.warnings.push_back(
            "config.json names code of the checkpoint's own (auto_map), which never runs here");
    input.config = *config;
    input.family = find_family(config->architecture);
    input.inner_size = config->expert_width > 0 ? config->expert_width
                                                : config->moe_intermediate_size;
    input.shape = config->expert_shape(0);
    return arrange_tensors(input.source, input.config);
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

// Finds all tensors of a package, and chooses the form of each.
Status choose_forms(PackInput& input) {
    MOEX_TRY(find_tensors(input));
    MOEX_TRY(choose_groups(input));
    MOEX_TRY(check_keep_format(input));
    input.layout = expert_blob_layout(input.shape, input.options.expert_dtype);
    return {};
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

    // A head changes no answer, so one that cannot be packed is left out.
    auto head = take_draft_head(input);
    Status usable = head ? arrange_tensors(head->source, head->config) : Status{};
    if (head && usable.ok()) usable = choose_forms(*head);
    if (head && usable.ok()) {
        head->identity = identity_of(*head);
        input.warnings.insert(input.warnings.end(), head->warnings.begin(), head->warnings.end());
        input.draft_head = std::move(head);
    } else if (head) {
        input.warnings.push_back(
            text("mtp.*, which drafts tokens and changes no answer, was left "
                 "out: ",
                 usable.error().message));
    }

    MOEX_TRY(choose_forms(input));
    MOEX_TRY(read_pack_texts(input));
    input.identity = identity_of(input);
    return input;
}

}  // namespace moex
