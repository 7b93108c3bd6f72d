// WholeFile writes a file under a temporary name and renames it once all bytes are on the disk.
#pragma once

#include <filesystem>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// Returns the error no_space if `cause` says that the disk is full, otherwise io_error. The message
// names the path.
Error system_error(const std::filesystem::path& path, int cause);

class WholeFile {
  public:
    WholeFile(std::filesystem::path path, std::filesystem::path temporary);
    ~WholeFile();  // removes the temporary file if it is unfinished
    WholeFile(const WholeFile&) = delete;
    Status write(ByteView bytes);
    Status finish();

  private:
    std::filesystem::path path_, temporary_;
    int fd_ = -1;
    Status status_;
};

// Writes a whole file in one call. Its temporary file is in the same folder; the name of the
// temporary file is .tmp- and the name of the file.
Status write_whole_file(const std::filesystem::path& path, ByteView content);
void sync_directory(const std::filesystem::path& path);

}  // namespace moex
