// The interface to a package's weights, either mapped by a hub or in a tab's files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/model/config.h"
#include "hub/model/package/tensor.h"
#include "protocol/bytes.h"
#include "protocol/result.h"
#include "protocol/tensor_format.h"

namespace moex {

// Receives stretches of bytes in order, and keeps no reference to them after the call.
using AppendBytes = std::function<void(ByteView)>;

// Reads the weights and the description of one package.
class PackageFiles {
  public:
    struct Tensor {
        TensorDtype dtype = TensorDtype::f32;
        std::vector<std::uint64_t> shape;
        std::uint32_t group_size = 0;  // of codes
    };

    virtual ~PackageFiles() = default;
    virtual const ModelConfig& config() const = 0;
    virtual ExpertDtype expert_dtype() const = 0;
    virtual std::uint32_t group_size() const = 0;  // 0 unless int4

    // Returns a tensor of hub.safetensors by its Hugging Face name; not_found if it is absent.
    virtual Result<Tensor> tensor(const std::string& name) const = 0;
    // Reads the bytes [first_byte, first_byte + size_bytes) of a tensor, in stretches of whole
    // elements. Each stretch but the last is a multiple of 4 bytes.
    virtual Status read_tensor(const std::string& name, std::uint64_t first_byte,
                               std::uint64_t size_bytes, const AppendBytes& append) const = 0;
    // Reads the scales and zeros of the codes in such a range of a tensor of codes: 4 bytes for
    // each group.
    virtual Status read_scales(const std::string& name, std::uint64_t first_byte,
                               std::uint64_t size_bytes, const AppendBytes& append) const = 0;
    // Reads the blob of an expert, in stretches of multiples of 4 bytes.
    virtual Status read_expert(std::uint32_t layer, std::uint32_t expert,
                               const AppendBytes& append) const = 0;
    // Returns false while blobs of the layer's experts are still on their way.
    virtual bool holds_experts([[maybe_unused]] std::uint32_t layer) const { return true; }
};

}  // namespace moex
