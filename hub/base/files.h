// Reads whole files, as text or piece by piece. For mapped files see hub/base/mapped_file.h. A
// named pipe or a folder is refused; the functions never wait for one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// Returns the text of a small file; the error is not_found when the file does not exist.
Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t bytes_max);

// Reads the bytes [offset, offset + out.size()) of an open file. A file that ends early is an
// error. Errors do not name the file.
Status pread_all(int fd, std::uint64_t offset, std::span<std::byte> out);

}  // namespace moex
