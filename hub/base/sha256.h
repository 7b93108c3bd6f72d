// SHA-256 of bytes and of files, by OpenSSL. The type and its hexadecimal form: protocol/sha256.h.
// Source: FIPS 180-4.
#pragma once

#include <filesystem>

#include "protocol/bytes.h"
#include "protocol/result.h"
#include "protocol/sha256.h"

namespace moex {

Sha256 sha256(ByteView bytes);
Result<Sha256> sha256_file(const std::filesystem::path& path);

}  // namespace moex
