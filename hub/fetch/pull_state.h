// The two files that a pull writes into the checkpoint's folder: the record of finished files, and
// the state of the parts. Both are replaced as a whole, so that an interruption leaves the old one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hub/fetch/part_file.h"

namespace moex {

inline constexpr std::string_view pull_record_name = "moex-pull.json";
inline constexpr std::string_view pull_state_folder = ".pull";

struct PullRecord {
    std::string endpoint, repository, revision, commit;
    bool is_complete = false;
    std::vector<FinishedFile> files;

    const FinishedFile* find(std::string_view path) const;
};

// Reads the record of a folder. A folder without a record, or with a damaged one, has an empty
// record: its files are then checked by their hashes.
PullRecord read_pull_record(const std::filesystem::path& folder);
Status write_pull_record(const std::filesystem::path& folder, const PullRecord& record);

// Returns the saved part of each path as JSON; an empty object if nothing usable is saved.
nlohmann::json read_parts(const std::filesystem::path& folder);
Status write_parts(const std::filesystem::path& folder, const std::vector<const PartFile*>& parts);

// Returns true if the file of the record is unchanged by size and time of modification.
bool is_unchanged(const std::filesystem::path& folder, const FinishedFile& file);

// Writes `content` to `path` under another name first, and renames it. Leaves no other file.
Status replace_file(const std::filesystem::path& path, std::string_view content);

// Holds FOLDER/.pull/lock, so that two pulls never write into one folder. The folder .pull is
// created; remove() deletes it with everything inside.
class PullLock {
  public:
    static Result<PullLock> take(const std::filesystem::path& folder);
    PullLock(PullLock&& other) noexcept
        : fd_(std::exchange(other.fd_, -1)),
          state_(std::move(other.state_)) {}
    ~PullLock();
    Status remove();

  private:
    PullLock(int fd, std::filesystem::path state) : fd_(fd), state_(std::move(state)) {}
    int fd_;
    std::filesystem::path state_;
};

}  // namespace moex
