#include "hub/fetch/repository.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "hub/model/strict_json.h"
#include "protocol/text.h"

namespace moex {
namespace {

using nlohmann::json;

constexpr std::uint64_t page_bytes_max = 16u << 20;
constexpr std::size_t pages_max = 200;
constexpr std::size_t files_max = 100'000;
constexpr std::uint64_t file_bytes_max = 1ull << 42;

bool is_hex(std::string_view value, std::size_t size) {
    return value.size() == size && std::all_of(value.begin(), value.end(), [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

// Files of a checkpoint, other than the weights, that `pack` or a tokenizer may read.
bool is_side_file(std::string_view path) {
    constexpr std::string_view names[] = {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
        "quantize_config.json",
        "quant_config.json",
        "modules.json",
        "1_Pooling/config.json",
    };
    return std::find(std::begin(names), std::end(names), path) != std::end(names) ||
           (path.ends_with(".tiktoken") && path.find('/') == std::string_view::npos) ||
           path == "tiktoken.model";
}

const RepositoryFile* find_file(const std::vector<RepositoryFile>& files, std::string_view path) {
    const auto found = std::lower_bound(
        files.begin(), files.end(), path,
        [](const RepositoryFile& file, std::string_view wanted) { return file.path < wanted; });
    return found != files.end() && found->path == path ? &*found : nullptr;
}

Result<RepositoryFile> parse_entry(const json& entry, const std::string& what) {
    RepositoryFile file{.path = entry.at("path").get<std::string>()};
    const json* const size = entry.contains("size") ? &entry["size"] : nullptr;
    if (size == nullptr || !size->is_number_unsigned() ||
        size->get<std::uint64_t>() > file_bytes_max)
        return Error{ErrorCode::bad_field,
                     text(what, ": ", json_excerpt(file.path), " has the size ",
                          size ? json_excerpt(*size) : "(none)", ", wanted 0 to ", file_bytes_max)};
    file.size_bytes = size->get<std::uint64_t>();

    if (const auto lfs = entry.find("lfs"); lfs != entry.end() && !lfs->is_null()) {
        if (!lfs->is_object() || !lfs->contains("oid") || !(*lfs)["oid"].is_string())
            return Error{ErrorCode::bad_field, text(what, ": ", json_excerpt(file.path),
                                                    " has no lfs.oid, wanted a SHA-256")};
        file.sha256 = (*lfs)["oid"].get<std::string>();
        if (file.sha256.starts_with("sha256:")) file.sha256.erase(0, 7);
        if (!is_hex(file.sha256, 64))
            return Error{ErrorCode::bad_field,
                         text(what, ": ", json_excerpt(file.path), " has lfs.oid ",
                              json_excerpt(file.sha256), ", wanted 64 hexadecimal digits")};
        if (lfs->contains("size") && (*lfs)["size"] != entry["size"])
            return Error{ErrorCode::bad_field,
                         text(what, ": ", json_excerpt(file.path), " has the size ",
                              json_excerpt(entry["size"]), " and lfs.size ",
                              json_excerpt((*lfs)["size"]), ", wanted equal sizes")};
        return file;
    }

    if (const auto oid = entry.find("oid"); oid != entry.end() && !oid->is_null()) {
        if (!oid->is_string() || !is_hex(oid->get<std::string>(), 40))
            return Error{ErrorCode::bad_field,
                         text(what, ": ", json_excerpt(file.path), " has oid ", json_excerpt(*oid),
                              ", wanted 40 hexadecimal digits")};
        file.git_sha1 = oid->get<std::string>();
    }
    return file;
}

// Returns the parts of a split GGUF file "x-00001-of-00003.gguf", or the name itself.
std::vector<std::string> parts_of(const std::string& path) {
    // "-00001-of-00003.gguf"
    constexpr std::size_t tail = 20;
    if (path.size() <= tail || !path.ends_with(".gguf")) return {path};
    const std::string_view mark = std::string_view(path).substr(path.size() - tail);
    const auto digits = [](std::string_view word) {
        return std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    if (mark[0] != '-' || mark.substr(6, 4) != "-of-" || !digits(mark.substr(1, 5)) ||
        !digits(mark.substr(10, 5)))
        return {path};

    const int count = std::stoi(std::string(mark.substr(10, 5)));
    if (count < 1 || count > 1000) return {path};
    std::vector<std::string> parts;
    for (int part = 1; part <= count; ++part) {
        char number[16];
        std::snprintf(number, sizeof number, "%05d", part);
        parts.push_back(text(path.substr(0, path.size() - tail), "-", number, "-of-",
                             mark.substr(10, 5), ".gguf"));
    }
    return parts;
}

// Returns a sentence that names files a person may mean: the GGUF files, or the pickles that are
// never read.
std::string what_is_there(const std::vector<RepositoryFile>& files) {
    std::string names;
    int count = 0;
    bool has_pickles = false;
    for (const RepositoryFile& file : files) {
        has_pickles |= file.path.ends_with(".bin") || file.path.ends_with(".pt") ||
                       file.path.ends_with(".pth");
        if (!file.path.ends_with(".gguf") || ++count > 8) continue;
        names += text(names.empty() ? "" : ", ", file.path);
    }
    if (count > 0)
        return text("it has ", count, " GGUF files, choose one with --file: ", names,
                    count > 8 ? ", ..." : "");
    if (has_pickles)
        return "its weights are pickles (.bin), which may contain programs and are never read";
    return "";
}

Result<std::vector<RepositoryFile>> choose_one(const std::vector<RepositoryFile>& files,
                                               const std::string& wanted,
                                               const std::string& repository) {
    if (!wanted.ends_with(".gguf") && !wanted.ends_with(".safetensors"))
        return Error{ErrorCode::unsupported,
                     text("--file ", json_excerpt(wanted),
                          ": wanted a .gguf or .safetensors file; other kinds of weights may "
                          "contain programs and are never read")};
    if (wanted.starts_with('.') || wanted.find("/.") != std::string::npos)
        return Error{ErrorCode::invalid_argument,
                     text("--file ", json_excerpt(wanted), ": a hidden file is refused")};
    std::vector<RepositoryFile> chosen;
    for (const std::string& part : parts_of(wanted)) {
        const RepositoryFile* const file = find_file(files, part);
        if (file == nullptr)
            return Error{ErrorCode::not_found, text(repository, " has no file ", json_excerpt(part),
                                                    "; ", what_is_there(files))};
        chosen.push_back(*file);
    }
    return chosen;
}

// Returns the names of the shards in an index file, without repetition.
Result<std::set<std::string>> shards_of(std::string_view index, const std::string& repository) {
    const std::string what = text(repository, ": ", shard_index_name);
    MOEX_ASSIGN(object, parse_strict_json(index, what, {.depth_max = 8}));
    if (!object.is_object() || !object.contains("weight_map") ||
        !object["weight_map"].is_object() || object["weight_map"].empty())
        return Error{ErrorCode::bad_file, text(what, ": weight_map names no tensor")};

    std::set<std::string> shards;
    for (const auto& [tensor, file] : object["weight_map"].items()) {
        if (!file.is_string() || !file.get<std::string>().ends_with(".safetensors"))
            return Error{ErrorCode::bad_file, text(what, ": a tensor is in ", json_excerpt(file),
                                                   ", wanted a .safetensors file")};
        shards.insert(file.get<std::string>());
    }
    return shards;
}

}  // namespace

Result<RepositoryName> parse_repository_name(std::string_view word) {
    RepositoryName out;
    const std::size_t at = word.find('@');
    out.name = std::string(word.substr(0, at));
    if (at != std::string_view::npos) out.revision = std::string(word.substr(at + 1));

    const auto is_plain = [](std::string_view part, bool with_slash) {
        return !part.empty() && part.size() <= 200 && part[0] != '.' && part[0] != '-' &&
               part.find("..") == std::string_view::npos &&
               std::all_of(part.begin(), part.end(), [&](unsigned char c) {
                   return std::isalnum(c) || c == '-' || c == '_' || c == '.' ||
                          (with_slash && c == '/');
               });
    };
    const std::size_t slash = out.name.find('/');
    const bool name_ok = slash == std::string::npos
                             ? is_plain(out.name, false)
                             : is_plain(out.name.substr(0, slash), false) &&
                                   is_plain(out.name.substr(slash + 1), false);
    if (!name_ok || !is_plain(out.revision, true) || out.revision.ends_with('/'))
        return Error{ErrorCode::invalid_argument,
                     text("repository ", json_excerpt(std::string(word)),
                          ": wanted OWNER/NAME or OWNER/NAME@REVISION")};
    return out;
}

Status check_repository_path(std::string_view path) {
    const auto refused = [&](std::string_view why) {
        return Error{ErrorCode::bad_field,
                     text("the file name ", json_excerpt(std::string(path)), " is refused: ", why)};
    };
    if (path.empty() || path.size() > 1024) return refused("wanted 1 to 1024 bytes");
    if (path.front() == '/') return refused("it is absolute");
    for (const char c : path)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\')
            return refused("it has a control character or a backslash");

    while (true) {
        const std::size_t slash = path.find('/');
        const std::string_view part = path.substr(0, slash);
        if (part.empty() || part == "." || part == "..")
            return refused("a part of it is empty, \".\" or \"..\"");
        if (part.size() > 200) return refused("a part of it is longer than 200 bytes");
        if (slash == std::string_view::npos) return {};
        path.remove_prefix(slash + 1);
    }
}

Status parse_tree_page(std::string_view json_text, const std::string& what,
                       std::vector<RepositoryFile>& files) {
    MOEX_ASSIGN(page, parse_strict_json(json_text, what, {.depth_max = 8}));
    if (!page.is_array())
        return Error{ErrorCode::bad_field,
                     text(what, ": ", json_excerpt(page), ", wanted an array of files")};

    for (const json& entry : page) {
        const bool has_words = entry.is_object() && entry.contains("type") &&
                               entry["type"].is_string() && entry.contains("path") &&
                               entry["path"].is_string();
        if (!has_words)
            return Error{ErrorCode::bad_field,
                         text(what, ": ", json_excerpt(entry), ", wanted {type, path, size, ...}")};

        const std::string path = entry["path"].get<std::string>();
        if (const Status named = check_repository_path(path); !named.ok())
            return Error{named.error().code, text(what, ": ", named.error().message)};
        if (entry["type"] == "directory") continue;
        if (entry["type"] != "file")
            return Error{ErrorCode::unsupported,
                         text(what, ": ", json_excerpt(path), " is a ", json_excerpt(entry["type"]),
                              ", wanted files and folders alone")};
        if (files.size() >= files_max)
            return Error{ErrorCode::bad_file, text(what, ": more than ", files_max, " files")};
        MOEX_ASSIGN(file, parse_entry(entry, what));
        files.push_back(std::move(file));
    }
    return {};
}

std::string next_page_of(std::string_view link_header) {
    // <https://host/api/...&cursor=x>; rel="next", <...>; rel="last"
    while (!link_header.empty()) {
        const std::size_t open = link_header.find('<');
        const std::size_t close = link_header.find('>', std::min(open, link_header.size()));
        if (open == std::string_view::npos || close == std::string_view::npos) return "";
        const std::string_view url = link_header.substr(open + 1, close - open - 1);
        const std::size_t end = std::min(link_header.find(",", close), link_header.size());
        const std::string_view parameters = link_header.substr(close + 1, end - close - 1);
        if (parameters.find("rel=\"next\"") != std::string_view::npos ||
            parameters.find("rel=next") != std::string_view::npos)
            return std::string(url);
        link_header.remove_prefix(std::min(end + 1, link_header.size()));
    }
    return "";
}

Result<std::vector<RepositoryFile>> list_repository(Endpoint& endpoint, const std::string& name,
                                                    const std::string& revision) {
    const std::string what = text(name, "@", revision);
    std::string next = text("/api/models/", percent_encoded(name, true), "/tree/",
                            percent_encoded(revision, false), "?recursive=true");
    std::vector<RepositoryFile> files;
    for (std::size_t page = 0; !next.empty(); ++page) {
        if (page == pages_max)
            return Error{ErrorCode::bad_file,
                         text(what, ": the list of files has more than ", pages_max, " pages")};
        Endpoint::Answer answer;
        auto body = endpoint.get_text(next, page_bytes_max, &answer);
        if (!body.ok()) return Error{body.error().code, text(what, ": ", body.error().message)};
        MOEX_TRY(parse_tree_page(*body, what, files));

        next = next_page_of(answer.head.header("link"));
        if (next.empty()) break;
        MOEX_ASSIGN(address, endpoint.resolve(next));
        if (address.origin != endpoint.address().origin)
            return Error{ErrorCode::bad_field, text(what, ": the next page of the list is on ",
                                                    address.origin, ", another host")};
    }

    std::sort(files.begin(), files.end(),
              [](const RepositoryFile& a, const RepositoryFile& b) { return a.path < b.path; });
    const auto twice = std::adjacent_find(
        files.begin(), files.end(),
        [](const RepositoryFile& a, const RepositoryFile& b) { return a.path == b.path; });
    if (twice != files.end())
        return Error{ErrorCode::bad_file,
                     text(what, ": ", json_excerpt(twice->path), " is listed twice")};
    return files;
}

std::string resolve_path(const std::string& name, const std::string& revision,
                         const std::string& path) {
    return text("/", percent_encoded(name, true), "/resolve/", percent_encoded(revision, false),
                "/", percent_encoded(path, true));
}

Result<std::vector<RepositoryFile>> choose_files(const std::vector<RepositoryFile>& files,
                                                 std::string_view index,
                                                 const std::string& wanted_file,
                                                 const std::string& repository) {
    if (!wanted_file.empty()) return choose_one(files, wanted_file, repository);

    std::vector<RepositoryFile> chosen;
    for (const RepositoryFile& file : files)
        if (is_side_file(file.path)) chosen.push_back(file);

    std::set<std::string> shards;
    if (!index.empty()) {
        MOEX_ASSIGN(named, shards_of(index, repository));
        shards = std::move(named);
        const RepositoryFile* const file = find_file(files, shard_index_name);
        if (file == nullptr)
            return Error{ErrorCode::bad_file,
                         text(repository, ": ", shard_index_name, " is not listed")};
        chosen.push_back(*file);
    } else if (find_file(files, "model.safetensors") != nullptr) {
        shards.insert("model.safetensors");
    } else {
        const std::string there = what_is_there(files);
        return Error{ErrorCode::not_found,
                     text(repository, " has neither ", shard_index_name, " nor model.safetensors",
                          there.empty() ? "" : "; ", there)};
    }

    for (const std::string& shard : shards) {
        const RepositoryFile* const file = find_file(files, shard);
        if (file == nullptr)
            return Error{ErrorCode::bad_file, text(repository, ": ", shard_index_name, " names ",
                                                   json_excerpt(shard), ", which is not listed")};
        chosen.push_back(*file);
    }
    if (find_file(files, "config.json") == nullptr)
        return Error{ErrorCode::not_found, text(repository, " has no config.json")};
    return chosen;
}

}  // namespace moex
