#include "hub/commands/pull/models_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "hub/fetch/pull_state.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// Bytes that the files below `path` occupy on the disk.
std::uint64_t disk_bytes(const fs::path& path) {
    std::uint64_t total = 0;
    std::error_code failure;
    for (fs::recursive_directory_iterator at(path, failure), end; !failure && at != end;
         at.increment(failure)) {
        struct stat info {};
        if (::lstat(at->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
            total += static_cast<std::uint64_t>(info.st_blocks) * 512;
    }
    return total;
}

bool has_gguf(const fs::path& path) {
    std::error_code failure;
    for (const auto& entry : fs::directory_iterator(path, failure))
        if (entry.path().extension() == ".gguf") return true;
    return false;
}

std::optional<StoredKind> kind_of(const fs::path& path, const PullRecord& record) {
    std::error_code ignored;
    if (fs::exists(path / "manifest.json", ignored)) return StoredKind::package;
    if (fs::exists(path / ".pack-state", ignored)) return StoredKind::unfinished_package;
    if (fs::exists(path / pull_state_folder, ignored)) return StoredKind::unfinished_checkpoint;
    if (!record.repository.empty())
        return record.is_complete ? StoredKind::checkpoint : StoredKind::unfinished_checkpoint;
    if (fs::exists(path / "config.json", ignored) || has_gguf(path)) return StoredKind::checkpoint;
    return std::nullopt;
}

// A repository's name has at most two parts.
void find_models(const fs::path& folder, const std::string& prefix, std::vector<StoredModel>& out) {
    std::error_code failure;
    for (const auto& entry : fs::directory_iterator(folder, failure)) {
        if (entry.is_symlink(failure) || !entry.is_directory(failure)) continue;
        const std::string name = prefix + entry.path().filename().string();
        const PullRecord record = read_pull_record(entry.path());
        if (const auto kind = kind_of(entry.path(), record))
            out.push_back({name, *kind, entry.path(), disk_bytes(entry.path()), record.commit});
        else if (prefix.empty())
            find_models(entry.path(), name + "/", out);
    }
}

}  // namespace

fs::path models_folder(const Settings& settings) {
    if (const std::string& given = settings.text("models-dir"); !given.empty()) return given;
    const char* const data = std::getenv("XDG_DATA_HOME");
    if (data != nullptr && data[0] == '/') return fs::path(data) / "moex" / "models";
    const char* const home = std::getenv("HOME");
    return fs::path(home != nullptr && home[0] != '\0' ? home : "/") / ".local/share/moex/models";
}

const char* stored_kind_name(StoredKind kind) {
    switch (kind) {
        case StoredKind::checkpoint: return "checkpoint";
        case StoredKind::unfinished_checkpoint: return "unfinished checkpoint";
        case StoredKind::package: return "package";
        case StoredKind::unfinished_package: return "unfinished package";
    }
    return "?";
}

std::vector<StoredModel> find_models(const fs::path& folder) {
    std::vector<StoredModel> models;
    find_models(folder, "", models);
    std::sort(models.begin(), models.end(),
              [](const StoredModel& a, const StoredModel& b) { return a.name < b.name; });
    return models;
}

}  // namespace moex
