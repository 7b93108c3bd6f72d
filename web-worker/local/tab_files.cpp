#include "web-worker/local/tab_files.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "hub/model/package/hub_specs.h"
#include "hub/model/package/hub_tensors.h"
#include "web-worker/local/file_bridge.h"

namespace moex {
namespace {

constexpr std::uint64_t stretch_bytes = 1u << 20;

Error cannot_read(const std::string& hex) {
    return Error{ErrorCode::io_error, text("a file of the model cannot be read: ", hex)};
}

Status read_exactly(const std::string& hex, std::uint64_t first_byte, std::span<std::byte> to) {
    const double size_bytes = static_cast<double>(to.size());
    if (mx_file_read(hex.c_str(), static_cast<double>(first_byte), size_bytes, to.data()) !=
        size_bytes)
        return cannot_read(hex);
    return {};
}

Result<std::string> read_text(const std::string& hex, std::uint64_t bytes_max) {
    const double size_bytes = mx_file_size(hex.c_str());
    if (size_bytes < 0 || size_bytes > static_cast<double>(bytes_max)) return cannot_read(hex);
    std::string read(static_cast<std::size_t>(size_bytes), '\0');
    MOEX_TRY(read_exactly(hex, 0, std::as_writable_bytes(std::span(read))));
    return read;
}

}  // namespace

Result<std::unique_ptr<TabFiles>> TabFiles::open(const std::string& manifest_sha256) {
    MOEX_ASSIGN(json, read_text(manifest_sha256, manifest_bytes_max));
    MOEX_ASSIGN(manifest, parse_manifest(json, "manifest.json"));
    auto files = std::make_unique<TabFiles>();
    files->hub_sha256_ = to_hex(manifest.hub.sha256);
    files->manifest_ = std::move(manifest);
    MOEX_TRY(files->read_tensor_table());
    return Result<std::unique_ptr<TabFiles>>(std::move(files));
}

Status TabFiles::read_tensor_table() {
    const std::uint64_t file_bytes = manifest_.hub.size_bytes;
    std::uint64_t header_bytes = 0;  // stored in little-endian, which is WASM's order
    MOEX_TRY(read_exactly(hub_sha256_, 0, std::as_writable_bytes(std::span(&header_bytes, 1))));
    if (header_bytes > std::min(safetensors_header_bytes_max, file_bytes - sizeof(header_bytes)))
        return Error{ErrorCode::bad_file,
                     text("hub.safetensors: a header of ", header_bytes, " bytes")};

    std::string header(header_bytes, '\0');
    MOEX_TRY(
        read_exactly(hub_sha256_, sizeof(header_bytes), std::as_writable_bytes(std::span(header))));
    MOEX_ASSIGN(entries, parse_safetensors_header(header, file_bytes, "hub.safetensors"));
    std::map<std::string, SafetensorsEntry> in_file;
    for (SafetensorsEntry& entry : entries) in_file.emplace(entry.name, std::move(entry));

    const auto require = [&](const std::string& name, const std::vector<std::uint64_t>& shape,
                             std::optional<TensorDtype> dtype) -> Result<const SafetensorsEntry*> {
        const auto found = in_file.find(name);
        if (found == in_file.end())
            return Error{ErrorCode::not_found, text("hub.safetensors: no tensor ", name)};
        const SafetensorsEntry& entry = found->second;
        const bool is_right = entry.dtype &&
                              (dtype ? entry.dtype == dtype : !is_quantized(*entry.dtype));
        if (is_right && entry.shape == shape) return &entry;
        return Error{ErrorCode::bad_file,
                     text("hub.safetensors: ", name, " is ", entry.dtype_word, ' ',
                          shape_text(entry.shape), ", wanted ", shape_text(shape))};
    };

    if (manifest_.hub_dtype != HubDtype::bf16) MOEX_TRY(check_rows_for_codes(manifest_.config));
    for (const HubTensorSpec& spec : hub_tensor_specs(manifest_.config)) {
        const auto dtype = codes_dtype(spec, manifest_.hub_dtype);
        if (!dtype) {
            MOEX_ASSIGN(plain, require(spec.name, spec.shape, {}));
            tensors_[spec.name] = {{*plain->dtype, spec.shape, 0}, plain->offset_bytes, 0};
            continue;
        }
        const CodesLayout layout = codes_layout(spec, *dtype);
        MOEX_ASSIGN(codes, require(layout.codes.name, layout.codes.shape, *dtype));
        MOEX_ASSIGN(scales, require(layout.scales.name, layout.scales.shape, layout.scales.dtype));
        tensors_[spec.name] = {
            {*dtype, spec.shape, layout.group_size}, codes->offset_bytes, scales->offset_bytes};
    }
    return {};
}

Result<std::string> TabFiles::text_file(const std::string& name) const {
    const auto found = manifest_.files.find(name);
    if (found == manifest_.files.end()) return std::string();
    return read_text(to_hex(found->second.sha256), text_file_bytes_max(name));
}

Result<const TabFiles::Place*> TabFiles::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
        return Error{ErrorCode::not_found, text("hub.safetensors: no tensor ", name)};
    return &found->second;
}

Result<PackageFiles::Tensor> TabFiles::tensor(const std::string& name) const {
    MOEX_ASSIGN(place, find(name));
    return place->tensor;
}

Status TabFiles::read(const std::string& hex, std::uint64_t first_byte, std::uint64_t size_bytes,
                      const AppendBytes& append) const {
    while (size_bytes > 0) {
        stretch_.resize(std::min(stretch_bytes, size_bytes));
        MOEX_TRY(read_exactly(hex, first_byte, stretch_));
        append(stretch_);
        first_byte += stretch_.size();
        size_bytes -= stretch_.size();
    }
    return {};
}

Status TabFiles::read_tensor(const std::string& name, std::uint64_t first_byte,
                             std::uint64_t size_bytes, const AppendBytes& append) const {
    MOEX_ASSIGN(place, find(name));
    return read(hub_sha256_, place->first_byte + first_byte, size_bytes, append);
}

Status TabFiles::read_scales(const std::string& name, std::uint64_t first_byte,
                             std::uint64_t size_bytes, const AppendBytes& append) const {
    MOEX_ASSIGN(place, find(name));
    return read(hub_sha256_, place->scales_first_byte + first_byte, size_bytes, append);
}

Status TabFiles::read_expert(std::uint32_t layer, std::uint32_t expert,
                             const AppendBytes& append) const {
    const std::uint64_t size_bytes =
        expert_blob_layout(manifest_.expert_shape(), manifest_.expert_dtype).size_bytes;
    return read(to_hex(manifest_.experts[layer][expert]), 0, size_bytes, append);
}

bool TabFiles::holds_experts(std::uint32_t layer) const {
    const auto is_open = [](const Sha256& hash) { return mx_file_size(to_hex(hash).c_str()) >= 0; };
    const auto& experts = manifest_.experts[layer];
    return std::all_of(experts.begin(), experts.end(), is_open);
}

}  // namespace moex
