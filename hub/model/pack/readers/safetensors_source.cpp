#include "hub/model/pack/readers/safetensors_source.h"

#include <optional>

#include "hub/base/files.h"
#include "hub/model/json_fields.h"
#include "hub/model/pack/readers/embedding_modules.h"
#include "hub/model/pack/readers/safetensors_readers.h"
#include "hub/model/package/manifest.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// Returns `name` without `suffix`, or nothing if it does not end with `suffix`.
std::optional<std::string> without(const std::string& name, std::string_view suffix) {
    if (!name.ends_with(suffix)) return std::nullopt;
    return name.substr(0, name.size() - suffix.size());
}

// Builds the readers of all tensors of a checkpoint. Tensors that are parts of a quantised weight
// get no reader of their own.
class ReaderBuilder {
  public:
    ReaderBuilder(SharedCheckpoint files, const Quantization& quantization, ModelSource& source)
        : files_(std::move(files)),
          quantization_(quantization),
          source_(source) {
        // Checkpoints of a model without its head, such as embedding models, lack the prefix.
        if (is_there("embed_tokens.weight") && !is_there("model.embed_tokens.weight"))
            prefix_ = "model.";
    }

    Status build() {
        for (const auto& [name, tensor] : files_->tensors())
            if (is_whole(name, tensor)) MOEX_TRY(add(name, tensor));
        return {};
    }

  private:
    bool is_there(const std::string& name) const { return files_->find(name) != nullptr; }
    static bool is_fp8(const Checkpoint::Tensor& tensor) {
        return tensor.entry.dtype_word == "F8_E4M3";
    }
    bool is_fp8(const std::string& name) const {
        const Checkpoint::Tensor* const tensor = files_->find(name);
        return tensor != nullptr && is_fp8(*tensor);
    }

    // Returns false for a tensor that is read as part of another tensor.
    bool is_whole(const std::string& name, const Checkpoint::Tensor&) {
        switch (quantization_.method) {
            case QuantMethod::none: return true;
            case QuantMethod::gptq:
            case QuantMethod::awq:
                for (const char* part : {"qzeros", "scales", "g_idx"})
                    if (const auto module = without(name, part);
                        module && is_there(*module + "qweight"))
                        return false;
                return true;
            case QuantMethod::mxfp4:
                if (const auto weight = without(name, "_scales"))
                    return !is_there(*weight + "_blocks");
                return true;
            case QuantMethod::fp8: return is_whole_of_fp8(name);
        }
        return true;
    }
    bool is_whole_of_fp8(const std::string& name) {
        for (const char* part : {"_scale_inv", "_scale"})
            if (const auto weight = without(name, part); weight && is_fp8(*weight)) return false;
        // Scales of activations, which a weight-only computation does not need.
        for (const char* part : {"input_scale", "activation_scale"})
            if (const auto module = without(name, part); module && is_fp8(*module + "weight")) {
                source_.ignored.insert(name);
                return false;
            }
        return true;
    }

    Status add(const std::string& name, const Checkpoint::Tensor& tensor) {
        using enum QuantMethod;
        const bool is_int4 = quantization_.method == gptq || quantization_.method == awq;
        if (const auto module = without(name, "qweight"); module && is_int4)
            return keep(make_packed_int4_reader(files_, *module, quantization_));

        if (const auto weight = without(name, "_blocks"); weight && quantization_.method == mxfp4) {
            const Checkpoint::Tensor* const scales = files_->find(*weight + "_scales");
            if (scales == nullptr) return missing(*weight + "_scales", name);
            return keep(make_mxfp4_reader(files_, *weight, tensor, *scales));
        }

        if (quantization_.method == fp8 && is_fp8(tensor)) {
            const Checkpoint::Tensor* scales = files_->find(name + "_scale_inv");
            if (scales == nullptr) scales = files_->find(name + "_scale");
            if (scales == nullptr) return missing(name + "_scale_inv", name);
            return keep(make_fp8_reader(files_, tensor, *scales, quantization_));
        }
        return keep(make_plain_reader(files_, tensor));
    }

    Status keep(Result<Reader> reader) {
        MOEX_ASSIGN(made, std::move(reader));
        const std::string name = prefix_ + made->info().name;
        if (!source_.readers.emplace(name, std::move(made)).second)
            return Error{ErrorCode::bad_file,
                         text(source_.path.string(), ": tensor ", name.substr(0, 200),
                              " is stored both plain and quantised")};
        return {};
    }
    Error missing(const std::string& name, const std::string& beside) const {
        return {ErrorCode::bad_file, text(source_.path.string(), ": tensor ", name.substr(0, 200),
                                          " is missing, but ", beside.substr(0, 200), " is there")};
    }

    SharedCheckpoint files_;
    const Quantization& quantization_;
    ModelSource& source_;
    std::string prefix_;  // put before every tensor's name
};

// Reads the texts of the folder that a package may have, and chat_template.jinja.
Status read_texts(ModelSource& source) {
    const auto read_if_there = [&](std::string_view name) -> Status {
        auto content = read_text_file(source.path / name, text_file_bytes_max(name));
        if (content.ok())
            source.texts[std::string(name)] = std::move(*content);
        else if (content.error().code != ErrorCode::not_found)
            return content.error();
        return {};
    };
    for (const std::string_view name : package_text_files) MOEX_TRY(read_if_there(name));
    MOEX_TRY(read_if_there("chat_template.jinja"));
    MOEX_TRY(read_if_there("additional_chat_templates/tool_use.jinja"));
    return read_embedding_modules(source);
}

// Reads the form of the weights from config.json, or from the quantize_config.json of older files.
Result<Quantization> quantization_of(const Json& config, const ModelSource& source) {
    std::string what = source.config_what;
    auto found = parse_quantization(config);
    const fs::path older = source.path / "quantize_config.json";
    std::error_code ignored;
    if (found.ok() && found->method == QuantMethod::none && fs::exists(older, ignored)) {
        what = older.string();
        MOEX_ASSIGN(content, read_text_file(older, text_file_bytes_max("config.json")));
        MOEX_ASSIGN(object, parse_strict_json(content, what, {.depth_max = 8}));
        found = parse_quantize_config(object);
    }
    if (!found.ok()) return Error{found.error().code, text(what, ": ", found.error().message)};
    return found;
}

}  // namespace

Result<ModelSource> open_safetensors_source(const fs::path& directory) {
    const fs::path config_path = directory / "config.json";
    ModelSource source;
    source.path = directory;
    source.config_what = config_path.string();
    MOEX_ASSIGN(config_text, read_text_file(config_path, text_file_bytes_max("config.json")));
    MOEX_ASSIGN(config, parse_strict_json(config_text, source.config_what));
    source.config_json = std::move(config_text);
    MOEX_ASSIGN(quantization, quantization_of(config, source));

    MOEX_ASSIGN(opened, Checkpoint::open(directory));
    const auto files = std::make_shared<const Checkpoint>(std::move(opened));
    source.files = files;
    source.fingerprint = files->fingerprint();
    source.tensor_bytes = files->tensor_bytes();
    MOEX_TRY(ReaderBuilder(files, quantization, source).build());
    MOEX_TRY(read_texts(source));
    return source;
}

}  // namespace moex
