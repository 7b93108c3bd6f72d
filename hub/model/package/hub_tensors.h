// How the hub's tensors lie in hub.safetensors where a package holds matrices as codes. Under a
// matrix's own name stand its codes, rows as they were; right behind it what makes weights of them:
//   int8   NAME I8 [out, in]       NAME.scale F32 [out, in / group]
//   int4   NAME U8 [out, in / 2]   NAME.scale_zero F16 [out, in / 32, 2]
// Embeddings and LM head have 8 bits in either. Norms, biases and routers are as in any package.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hub/model/package/manifest.h"
#include "hub/model/package/tensor.h"

namespace moex {

// int8 or int4; nothing where the tensor is no matrix of codes.
std::optional<TensorDtype> codes_dtype(const HubTensorSpec& spec, HubDtype hub_dtype);

// A tensor of the file.
struct FileTensor {
    std::string name;
    TensorDtype dtype = TensorDtype::int8;
    std::vector<std::uint64_t> shape;
};
// Of a matrix of codes.
struct CodesLayout {
    std::uint32_t row_size = 0, group_size = 0;
    FileTensor codes, scales;
};
CodesLayout codes_layout(const HubTensorSpec& spec, TensorDtype dtype);

// unsupported, with its name, where a matrix has rows that are no multiple of 32.
Status check_rows_for_codes(const ModelConfig& config);

}  // namespace moex
