// Converts the key or value of one head of one token to its form in the cache (kv_dtype.h) and
// back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hub/engine/kv_dtype.h"

namespace moex {

// Returns the stored size of the key (or value) of one head of one token, in bytes; a multiple of
// 4.
std::size_t kv_head_bytes(KvDtype dtype, std::uint32_t head_dim);
// Convert the values of one head to the stored form and back. `to` has kv_head_bytes() bytes and is
// aligned to 4 bytes.
void store_kv_head(std::byte* to, KvDtype dtype, std::span<const float> values);
void load_kv_head(std::span<float> values, KvDtype dtype, const std::byte* from);

}  // namespace moex
