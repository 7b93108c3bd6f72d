// ModelSource: a model as `pack` reads it: the configuration, the tokenizer's files and one reader
// per tensor, under the names that transformers gives them. A folder with config.json and
// safetensors shards is one form of a model, a GGUF file another.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/pack/readers/tensor_reader.h"
#include "hub/model/package/embedding_form.h"

namespace moex {

struct ModelSource {
    std::filesystem::path path;  // folder of the checkpoint, or GGUF file
    std::string config_json;     // text of config.json; a GGUF file's metadata in the same form
    std::string config_what;     // name of config_json in error messages: "DIR/config.json"
    std::map<std::string, std::unique_ptr<TensorReader>, std::less<>> readers;
    // Tensors that belong to the format and are read by no reader of their own: input_scale of FP8.
    std::set<std::string, std::less<>> ignored;
    // texts of the files that a package may have, and of chat_template.jinja
    std::map<std::string, std::string> texts;
    std::optional<EmbeddingForm> embedding;  // empty: the model does not state how it embeds
    std::vector<std::string> warnings;
    std::string format;  // formats of the weights: "BF16", "GPTQ, BF16"
    std::string
        fingerprint;  // differs once a file of the model has changed; made without reading weights
    std::uint64_t tensor_bytes = 0;
    std::shared_ptr<const void> files;  // keeps the files open that the readers use

    const TensorReader* find(std::string_view name) const;
    // Returns the tensor if it has the shape `shape`, and numbers that this program can read. An
    // error names the sizes in config.json by `shape_words`.
    Result<const TensorReader*> require(std::string_view name, std::span<const std::uint64_t> shape,
                                        std::string_view shape_words) const;
};

}  // namespace moex
