#include "hub/model/pack/side_file_writer.h"

#include <cstring>

#include "hub/base/files.h"
#include "hub/base/sha256.h"
#include "hub/model/pack/whole_file.h"
#include "hub/model/package/manifest.h"
#include "hub/model/package/safetensors.h"
#include "protocol/check.h"
#include "protocol/half.h"

namespace moex {
namespace {

Bytes bytes_of(const SideTensor& tensor) {
    MOEX_CHECK(tensor.dtype != TensorDtype::f16, "side files are f32 or bf16");
    Bytes bytes(tensor.values.size() * tensor_dtype_bytes(tensor.dtype));
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
        if (tensor.dtype == TensorDtype::f32) {
            std::memcpy(bytes.data() + 4 * i, &tensor.values[i], 4);
        } else {
            const bfloat16 rounded = float_to_bfloat16(tensor.values[i]);
            std::memcpy(bytes.data() + 2 * i, &rounded, 2);
        }
    }
    return bytes;
}

Bytes safetensors_of(std::span<const SideTensor> tensors) {
    std::vector<SafetensorsEntry> entries;
    for (const SideTensor& tensor : tensors)
        entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});

    const std::string header = make_safetensors_header(entries);
    const ByteView head = as_byte_view(header);
    Bytes out(head.begin(), head.end());
    for (const SideTensor& tensor : tensors) {
        const Bytes bytes = bytes_of(tensor);
        out.insert(out.end(), bytes.begin(), bytes.end());
    }
    return out;
}

}  // namespace

Status write_side_file(const std::filesystem::path& package, SideFile file,
                       std::span<const SideTensor> tensors) {
    const std::filesystem::path manifest_path = package / "manifest.json";
    MOEX_ASSIGN(manifest_text, read_text_file(manifest_path, manifest_bytes_max));
    MOEX_ASSIGN(manifest, parse_manifest(manifest_text, manifest_path.string()));

    const Bytes content = safetensors_of(tensors);
    manifest.side_files[file] = {sha256(content), content.size()};
    MOEX_TRY(write_whole_file(package / side_file_name(file), content));
    sync_directory(package);
    MOEX_TRY(write_whole_file(manifest_path, as_byte_view(manifest_to_json(manifest))));
    sync_directory(package);
    return {};
}

}  // namespace moex
