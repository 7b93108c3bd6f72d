// A 64-bit checksum that finds accidental damage of stored or sent bytes. Not a protection against
// people: everybody can compute it.
// Source: XXH64 with seed 0, the "xxHash fast digest algorithm" specification, version 0.1.1.
#pragma once

#include <cstdint>

#include "protocol/bytes.h"

namespace moex {

std::uint64_t checksum64(ByteView bytes);

}  // namespace moex
