#include "hub/fetch/pull_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hub/base/files.h"
#include "hub/model/strict_json.h"
#include "protocol/text.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t state_bytes_max = 64u << 20;

Error system_error(const fs::path& path) {
    const ErrorCode code = errno == ENOSPC || errno == EDQUOT ? ErrorCode::no_space
                                                              : ErrorCode::io_error;
    return {code, text(path.string(), ": ", std::strerror(errno))};
}

json read_object(const fs::path& path) {
    const auto content = read_text_file(path, state_bytes_max);
    if (!content.ok()) return json::object();
    auto object = parse_strict_json(*content, path.string());
    return object.ok() && object->is_object() ? *std::move(object) : json::object();
}

std::string text_of(const json& object, const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

const FinishedFile* PullRecord::find(std::string_view path) const {
    for (const FinishedFile& file : files)
        if (file.path == path) return &file;
    return nullptr;
}

PullRecord read_pull_record(const fs::path& folder) {
    const json object = read_object(folder / pull_record_name);
    PullRecord record{.endpoint = text_of(object, "endpoint"),
                      .repository = text_of(object, "repository"),
                      .revision = text_of(object, "revision"),
                      .commit = text_of(object, "commit")};
    record.is_complete = object.contains("complete") && object["complete"] == true;
    if (!object.contains("files") || !object["files"].is_array()) return record;

    for (const json& file : object["files"]) {
        const bool is_good = file.is_object() && file.contains("size") &&
                             file["size"].is_number_unsigned() && file.contains("modified_ns") &&
                             file["modified_ns"].is_number_integer() &&
                             check_repository_path(text_of(file, "path")).ok();
        if (!is_good) return {};
        record.files.push_back({.path = text_of(file, "path"),
                                .size_bytes = file["size"].get<std::uint64_t>(),
                                .sha256 = text_of(file, "sha256"),
                                .modified_ns = file["modified_ns"].get<std::int64_t>()});
    }
    return record;
}

Status write_pull_record(const fs::path& folder, const PullRecord& record) {
    auto files = nlohmann::ordered_json::array();
    for (const FinishedFile& file : record.files)
        files.push_back({{"path", file.path},
                         {"size", file.size_bytes},
                         {"sha256", file.sha256},
                         {"modified_ns", file.modified_ns}});
    const nlohmann::ordered_json object{
        {"endpoint", record.endpoint},    {"repository", record.repository},
        {"revision", record.revision},    {"commit", record.commit},
        {"complete", record.is_complete}, {"files", files}};
    return replace_file(folder / pull_record_name, object.dump(2) + "\n");
}

json read_parts(const fs::path& folder) {
    const json saved = read_object(folder / pull_state_folder / "state.json");
    json parts = json::object();
    if (!saved.contains("parts") || !saved["parts"].is_array()) return parts;
    for (const json& part : saved["parts"])
        if (part.is_object()) parts[text_of(part, "path")] = part;
    return parts;
}

Status write_parts(const fs::path& folder, const std::vector<const PartFile*>& parts) {
    json list = json::array();
    for (const PartFile* part : parts)
        if (part->done_bytes() > 0) list.push_back(part->to_json());
    return replace_file(folder / pull_state_folder / "state.json", json{{"parts", list}}.dump());
}

bool is_unchanged(const fs::path& folder, const FinishedFile& file) {
    struct stat info {};
    if (::lstat((folder / file.path).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
    return static_cast<std::uint64_t>(info.st_size) == file.size_bytes &&
           std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec ==
               file.modified_ns;
}

Status replace_file(const fs::path& path, std::string_view content) {
    const fs::path other = path.string() + ".new";
    const int fd = ::open(other.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                          0666);
    if (fd < 0) return system_error(other);

    Status status;
    while (!content.empty() && status.ok()) {
        const ssize_t count = ::write(fd, content.data(), content.size());
        if (count >= 0)
            content.remove_prefix(static_cast<std::size_t>(count));
        else if (errno != EINTR)
            status = system_error(other);
    }
    if (::close(fd) != 0 && status.ok()) status = system_error(other);
    if (status.ok() && ::rename(other.c_str(), path.c_str()) != 0) status = system_error(path);
    if (!status.ok()) ::unlink(other.c_str());
    return status;
}

Result<PullLock> PullLock::take(const fs::path& folder) {
    std::error_code failure;
    fs::create_directories(folder, failure);
    if (failure) return Error{ErrorCode::io_error, text(folder.string(), ": ", failure.message())};

    const fs::path state = folder / pull_state_folder;
    if (::mkdir(state.c_str(), 0777) != 0 && errno != EEXIST) return system_error(state);
    struct stat info {};
    if (::lstat(state.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
        return Error{ErrorCode::bad_file, text(state.string(), " is no folder; remove it")};

    const fs::path lock = state / "lock";
    const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return system_error(lock);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        ::close(fd);
        return Error{ErrorCode::unavailable,
                     text(folder.string(), ": another pull writes into this folder")};
    }
    return PullLock(fd, state);
}

PullLock::~PullLock() {
    if (fd_ >= 0) ::close(fd_);
}

Status PullLock::remove() {
    std::error_code failure;
    fs::remove_all(state_, failure);
    if (failure) return Error{ErrorCode::io_error, text(state_.string(), ": ", failure.message())};
    return {};
}

}  // namespace moex
