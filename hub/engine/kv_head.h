// Converts keys or values of a head of a token to the stored form (kv_dtype.h) and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hub/engine/kv_dtype.h"

namespace moex {

// Stored size of a head of a token; a multiple of 4.
std::size_t kv_head_bytes(KvDtype dtype, std::uint32_t head_dim);
// `to` has kv_head_bytes() bytes and is aligned to 4.
void store_kv_head(std::byte* to, KvDtype dtype, std::span<const float> values);
void load_kv_head(std::span<float> values, KvDtype dtype, const std::byte* from);

}  // namespace moex
