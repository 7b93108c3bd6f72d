// The layout of hub.safetensors in a package that stores the hub's matrices as codes. The codes of
// a matrix are stored under its own name, in the same order of rows. The scales follow right
// behind:
//   int8   NAME I8 [out, in]       NAME.scale F32 [out, in / group]
//   int4   NAME U8 [out, in / 2]   NAME.scale_zero F16 [out, in / 32, 2]
// Embeddings and LM head have 8 bits in both cases. Norms, biases and routers are stored as in any
// other package.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hub/model/package/hub_specs.h"
#include "hub/model/package/tensor.h"
#include "protocol/hub_codes.h"

namespace moex {

// Returns int8 or int4 for a matrix that is stored as codes in the package, and nullopt for any
// other tensor.
std::optional<TensorDtype> codes_dtype(const HubTensorSpec& spec, HubDtype hub_dtype);

// One tensor of hub.safetensors: name, dtype and shape, without the bytes.
struct FileTensor {
    std::string name;
    TensorDtype dtype = TensorDtype::int8;
    std::vector<std::uint64_t> shape;
};
// Layout of a matrix that is stored as codes in two tensors of hub.safetensors.
struct CodesLayout {
    std::uint32_t row_size = 0, group_size = 0;
    FileTensor codes, scales;
};
CodesLayout codes_layout(const HubTensorSpec& spec, TensorDtype dtype);

// Returns the layout of a matrix that is stored as codes. If the length of its rows is not a
// multiple of 32, returns the error unsupported with the name of the matrix.
Status check_rows_for_codes(const ModelConfig& config);

}  // namespace moex
