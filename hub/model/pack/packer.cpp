#include "hub/model/pack/packer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <set>

#include "hub/base/files.h"
#include "hub/base/sha256.h"
#include "hub/model/chat_template.h"
#include "hub/model/pack/checkpoint.h"
#include "hub/model/pack/hub_codes_writer.h"
#include "hub/model/pack/layer_writer.h"
#include "hub/model/pack/package_writer.h"
#include "hub/model/pack/quantize.h"
#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/tokenizer_files.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
// number of tensor elements that a thread holds in memory at a time
constexpr std::size_t window_floats = 1u << 18;

// Version of the packer. It must change when the same input gives other bytes. A packer never
// resumes an unfinished package of another version.
constexpr std::string_view packer_version = "moex-pack 3";

// Position of a matrix inside a tensor of the checkpoint. The matrices of an expert may be separate
// tensors, or slices of one fused tensor.
struct Matrix {
    const Checkpoint::Tensor* tensor = nullptr;
    std::uint64_t first = 0;  // element
};
struct ExpertSource {
    Matrix gate, up, down;
};
struct Input {
    Checkpoint checkpoint;
    ModelConfig config;
    PackOptions options;
    ExpertShape shape;
    ExpertBlobLayout layout;
    std::vector<HubTensorSpec> hub_specs;
    std::vector<const Checkpoint::Tensor*> hub_sources;  // [hub_specs.size()]
    std::vector<TensorDtype> hub_dtypes;  // [hub_specs.size()]; bf16 or f32 for each tensor
    HubEntries hub;
    // [num_layers][num_experts]: where each expert's weights are stored; empty for a dense layer
    std::vector<std::vector<ExpertSource>> experts;
    std::map<std::string, std::string> texts;
    GenerationDefaults generation;
    std::vector<std::string> warnings;
    std::uint64_t used_bytes = 0;  // of checkpoint tensors
    std::string identity;          // for .pack-state/input
};

// Finds the expert weights of a layer in the checkpoint. transformers 4 and 5 write one tensor per
// expert and projection. transformers 5 can also write one fused tensor for all experts of a layer.
Result<std::vector<ExpertSource>> find_experts(const Input& input, std::uint32_t layer) {
    const Checkpoint& checkpoint = input.checkpoint;
    const std::uint64_t hidden = input.config.hidden_size,
                        inner = input.config.moe_intermediate_size,
                        count = input.config.num_experts;
    const std::string at = text("model.layers.", layer, ".mlp.experts.");
    std::vector<ExpertSource> sources(count);

    if (checkpoint.find(at + "gate_up_proj") != nullptr) {
        MOEX_ASSIGN(gate_up,
                    checkpoint.require(at + "gate_up_proj", std::array{count, 2 * inner, hidden},
                                       "num_experts, 2 * moe_intermediate_size, hidden_size"));
        MOEX_ASSIGN(down, checkpoint.require(at + "down_proj", std::array{count, hidden, inner},
                                             "num_experts, hidden_size, moe_intermediate_size"));

        for (std::uint64_t e = 0; e < count; ++e)
            sources[e] = {{gate_up, e * 2 * inner * hidden},
                          {gate_up, (e * 2 + 1) * inner * hidden},
                          {down, e * hidden * inner}};

        return sources;
    }

    for (std::uint64_t e = 0; e < count; ++e) {
        const std::string expert = text(at, e, ".");
        MOEX_ASSIGN(gate, checkpoint.require(expert + "gate_proj.weight", std::array{inner, hidden},
                                             "moe_intermediate_size, hidden_size"));
        MOEX_ASSIGN(up, checkpoint.require(expert + "up_proj.weight", std::array{inner, hidden},
                                           "moe_intermediate_size, hidden_size"));
        MOEX_ASSIGN(down, checkpoint.require(expert + "down_proj.weight", std::array{hidden, inner},
                                             "hidden_size, moe_intermediate_size"));
        sources[e] = {{gate, 0}, {up, 0}, {down, 0}};
    }

    return sources;
}

// Finds every tensor that the configuration requires and checks its shape. A tensor that the
// configuration does not require gives a warning only.
Status find_tensors(Input& input) {
    std::set<const Checkpoint::Tensor*> used;
    input.hub_specs = hub_tensor_specs(input.config);
    for (const HubTensorSpec& spec : input.hub_specs) {
        MOEX_ASSIGN(tensor, input.checkpoint.require(spec.name, spec.shape, spec.shape_words));
        const bool keep = *tensor->entry.dtype != TensorDtype::bf16 &&
                          (spec.precise || input.options.hub_f32);
        input.hub_sources.push_back(tensor);
        input.hub_dtypes.push_back(keep ? TensorDtype::f32 : TensorDtype::bf16);
        used.insert(tensor);
    }
    if (input.options.hub_dtype != HubDtype::bf16) MOEX_TRY(check_rows_for_codes(input.config));
    input.hub = hub_entries(input.hub_specs, input.options.hub_dtype,
                            [&](std::size_t i) { return input.hub_dtypes[i]; });

    for (std::uint32_t layer = 0; layer < input.config.num_layers; ++layer) {
        input.experts.emplace_back();
        if (!input.config.is_moe(layer)) continue;
        MOEX_ASSIGN(sources, find_experts(input, layer));
        for (const ExpertSource& source : sources)
            for (const Matrix& matrix : {source.gate, source.up, source.down})
                used.insert(matrix.tensor);
        input.experts.back() = std::move(sources);
    }

    for (const Checkpoint::Tensor* tensor : used) input.used_bytes += tensor->entry.size_bytes;
    std::size_t unused = 0;
    std::string first;
    for (const auto& [name, tensor] : input.checkpoint.tensors()) {
        if (used.contains(&tensor)) continue;
        // Refuse a bias tensor that this program does not use, because the packed model would give
        // other answers than the checkpoint.
        if (name.ends_with(".bias"))
            return Error{ErrorCode::unsupported,
                         text(input.checkpoint.where(tensor), ": ", input.config.architecture,
                              " has no such bias by its config.json; from another model?")};
        if (unused++ == 0) first = name.substr(0, 200);
    }
    if (unused > 0)
        input.warnings.push_back(text(
            unused,
            " tensors of the checkpoint are not part of the model and were left out, the first: ",
            first));

    return {};
}

// Returns tokenizer_config.json with the chat template. Newer checkpoints have the chat template in
// a separate file, which takes precedence over the template in tokenizer_config.json, as in
// transformers. A package always stores it in tokenizer_config.json.
Result<std::string> with_chat_template(std::string tokenizer_config,
                                       const std::string& chat_template, const std::string& what) {
    MOEX_ASSIGN(object, parse_strict_json<nlohmann::ordered_json>(
                            tokenizer_config.empty() ? "{}" : tokenizer_config, what));
    if (!object.is_object())
        return Error{ErrorCode::bad_field,
                     text(what, ": ", json_excerpt(object), ", wanted an object")};
    if (object.contains("chat_template") && object["chat_template"] == chat_template)
        return tokenizer_config;

    object["chat_template"] = chat_template;
    return object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Status read_texts(Input& input, const std::string& config_text) {
    const fs::path& directory = input.checkpoint.directory();
    const auto read_if_there = [&](std::string_view name) -> Result<std::optional<std::string>> {
        auto content = read_text_file(directory / name, text_file_bytes_max(name));
        if (content.ok()) return std::optional(std::move(*content));
        if (content.error().code == ErrorCode::not_found) return std::optional<std::string>();
        return content.error();
    };

    for (const std::string_view name : package_text_files) {
        MOEX_ASSIGN(content, read_if_there(name));
        if (content) input.texts[std::string(name)] = std::move(*content);
    }

    MOEX_ASSIGN(chat_template, read_if_there("chat_template.jinja"));
    if (chat_template) {
        MOEX_ASSIGN(merged, with_chat_template(input.texts["tokenizer_config.json"], *chat_template,
                                               (directory / "tokenizer_config.json").string()));
        input.texts["tokenizer_config.json"] = std::move(merged);
    }

    const auto generation = input.texts.find("generation_config.json");
    MOEX_ASSIGN(defaults,
                parse_generation_config(generation == input.texts.end() ? "" : generation->second,
                                        config_text, input.config.vocab_size,
                                        (directory / "generation_config.json").string()));
    input.generation = std::move(defaults);
    const std::string& tokenizer_config = input.texts.contains("tokenizer_config.json")
                                              ? input.texts["tokenizer_config.json"]
                                              : "";

    CheckpointTexts checkpoint{.names = {},
                               .read =
                                   [&](const std::string& name) {
                                       return read_text_file(directory / name,
                                                             text_file_bytes_max(name));
                                   },
                               .where = (directory / "").string()};
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory, ignored))
        checkpoint.names.push_back(entry.path().filename().string());
    MOEX_ASSIGN(tokenizer, choose_tokenizer(checkpoint, tokenizer_config, input.config.vocab_size));
    for (std::string& warning : tokenizer.warnings) input.warnings.push_back(std::move(warning));
    if (tokenizer.tokenizer_json.empty()) {
        input.texts.erase("tokenizer.json");
        return {};
    }
    input.texts["tokenizer.json"] = std::move(tokenizer.tokenizer_json);

    const auto parsed = ChatTemplate::from_tokenizer_config(
        tokenizer_config.empty() ? "{}" : tokenizer_config);
    if (!parsed.ok() && parsed.error().code == ErrorCode::not_found)
        input.warnings.push_back("no chat template: completions work, chat does not");
    if (!parsed.ok() && parsed.error().code != ErrorCode::not_found)
        return Error{
            parsed.error().code,
            text((directory / (chat_template ? "chat_template.jinja" : "tokenizer_config.json"))
                     .string(),
                 ": ", parsed.error().message)};

    return {};
}

Result<Input> read_input(const fs::path& directory, const PackOptions& options) {
    const fs::path config_path = directory / "config.json";
    MOEX_ASSIGN(config_text, read_text_file(config_path, text_file_bytes_max("config.json")));
    MOEX_ASSIGN(config_object, parse_strict_json(config_text, config_path.string()));
    const auto config = parse_hf_config(config_object);
    if (!config.ok())
        return Error{config.error().code, text(config_path.string(), ": ", config.error().message)};

    MOEX_ASSIGN(checkpoint, Checkpoint::open(directory));
    Input input{.checkpoint = std::move(checkpoint), .config = *config, .options = options};
    if (input.options.name.empty()) {
        std::error_code ignored;
        const fs::path full = fs::weakly_canonical(directory, ignored);
        input.options.name =
            (full.has_filename() ? full.filename() : full.parent_path().filename()).string();
    }

    if (!package_name_ok(input.options.name))
        return Error{ErrorCode::invalid_argument,
                     text("package name ", json_excerpt(input.options.name),
                          ", wanted 1 to 128 printable characters without spaces (--name)")};

    input.shape = {config->hidden_size, config->moe_intermediate_size, 0};
    if (options.expert_dtype == ExpertDtype::int4) {
        // The manifest of a dense model also states a group size, although the model has no
        // experts.
        MOEX_ASSIGN(group_size,
                    choose_group_size(
                        config->hidden_size,
                        config->has_experts() ? config->moe_intermediate_size : config->hidden_size,
                        options.group_size_max));
        input.shape.group_size = group_size;
    }

    input.layout = expert_blob_layout(input.shape, options.expert_dtype);
    MOEX_TRY(find_tensors(input));
    MOEX_TRY(read_texts(input, config_text));

    input.identity = text(packer_version, '\n', expert_dtype_name(options.expert_dtype), ' ',
                          input.shape.group_size, ' ', options.hub_f32, ' ', input.options.name,
                          '\n', to_hex(sha256(as_byte_view(config_text))), '\n',
                          input.checkpoint.fingerprint());
    if (options.hub_dtype != HubDtype::bf16)
        input.identity += text("hub ", hub_dtype_name(options.hub_dtype), '\n');
    for (const auto& [name, content] : input.texts)
        input.identity += text(name, ' ', to_hex(sha256(as_byte_view(content))), '\n');

    return input;
}

// Writes weights as bf16 words or as f32. A weight that is too large for bf16 is refused, like any
// other infinity.
Status encode_weights(std::span<const float> values, bool as_f32, std::span<std::byte> out,
                      const Checkpoint& checkpoint, const Checkpoint::Tensor& tensor) {
    if (as_f32) {
        std::memcpy(out.data(), values.data(), values.size_bytes());
        return {};
    }

    std::uint32_t overflow = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const bfloat16 rounded = float_to_bfloat16(values[i]);
        overflow |= (rounded & 0x7f80u) == 0x7f80u ? 1u : 0u;
        std::memcpy(out.data() + 2 * i, &rounded, 2);
    }

    if (overflow != 0)
        return Error{ErrorCode::non_finite,
                     text(checkpoint.where(tensor), " holds a weight too large for bf16")};
    return {};
}

struct Buffers {  // scratch buffers of a compute thread
    std::vector<float> floats;
    Bytes raw;
};

// Packs a matrix with rows [num_rows, row_size] into the matrix's sections of the expert blob, one
// window of elements at a time.
Status pack_matrix(const Input& input, const Matrix& matrix, std::uint64_t num_rows,
                   std::uint32_t row_size, std::byte* codes, std::byte* scale_zero,
                   Buffers& buffers) {
    const ExpertDtype dtype = input.options.expert_dtype;
    const std::uint64_t rows_per_window = std::max<std::uint64_t>(1, window_floats / row_size);
    for (std::uint64_t row = 0; row < num_rows; row += rows_per_window) {
        const std::uint64_t rows = std::min(rows_per_window, num_rows - row);
        buffers.floats.resize(rows * row_size);
        MOEX_TRY(input.checkpoint.read_floats(*matrix.tensor, matrix.first + row * row_size,
                                              buffers.floats, buffers.raw));

        if (dtype != ExpertDtype::int4) {
            const std::size_t element_bytes = dtype == ExpertDtype::f32 ? 4 : 2;
            MOEX_TRY(encode_weights(
                buffers.floats, dtype == ExpertDtype::f32,
                {codes + row * row_size * element_bytes, rows * row_size * element_bytes},
                input.checkpoint, *matrix.tensor));
            continue;
        }

        const std::uint32_t code_words = row_size / 8, groups = row_size / input.shape.group_size;
        for (std::uint64_t r = 0; r < rows; ++r) {
            auto* const code_row = reinterpret_cast<std::uint32_t*>(codes) + (row + r) * code_words;
            auto* const scale_row = reinterpret_cast<std::uint32_t*>(scale_zero) +
                                    (row + r) * groups;
            if (!quantize_int4_row(std::span(buffers.floats).subspan(r * row_size, row_size),
                                   input.shape.group_size, code_row, scale_row))
                return Error{ErrorCode::bad_file,
                             text(input.checkpoint.where(*matrix.tensor), ": row ", row + r,
                                  " holds weights too large for an int4 scale in f16")};
        }
    }

    return {};
}

Status pack_expert(const Input& input, const ExpertSource& source, std::span<std::byte> blob) {
    const std::uint64_t hidden = input.config.hidden_size,
                        inner = input.config.moe_intermediate_size;
    const ExpertBlobLayout& layout = input.layout;
    std::byte* const gate_up = blob.data() + layout.gate_up_codes.offset_bytes;
    std::byte* const gate_up_scale = blob.data() + layout.gate_up_scale_zero.offset_bytes;
    Buffers buffers;
    MOEX_TRY(pack_matrix(input, source.gate, inner, input.config.hidden_size, gate_up,
                         gate_up_scale, buffers));
    MOEX_TRY(pack_matrix(input, source.up, inner, input.config.hidden_size,
                         gate_up + layout.gate_up_codes.size_bytes / 2,
                         gate_up_scale + layout.gate_up_scale_zero.size_bytes / 2, buffers));

    return pack_matrix(input, source.down, hidden, input.config.moe_intermediate_size,
                       blob.data() + layout.down_codes.offset_bytes,
                       blob.data() + layout.down_scale_zero.offset_bytes, buffers);
}

// Counts the bytes that were read from the checkpoint, for the progress bar.
struct Meter {
    const std::function<void(const PackProgress&)>& report;
    PackProgress state;
    void add(std::uint64_t bytes) {
        state.done_bytes = std::min(state.done_bytes + bytes, state.total_bytes);
        if (report) report(state);
    }
};

// Packs one tensor of the hub as plain elements or as codes, one window of elements at a time.
class HubTensorPacker {
  public:
    HubTensorPacker(Input& input, Meter& meter) : input_(input), meter_(meter) {}

    Status write(std::size_t index, const PackageOutput::WriteBytes& write) {
        const HubEntry& entry = input_.hub.of[index];
        if (entry.is_scales) return write(coder_.scales());
        if (entry.codes)
            coder_.begin(codes_layout(input_.hub_specs[entry.spec_index], *entry.codes));

        const Checkpoint::Tensor& source = *input_.hub_sources[entry.spec_index];
        const bool as_f32 = input_.hub_dtypes[entry.spec_index] == TensorDtype::f32;
        const std::uint64_t count = source.entry.size_bytes /
                                    tensor_dtype_bytes(*source.entry.dtype);
        for (std::uint64_t first = 0; first < count; first += window_floats) {
            floats_.resize(std::min<std::uint64_t>(window_floats, count - first));
            MOEX_TRY(input_.checkpoint.read_floats(source, first, floats_, raw_));
            encoded_.resize(floats_.size() * (as_f32 ? 4 : 2));
            MOEX_TRY(encode_weights(floats_, as_f32, encoded_, input_.checkpoint, source));
            if (entry.codes) MOEX_TRY(encode_codes(source, as_f32));
            MOEX_TRY(write(encoded_));
            meter_.add(raw_.size());
        }
        return {};
    }

  private:
    // Rounds the weights as a package without codes would store them, and encodes the rounded
    // weights. The codes then equal those that the hub computes when it loads a package without
    // codes.
    Status encode_codes(const Checkpoint::Tensor& source, bool as_f32) {
        elements_to_float(as_f32 ? TensorDtype::f32 : TensorDtype::bf16, encoded_.data(), floats_);
        if (coder_.add(floats_, encoded_)) return {};
        return Error{ErrorCode::non_finite,
                     text(input_.checkpoint.where(source),
                          " holds a weight too large for --hub-dtype int4: its scale is f16")};
    }

    Input& input_;
    Meter& meter_;
    RowCoder coder_;
    std::vector<float> floats_;
    Bytes raw_, encoded_;
};

Result<FileRecord> pack_hub(Input& input, PackageOutput& output, Meter& meter) {
    if (const auto finished = output.finished_hub()) return *finished;
    HubTensorPacker packer(input, meter);
    return output.write_hub(input.hub.entries,
                            [&](std::size_t index, const PackageOutput::WriteBytes& write) {
                                return packer.write(index, write);
                            });
}

Result<PackReport> write_package(Input& input, PackageOutput& output, ThreadPool& threads,
                                 const std::function<void(const PackProgress&)>& progress) {
    const ModelConfig& config = input.config;
    PackageManifest manifest{.name = input.options.name,
                             .config = config,
                             .expert_dtype = input.options.expert_dtype,
                             .group_size = input.shape.group_size,
                             .hub_dtype = input.options.hub_dtype,
                             .generation = input.generation};
    PackReport report{.input_bytes = input.used_bytes, .warnings = input.warnings};

    Meter meter{progress, {.total_bytes = input.used_bytes, .num_layers = config.num_layers}};
    const std::uint64_t expert_elements = 3ull * config.hidden_size * config.moe_intermediate_size;
    std::set<Sha256> blobs;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        manifest.experts.emplace_back();
        if (!config.is_moe(layer)) continue;

        const auto& sources = input.experts[layer];
        const auto bytes_of = [&](std::uint32_t expert) {
            return expert_elements / 3 *
                   (2 * tensor_dtype_bytes(*sources[expert].gate.tensor->entry.dtype) +
                    tensor_dtype_bytes(*sources[expert].down.tensor->entry.dtype));
        };

        meter.state.layer = layer;
        if (auto finished = output.finished_layer(layer, config.num_experts,
                                                  input.layout.size_bytes)) {
            manifest.experts.back() = std::move(*finished);
            ++report.layers_resumed;
            for (std::uint32_t expert = 0; expert < config.num_experts; ++expert)
                meter.add(bytes_of(expert));
        } else {
            MOEX_ASSIGN(hashes, write_layer_blobs(
                                    output, config.num_experts, input.layout.size_bytes, threads,
                                    [&](std::uint32_t expert, std::span<std::byte> blob) {
                                        return pack_expert(input, sources[expert], blob);
                                    },
                                    [&](std::uint32_t expert) { meter.add(bytes_of(expert)); }));
            MOEX_TRY(output.finish_layer(layer, hashes));
            manifest.experts.back() = std::move(hashes);
        }

        blobs.insert(manifest.experts.back().begin(), manifest.experts.back().end());
    }

    MOEX_ASSIGN(hub, pack_hub(input, output, meter));
    manifest.hub = hub;
    report.num_blobs = static_cast<std::uint32_t>(blobs.size());
    report.output_bytes = hub.size_bytes + blobs.size() * input.layout.size_bytes;

    for (const auto& [name, content] : input.texts) {
        MOEX_ASSIGN(record, output.write_text(name, content));
        manifest.files[name] = record;
        report.output_bytes += record.size_bytes;
    }

    MOEX_TRY(output.finish(manifest));
    meter.add(input.used_bytes);
    return report;
}

std::uint64_t output_bytes_of(const Input& input) {
    std::uint64_t total = 1u << 20;  // reserve for manifest, headers and file system
    for (const SafetensorsEntry& entry : input.hub.entries) {
        std::uint64_t bytes = tensor_dtype_bytes(*entry.dtype);
        for (const std::uint64_t size : entry.shape) bytes *= size;
        total += bytes;
    }

    for (const auto& layer : input.experts)
        total += layer.size() * (input.layout.size_bytes + 4096);
    for (const auto& [name, content] : input.texts) total += content.size();
    return total;
}

}  // namespace

Result<PackReport> pack_checkpoint(const fs::path& checkpoint, const fs::path& out,
                                   const PackOptions& options, ThreadPool& threads,
                                   const std::function<void(const PackProgress&)>& progress) {
    MOEX_ASSIGN(input, read_input(checkpoint, options));
    MOEX_ASSIGN(output, PackageOutput::open(out, input.identity, output_bytes_of(input)));
    auto report = write_package(input, output, threads, progress);
    const bool may_go_on = report.ok() || report.error().code == ErrorCode::io_error ||
                           report.error().code == ErrorCode::no_space;
    if (!may_go_on) output.discard();
    return report;
}

}  // namespace moex
