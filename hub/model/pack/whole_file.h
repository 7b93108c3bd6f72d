// A file under a temporary name that takes its own once it is whole and on the disk.
#pragma once

#include <filesystem>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// no_space where the disk is full, else io_error; names the path.
Error system_error(const std::filesystem::path& path, int cause);

class WholeFile {
  public:
    WholeFile(std::filesystem::path path, std::filesystem::path temporary);
    ~WholeFile();  // removes what was not finished
    WholeFile(const WholeFile&) = delete;
    Status write(ByteView bytes);
    Status finish();

  private:
    std::filesystem::path path_, temporary_;
    int fd_ = -1;
    Status status_;
};

// The whole of a file of one piece; its temporary stands beside it, as .tmp- and its name.
Status write_whole_file(const std::filesystem::path& path, ByteView content);
void sync_directory(const std::filesystem::path& path);

}  // namespace moex
