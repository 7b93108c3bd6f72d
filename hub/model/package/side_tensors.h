// SideTensors: read access to the tensors of a side file of an open package.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/base/mapped_file.h"
#include "hub/model/package/safetensors.h"
#include "hub/model/package/side_file.h"
#include "protocol/result.h"

namespace moex {

class ModelPackage;

// Access to the tensors of one mapped side file of an open package.
class SideTensors {
  public:
    // Opens a side file of a package. Returns not_found if the manifest does not list the file.
    // Returns another error if the file is missing, has another size than in the manifest, or is
    // not a safetensors file. Hashes are left to verify_package().
    static Result<SideTensors> open(const ModelPackage& package, SideFile file);
    // Returns the values of a tensor as f32. An error names the tensor if it is missing, has
    // another shape, or has values that are not finite.
    Result<std::vector<float>> values(std::string_view name,
                                      const std::vector<std::uint64_t>& shape) const;
    Result<std::vector<std::uint64_t>> shape_of(std::string_view name) const;

  private:
    SideTensors(std::filesystem::path path, MappedFile file, TensorViews tensors)
        : path_(std::move(path)),
          file_(std::move(file)),
          tensors_(std::move(tensors)) {}
    Result<TensorView> find(std::string_view name) const;
    std::filesystem::path path_;
    MappedFile file_;
    TensorViews tensors_;
};

}  // namespace moex
