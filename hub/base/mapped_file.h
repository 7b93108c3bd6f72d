// A read-only memory map of a whole file, and what happens when the file changes under it.
//
// A map follows its file: what is overwritten in place changes under the reader, and a page beyond
// the end of a shortened file raises SIGBUS. So the owner asks check_unchanged() before use, and
// guard_mapped_files() turns the fault that comes in between into one sentence and exit 1.
// A file that was removed, or replaced by rename(), does no harm: the map keeps the old one.
#pragma once

#include <cstdint>
#include <filesystem>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// What says that a file is still the one it was.
struct FileStamp {
    std::uint64_t device = 0, inode = 0, size_bytes = 0;
    std::int64_t modified_ns = 0;
    bool operator==(const FileStamp&) const = default;
};
// Of a regular file, by its path; not_found when absent.
Result<FileStamp> stamp_of(const std::filesystem::path& path);

class MappedFile {
  public:
    static Result<MappedFile> open(const std::filesystem::path& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    ByteView bytes() const { return {data_, static_cast<std::size_t>(stamp_.size_bytes)}; }
    const FileStamp& stamp() const { return stamp_; }
    // Whether the file kept its size and the time of its last change. The error names the file,
    // what was found and what to do. One stat(): about a microsecond.
    Status check_unchanged() const;
    // Its pages leave this process's memory; who reads on gets them from the file again.
    void release_pages() const;

  private:
    struct Entry;  // what the fault handler reads
    friend struct MappedFiles;
    MappedFile() = default;

    const std::byte* data_ = nullptr;
    FileStamp stamp_;
    Entry* entry_ = nullptr;
};

// A file at `path` had `before` and has `now`: the sentence that check_unchanged() gives.
Error changed_file_error(const std::filesystem::path& path, const FileStamp& before,
                         const FileStamp& now);

// From here on a fault inside any mapped file ends the process with one line on stderr and exit 1;
// other bus errors end it as before. Called once, by main.
void guard_mapped_files();

}  // namespace moex
