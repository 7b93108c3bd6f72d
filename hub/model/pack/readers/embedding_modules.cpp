#include "hub/model/pack/readers/embedding_modules.h"

#include "hub/base/files.h"
#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint64_t module_bytes_max = 1u << 20;

bool is_plain_folder(const std::string& name) {
    return !name.empty() && name.size() <= 255 && name[0] != '.' &&
           name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// Reads 1_Pooling/config.json, in which exactly one of the modes is true.
Result<Pooling> read_pooling(const std::filesystem::path& path) {
    MOEX_ASSIGN(content, read_text_file(path, module_bytes_max));
    MOEX_ASSIGN(object, parse_strict_json(content, path.string(), {.depth_max = 8}));
    std::string modes;
    std::optional<Pooling> pooling;
    std::size_t num_modes = 0;
    if (object.is_object())
        for (const auto& [name, value] : object.items()) {
            if (!name.starts_with("pooling_mode_") || value != true) continue;
            modes += text(num_modes++ == 0 ? "" : ", ", name.substr(0, 60));
            if (name == "pooling_mode_mean_tokens") pooling = Pooling::mean;
            if (name == "pooling_mode_lasttoken") pooling = Pooling::last;
            if (name == "pooling_mode_cls_token") pooling = Pooling::first;
        }
    if (pooling && num_modes == 1) return *pooling;
    return Error{ErrorCode::unsupported,
                 text(path.string(), ": the pooling is ", modes.empty() ? "none" : modes,
                      ", wanted one of pooling_mode_mean_tokens, pooling_mode_lasttoken and "
                      "pooling_mode_cls_token")};
}

}  // namespace

Status read_embedding_modules(ModelSource& source) {
    const std::filesystem::path path = source.path / "modules.json";
    auto content = read_text_file(path, module_bytes_max);
    if (!content.ok() && content.error().code == ErrorCode::not_found) return {};
    if (!content.ok()) return content.error();
    MOEX_ASSIGN(modules, parse_strict_json(*content, path.string(), {.depth_max = 8}));
    if (!modules.is_array())
        return Error{ErrorCode::bad_file, text(path.string(), ": ", json_excerpt(modules),
                                               ", wanted a list of modules")};

    EmbeddingForm form{.normalize = false};
    for (const Json& module : modules) {
        const Json &type = member(module, "type"), &folder = member(module, "path");
        const std::string kind = type.is_string() ? type.get<std::string>() : "";
        if (kind.ends_with(".Pooling")) {
            const std::string name = folder.is_string() ? folder.get<std::string>() : "";
            if (!is_plain_folder(name))
                return Error{ErrorCode::bad_file,
                             text(path.string(), ": path is ", json_excerpt(folder),
                                  ", wanted a folder beside the file")};
            MOEX_ASSIGN(pooling, read_pooling(source.path / name / "config.json"));
            form.pooling = pooling;
        } else if (kind.ends_with(".Normalize")) {
            form.normalize = true;
        } else if (!kind.ends_with(".Transformer")) {
            source.warnings.push_back(text("modules.json has the module ", json_excerpt(type),
                                           ", which embeddings of the package leave out"));
        }
    }
    source.embedding = form;
    return {};
}

}  // namespace moex
