// A read-only memory map of a whole file, and protection against changes of the file while it is
// mapped.
//
// A map follows its file: bytes that are overwritten in place change under the reader, and a page
// beyond the end of a shortened file raises SIGBUS. So the owner of a map calls check_unchanged()
// before it reads. If the file changes between that check and the read, guard_mapped_files() turns
// the fault into one sentence and exit 1. A file that is removed, or replaced by rename(), does no
// harm: the map keeps the old file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// Identity of a file: two equal stamps mean that the file was not changed.
struct FileStamp {
    std::uint64_t device = 0, inode = 0, size_bytes = 0;
    std::int64_t modified_ns = 0;
    bool operator==(const FileStamp&) const = default;
};
// Returns the stamp of the regular file at `path`; the error is not_found when there is no such
// file.
Result<FileStamp> stamp_of(const std::filesystem::path& path);

class MappedFile {
  public:
    static Result<MappedFile> open(const std::filesystem::path& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    ByteView bytes() const { return {data_, static_cast<std::size_t>(stamp_.size_bytes)}; }
    const FileStamp& stamp() const { return stamp_; }
    // Checks that the file kept its size and the time of its last change. The error names the file,
    // what was found and what to do. Costs one stat(): about a microsecond.
    Status check_unchanged() const;
    // Returns the present stamp of the file if it was written to in place since stamp(), otherwise
    // nullopt. A file that was removed or replaced by rename() counts as unchanged.
    std::optional<FileStamp> changed_to() const;
    // Takes `now`, a result of changed_to() with the size of the map, as the file's stamp: the
    // caller has checked that the bytes are still the right ones. The caller keeps other threads
    // from stamp(), check_unchanged() and changed_to() meanwhile.
    void accept(const FileStamp& now);
    // Releases the map's pages from this process's memory. A later read loads them from the file
    // again.
    void release_pages() const;

  private:
    struct Entry;  // this record of the map is read by the fault handler
    friend struct MappedFiles;
    MappedFile() = default;

    const std::byte* data_ = nullptr;
    FileStamp stamp_;
    Entry* entry_ = nullptr;
};

// Returns the error that check_unchanged() gives for a file at `path`, if the stamp `before`
// changed to `now`.
Error changed_file_error(const std::filesystem::path& path, const FileStamp& before,
                         const FileStamp& now);

// Installs the fault handler. After this call, a fault inside any mapped file ends the process with
// one line on stderr and exit 1; other bus errors end the process as before. main() calls this
// once.
void guard_mapped_files();

}  // namespace moex
