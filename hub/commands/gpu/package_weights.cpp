#include "hub/commands/gpu/package_weights.h"

namespace moex {

Result<DecoderModel> decoder_model_of(const ModelPackage& package) {
    return decoder_model_of(MappedFiles(package));
}

Result<PackageFiles::Tensor> MappedFiles::tensor(const std::string& name) const {
    MOEX_ASSIGN(found, package_.tensor(name));
    return Tensor{found.dtype, std::move(found.shape), found.group_size};
}

Status MappedFiles::read_tensor(const std::string& name, std::uint64_t first_byte,
                                std::uint64_t size_bytes, const AppendBytes& append) const {
    MOEX_ASSIGN(found, package_.tensor(name));
    append(found.data.subspan(first_byte, size_bytes));
    return {};
}

Status MappedFiles::read_scales(const std::string& name, std::uint64_t first_byte,
                                std::uint64_t size_bytes, const AppendBytes& append) const {
    MOEX_ASSIGN(found, package_.tensor(name));
    append(found.scales.subspan(first_byte, size_bytes));
    return {};
}

Status MappedFiles::read_expert(std::uint32_t layer, std::uint32_t expert,
                                const AppendBytes& append) const {
    MOEX_ASSIGN(blob, package_.blob(layer, expert));
    append(blob);
    return {};
}

}  // namespace moex
