// Whole files: read as text, mapped, or read piece by piece.
// A named pipe or a folder is refused, never waited for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// Text of a small file; not_found when absent.
Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t bytes_max);

// Bytes [offset, offset + out.size()) of an open file;
// ending early is an error. Errors do not name the file.
Status pread_all(int fd, std::uint64_t offset, std::span<std::byte> out);

// A read-only memory map of a whole file.
class MappedFile {
  public:
    static Result<MappedFile> open(const std::filesystem::path& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();
    ByteView bytes() const { return {data_, size_}; }

  private:
    MappedFile() = default;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace moex
