// A SHA-256 as it travels and is written: 32 bytes, or
// 64 lower-case hexadecimal digits. Source: FIPS 180-4.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

using Sha256 = std::array<std::byte, 32>;
std::string to_hex(const Sha256& hash);
Result<Sha256> parse_sha256(std::string_view hex);

}  // namespace moex
