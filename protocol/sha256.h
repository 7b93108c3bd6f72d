// A SHA-256 hash in its two forms: 32 bytes on the wire, or 64 lower-case hexadecimal digits in
// text. Source: FIPS 180-4.
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
