// How keys and values lie in the cache: one head of one token at a time.
//   f32    as they were computed
//   f16    rounded, and cut to ±65504
//   int8   for each 32 values f32 scale = max|x| / 127; then s8 code = round(x / scale): 9 bits
//   each
// What is read is what was stored, whoever reads it and when: a row's bits follow from its values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace moex {

enum class KvDtype : std::uint8_t { f32, f16, int8 };

// How many values of int8 have one scale.
inline constexpr std::size_t kv_group = 32;

// One head's keys or values of neighbouring positions as they lie in the cache: that of position t
// at data + t · stride_bytes.
struct KvRows {
    KvDtype dtype = KvDtype::f32;
    const std::byte* data = nullptr;
    std::size_t stride_bytes = 0;
};

const char* kv_dtype_name(KvDtype dtype);
std::optional<KvDtype> parse_kv_dtype(std::string_view name);

}  // namespace moex
