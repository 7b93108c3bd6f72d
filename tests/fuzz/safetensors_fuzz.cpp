// Fuzzes the safetensors reader with a whole file. If the reader accepts a file, its tensors must
// be inside the file, one after the other.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "hub/model/package/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace moex;
    const ByteView file(reinterpret_cast<const std::byte*>(data), size);
    const auto header = safetensors_header_of(file, "f");
    if (!header.ok()) return 0;
    const auto entries = parse_safetensors_header(*header, size, "f");
    if (!entries.ok()) return 0;
    std::uint64_t total = 8 + header->size();
    for (const SafetensorsEntry& entry : *entries) {
        if (entry.offset_bytes > size || entry.size_bytes > size - entry.offset_bytes) std::abort();
        total += entry.size_bytes;
        if (!entry.dtype) continue;
        std::vector<float> values(entry.size_bytes / tensor_dtype_bytes(*entry.dtype));
        elements_to_float(*entry.dtype, file.data() + entry.offset_bytes, values);
        static_cast<void>(find_non_finite(values));
    }
    if (total != size) std::abort();
    return 0;
}
