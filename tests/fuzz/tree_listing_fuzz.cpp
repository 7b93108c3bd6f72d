// Fuzzes what `pull` reads of an endpoint: a page of the tree route, the address of the next page,
// and the choice of a checkpoint's files. The first byte chooses. Accepted paths must stay below
// the folder of the repository.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "hub/fetch/repository.h"

namespace {

// Returns true if `path` stays below a folder that it is appended to.
bool stays_inside(const std::string& path) {
    const std::filesystem::path normal =
        ("folder" / std::filesystem::path(path)).lexically_normal();
    return !std::filesystem::path(path).is_absolute() && *normal.begin() == "folder" &&
           ++normal.begin() != normal.end() && path.find('\0') == std::string::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace moex;
    if (size == 0) return 0;
    const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
    if (data[0] % 4 == 0) {
        static_cast<void>(next_page_of(content));
        static_cast<void>(parse_repository_name(content));
        return 0;
    }

    // The listing, and behind a zero byte an index of shards.
    const std::size_t end = content.find('\0');
    const std::string_view index = end == std::string_view::npos ? "" : content.substr(end + 1);
    std::vector<RepositoryFile> files;
    if (!parse_tree_page(content.substr(0, end), "listing", files).ok()) return 0;
    for (const RepositoryFile& file : files) {
        if (!stays_inside(file.path)) std::abort();
        if (!file.sha256.empty() && file.sha256.size() != 64) std::abort();
        if (!file.git_sha1.empty() && file.git_sha1.size() != 40) std::abort();
    }
    // list_repository() sorts the pages.
    std::sort(files.begin(), files.end(),
              [](const RepositoryFile& a, const RepositoryFile& b) { return a.path < b.path; });
    const auto chosen = choose_files(files, index, data[0] % 4 == 1 ? "m.gguf" : "", "owner/name");
    if (!chosen.ok()) return 0;
    for (const RepositoryFile& file : *chosen)
        if (file.path.ends_with(".bin") || file.path.ends_with(".pt")) std::abort();
    return 0;
}
