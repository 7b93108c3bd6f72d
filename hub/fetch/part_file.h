// PartFile: one file of a checkpoint while it is downloaded. Its bytes are split into ranges, which
// several connections fetch at once. The bytes are stored in FOLDER/.pull/HASH.part until their
// hash has been checked; then the file moves to its own name. An interrupted download keeps the
// part and the number of bytes of each range:
//   size 10, range 4:   [0,4) done 4   [4,8) done 1   [8,10) done 0
// Owner: the Downloader, under its lock, except for write(), which has one caller per range.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/base/clock.h"
#include "hub/fetch/repository.h"
#include "protocol/bytes.h"

namespace moex {

struct FileRange {
    std::uint64_t begin = 0, end = 0;  // the range [begin, end) of the file's bytes
    std::uint64_t done = 0;            // bytes from `begin` on that are in the part file
    bool is_busy = false;              // true: a connection is fetching this range
    unsigned num_failures = 0;         // attempts in a row that fetched almost no bytes
    TimePoint not_before{};            // earliest time of the next attempt
    bool is_whole() const { return done == end - begin; }
};

// A file that is in its place, as the record of a folder lists it.
struct FinishedFile {
    std::string path;
    std::uint64_t size_bytes = 0;
    std::string sha256;            // SHA-256 of the file's bytes, 64 hexadecimal digits
    std::int64_t modified_ns = 0;  // modification time of the file, in ns
};

class PartFile {
  public:
    PartFile(std::filesystem::path folder, RepositoryFile file, std::uint64_t range_bytes);
    ~PartFile();
    PartFile(const PartFile&) = delete;

    const RepositoryFile& file() const { return file_; }
    std::vector<FileRange> ranges;
    std::uint64_t done_bytes() const;
    bool is_whole() const { return done_bytes() == file_.size_bytes; }

    // Takes over the ranges that an earlier run had saved, if the repository still lists the same
    // hash and size and the part file still exists.
    void resume(const nlohmann::json& saved);
    nlohmann::json to_json() const;
    // Returns the bytes that the part file occupies on the disk already.
    std::uint64_t allocated_bytes() const;

    // Creates the part file and reserves its size. Errors: no_space, io_error.
    Status open();
    // Writes bytes at `offset`. Thread-safe for different bytes.
    Status write(std::uint64_t offset, ByteView bytes);
    // Forgets all bytes, e.g. after their hash was wrong.
    void restart();
    // Joins all ranges into one, for a server that sends whole files only.
    void join_ranges();
    // Checks the hash of the part file and moves it to its place. Returns hash_mismatch if the
    // bytes are not those that the repository lists.
    Result<FinishedFile> finish();
    void remove();
    std::string part_name() const { return part_.filename().string(); }

  private:
    std::filesystem::path folder_, part_;
    RepositoryFile file_;
    int fd_ = -1;
};

// Hashes a regular file. Returns an error if it is a link or its bytes are not those of `file`;
// a file without any listed hash must have the listed size alone.
Result<FinishedFile> check_file(const std::filesystem::path& path, const RepositoryFile& file);

// Checks the size and the listed hash of a file's bytes in memory.
Status check_bytes(ByteView bytes, const RepositoryFile& file);

// Creates the folders of `path` below `folder`. A link among them is refused.
Status make_folders_of(const std::filesystem::path& folder, const std::string& path);

}  // namespace moex
