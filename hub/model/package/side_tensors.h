// The tensors of a side file, as who opened the package reads them.
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

// A side file of an open package, mapped.
class SideTensors {
  public:
    // not_found where the manifest names none; an error where the file is not there, has another
    // size, or is no safetensors file. Hashes are verify_package()'s.
    static Result<SideTensors> open(const ModelPackage& package, SideFile file);
    // As f32, of this shape and finite; an error names the tensor.
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
