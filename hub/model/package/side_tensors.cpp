#include "hub/model/package/side_tensors.h"

#include "hub/base/files.h"
#include "hub/model/package/manifest.h"
#include "hub/model/package/package.h"

namespace moex {

Result<SideTensors> SideTensors::open(const ModelPackage& package, SideFile file) {
    const std::filesystem::path manifest_path = package.directory() / "manifest.json";
    MOEX_ASSIGN(manifest_text, read_text_file(manifest_path, manifest_bytes_max));
    MOEX_ASSIGN(manifest, parse_manifest(manifest_text, manifest_path.string()));
    const auto record = manifest.side_files.find(file);
    if (record == manifest.side_files.end())
        return Error{ErrorCode::not_found,
                     text(package.directory().string(), ": no ", side_file_key(file))};

    const std::filesystem::path path = package.directory() / side_file_name(file);
    auto mapped = MappedFile::open(path);
    if (!mapped.ok()) return Error{ErrorCode::bad_file, mapped.error().message};
    if (mapped->bytes().size() != record->second.size_bytes)
        return Error{ErrorCode::bad_file,
                     text(path.string(), ": ", mapped->bytes().size(),
                          " bytes, manifest.json wants ", record->second.size_bytes)};

    MOEX_ASSIGN(tensors, safetensors_views(mapped->bytes(), path.string()));
    return SideTensors(path, *std::move(mapped), std::move(tensors));
}

Result<TensorView> SideTensors::find(std::string_view name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
        return Error{ErrorCode::bad_file, text(path_.string(), ": no tensor ", name)};
    return found->second;
}

Result<std::vector<std::uint64_t>> SideTensors::shape_of(std::string_view name) const {
    MOEX_ASSIGN(found, find(name));
    return found.shape;
}

Result<std::vector<float>> SideTensors::values(std::string_view name,
                                               const std::vector<std::uint64_t>& shape) const {
    MOEX_ASSIGN(found, find(name));
    if (found.shape != shape)
        return Error{ErrorCode::bad_file,
                     text(path_.string(), ": ", name, " is ", shape_text(found.shape),
                          ", the model wants ", shape_text(shape))};

    std::vector<float> out(found.num_elements());
    tensor_to_float(found, 0, out);
    if (find_non_finite(out))
        return Error{ErrorCode::bad_file,
                     text(path_.string(), ": ", name, " holds a value that is not finite")};
    return out;
}

}  // namespace moex
