// Reading and writing of safetensors files. The format is a u64 header length, a JSON header {name:
// {dtype, shape, data_offsets}}, then the bytes of the tensors. The reader trusts no input: it
// checks lengths, names, offsets and shapes against each other and against the file before use.
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

// One tensor in the header of a safetensors file. `dtype` is empty for element types that this
// program never computes with (I64, F8_E4M3, ...).
struct SafetensorsEntry {
    std::string name;
    std::optional<TensorDtype> dtype;
    std::string dtype_word;  // name of the element type as in the file
    std::vector<std::uint64_t> shape;
    std::uint64_t offset_bytes = 0;  // offset of the tensor's bytes from the start of the file
    std::uint64_t size_bytes = 0;
};

// limit for a header; the format allows 100 MB, and the largest models have headers of 15 MB
inline constexpr std::uint64_t safetensors_header_bytes_max = 64'000'000;

// Parses a header. Returns its tensors in the order of their bytes. `header` is the JSON only;
// `file_bytes` is the size of the whole file. Ranges may not overlap, leave holes or pass the end.
// Errors name the file by `what`. O(n log n).
Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::string_view header,
                                                               std::uint64_t file_bytes,
                                                               std::string_view what);
// Returns the JSON header at the start of `file`, a whole mapped safetensors file.
Result<std::string_view> safetensors_header_of(ByteView file, std::string_view what);

// Returns views of all tensors of a whole mapped file by name, borrowed from the file. Each tensor
// must be bf16 or f32 and start at a multiple of its element size; otherwise the error bad_file
// names it. With `with_codes` the file may also contain quantised codes and f16 tensors that start
// at multiples of 4 bytes. Views of codes have the shapes that the file states.
using TensorViews = std::map<std::string, TensorView, std::less<>>;
Result<TensorViews> safetensors_views(ByteView file, std::string_view what,
                                      bool with_codes = false);

// Returns the start of a file that stores `tensors` one after the other: the length and the padded
// header.
// The function reads name, dtype and shape, and fills in offset_bytes and size_bytes.
std::string make_safetensors_header(std::span<SafetensorsEntry> tensors);

}  // namespace moex
