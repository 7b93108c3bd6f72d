#include "hub/model/pack/readers/open_model.h"

#include <algorithm>

#include "hub/model/pack/readers/gguf_source.h"
#include "hub/model/pack/readers/safetensors_source.h"
#include "protocol/text.h"

namespace moex {

namespace {

namespace fs = std::filesystem;

// Returns the names of files in `directory` that end with `ending`, sorted.
std::vector<std::string> files_with(const fs::path& directory, std::string_view ending) {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory, ignored))
        if (const std::string name = entry.path().filename().string(); name.ends_with(ending))
            names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
}

// Refuses a folder whose weights are pickles, which run code when they are read.
Status refuse_pickles(const fs::path& directory) {
    for (const std::string_view ending : {".bin", ".pt", ".pth", ".ckpt"})
        if (const auto names = files_with(directory, ending); !names.empty())
            return Error{ErrorCode::unsupported,
                         text(directory.string(), ": the weights are pickles (", names.front(),
                              "), which run code when they are read; convert the model to "
                              "safetensors, or take its safetensors branch")};
    return {};
}

}  // namespace

Result<ModelSource> open_model_source(const fs::path& path) {
    std::error_code ignored;
    if (!fs::exists(path, ignored))
        return Error{ErrorCode::not_found, text(path.string(), ": no such file or folder")};
    if (!fs::is_directory(path, ignored)) {
        if (path.extension() == ".gguf") return open_gguf_source(path);
        return Error{ErrorCode::invalid_argument,
                     text(path.string(),
                          ": wanted a folder with config.json and *.safetensors, or "
                          "a .gguf file")};
    }

    if (files_with(path, ".safetensors").empty()) {
        const auto models = gguf_models_in(path);
        if (models.size() == 1) return open_gguf_source(models.front());
        if (models.size() > 1)
            return Error{ErrorCode::invalid_argument,
                         text(path.string(), ": has ", models.size(), " GGUF models; name one: ",
                              models[0].string(), " or ", models[1].string())};
        MOEX_TRY(refuse_pickles(path));
    }
    return open_safetensors_source(path);
}

}  // namespace moex
