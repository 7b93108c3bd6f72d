// The safetensors format: a u64 header length, a JSON header {name: {dtype, shape, data_offsets}},
// then the tensors' bytes. The reader trusts nothing: lengths, names, offsets and shapes are
// checked against each other and the file before use.
// Source: the format description of the safetensors project.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/package/tensor.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// One tensor of a header. `dtype` is empty for element types that we never compute with (I64,
// F8_E4M3, ...).
struct SafetensorsEntry {
    std::string name;
    std::optional<TensorDtype> dtype;
    std::string dtype_word;  // as in the file
    std::vector<std::uint64_t> shape;
    std::uint64_t offset_bytes = 0;  // from the start of the file
    std::uint64_t size_bytes = 0;
};

// the format allows 100 MB; the largest models have 15
inline constexpr std::uint64_t safetensors_header_bytes_max = 64'000'000;

// In the order of their bytes. `header` is the JSON alone, `file_bytes` the whole file's size.
// Ranges may not overlap, leave holes or pass the end. `what` names the file in errors. O(n log n).
Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::string_view header,
                                                               std::uint64_t file_bytes,
                                                               std::string_view what);
// The JSON header at the start of a whole mapped file.
Result<std::string_view> safetensors_header_of(ByteView file, std::string_view what);

// Every tensor of a whole mapped file, borrowed from it, by name. Each must be bf16 or f32, at a
// multiple of its element's size: bad_file names the one that is not. With codes they, and f16, may
// be there, too, at multiples of 4, with the shapes that they have in the file.
using TensorViews = std::map<std::string, TensorView, std::less<>>;
Result<TensorViews> safetensors_views(ByteView file, std::string_view what,
                                      bool with_codes = false);

// The header that lays `tensors` out one after the other, length and padding included: what comes
// first in the file.
// Only name, dtype and shape are read; offset_bytes and size_bytes are filled in.
std::string make_safetensors_header(std::span<SafetensorsEntry> tensors);

}  // namespace moex
