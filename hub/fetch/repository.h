// Repository: the files of a model repository on an endpoint of Hugging Face's shape. The names of
// the files come from another machine, and every name is checked before it becomes a path.
//   GET /api/models/REPO/tree/REV?recursive=true   the files, in pages joined by the header `Link`
//   GET /REPO/resolve/REV/PATH                     one file; usually a redirect to another host
// Source: the Hugging Face Hub's documentation of its HTTP API; git's format of blob objects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/fetch/endpoint.h"
#include "protocol/sha256.h"

namespace moex {

// A repository's name and revision, "OWNER/NAME@REV" on the command line.
struct RepositoryName {
    std::string name;               // "OWNER/NAME", or "NAME" for old repositories without an owner
    std::string revision = "main";  // name of a branch or a tag, or a commit hash
};
Result<RepositoryName> parse_repository_name(std::string_view word);

struct RepositoryFile {
    std::string path;  // path below the repository, checked by check_repository_path()
    std::uint64_t size_bytes = 0;
    // The SHA-256 of a file in large file storage (LFS), 64 hexadecimal digits; else empty.
    std::string sha256;
    // The git object id (SHA-1) of any other file, as 40 hexadecimal digits; empty: not listed.
    std::string git_sha1;
};

// Checks that `path` names a file below the folder of the repository: relative, without "..",
// ".", empty parts, control characters or backslashes, and of bounded length.
Status check_repository_path(std::string_view path);

// Parses one page of the tree route and appends its files to `files`. Links and unknown kinds of
// entries are refused.
Status parse_tree_page(std::string_view json_text, const std::string& what,
                       std::vector<RepositoryFile>& files);
// Returns the address of the next page in a `Link` header, or an empty text.
std::string next_page_of(std::string_view link_header);

// Asks for all files of `revision`, page by page, sorted by path.
Result<std::vector<RepositoryFile>> list_repository(Endpoint& endpoint, const std::string& name,
                                                    const std::string& revision);

// Returns the path of the resolve route, which Endpoint::get() takes.
std::string resolve_path(const std::string& name, const std::string& revision,
                         const std::string& path);

// Chooses among `files`, which are sorted by path, those of a checkpoint: configuration, tokenizer,
// chat template, and the safetensors shards. `index` is the content of
// model.safetensors.index.json, and empty if the repository has no such file. `wanted_file` is the
// value of --file and chooses one GGUF or safetensors file, with all parts if it is split; empty: a
// whole checkpoint. Files of pickles (.bin, .pt) are never chosen.
Result<std::vector<RepositoryFile>> choose_files(const std::vector<RepositoryFile>& files,
                                                 std::string_view index,
                                                 const std::string& wanted_file,
                                                 const std::string& repository);

inline constexpr std::string_view shard_index_name = "model.safetensors.index.json";
inline constexpr std::uint64_t shard_index_bytes_max = 64u << 20;

}  // namespace moex
