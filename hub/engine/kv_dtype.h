// The stored form of keys and values in the cache, for one head of a token:
//   f32 the values as they were computed
//   f16    rounded, and cut to ±65504
//   int8   for each 32 values f32 scale = max|x| / 127; then s8 code = round(x / scale): 9 bits
//          per value
// A read returns exactly the stored values, on every thread and at any time: the bits of a row
// follow from its values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace moex {

enum class KvDtype : std::uint8_t { f32, f16, int8 };

// Number of values that share one scale in int8.
inline constexpr std::size_t kv_group = 32;

// Keys or values of a head for neighbouring positions, as the cache stores them: position t is at
// data + t · stride_bytes.
struct KvRows {
    KvDtype dtype = KvDtype::f32;
    const std::byte* data = nullptr;
    std::size_t stride_bytes = 0;
};

const char* kv_dtype_name(KvDtype dtype);
std::optional<KvDtype> parse_kv_dtype(std::string_view name);

}  // namespace moex
