// Side files: optional files beside the model that predictors of experts read. The manifest lists
// size and hash of each file under a key of its own, or null if the file does not exist.
//   default_vectors.safetensors   uses and default vectors of experts, from a calibration text
//   estimator.safetensors         a trained estimator of routes
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/package/tensor.h"

namespace moex {

enum class SideFile : std::uint8_t { default_vectors, estimator };
inline constexpr SideFile side_files[] = {SideFile::default_vectors, SideFile::estimator};
constexpr std::string_view side_file_key(SideFile file) {
    return file == SideFile::default_vectors ? "default_vectors" : "estimator";
}
inline std::string side_file_name(SideFile file) {
    return std::string(side_file_key(file)) + ".safetensors";
}
inline constexpr std::uint64_t side_file_bytes_max = 4ull << 30;

// One tensor that is written to a side file, as f32 or as bf16 rounded to nearest even.
struct SideTensor {
    std::string name;
    TensorDtype dtype = TensorDtype::f32;
    std::vector<std::uint64_t> shape;
    std::vector<float> values;
};

}  // namespace moex
