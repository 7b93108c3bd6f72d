// Converts the hub's matrices to quantised codes for hub.safetensors. The commands pack and synth
// both use it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "hub/model/package/hub_tensors.h"
#include "hub/model/package/safetensors.h"

namespace moex {

// One entry of hub.safetensors: names the model tensor that fills it, and the form of the data.
struct HubEntry {
    std::size_t spec_index = 0;
    std::optional<TensorDtype> codes;  // int8 or int4 if the tensor is a matrix stored as codes
    bool is_scales = false;            // true: the entry holds scales, not codes
};
// The entries of hub.safetensors for all tensor specs, in their order. A spec has either one entry
// with the dtype that `plain` returns, or two entries: codes and scales.
struct HubEntries {
    std::vector<SafetensorsEntry> entries;
    std::vector<HubEntry> of;  // [entries.size()]
};
HubEntries hub_entries(std::span<const HubTensorSpec> specs, HubDtype hub_dtype,
                       const std::function<TensorDtype(std::size_t spec_index)>& plain);

// Converts the rows of a matrix to codes. The rows may arrive in pieces of any size. After the last
// piece scales() returns the scales of the whole matrix.
class RowCoder {
  public:
    void begin(const CodesLayout& layout);
    // Takes the next weights of the matrix, and writes the codes of the rows that are now complete.
    // Returns false if a scale is not finite, because a weight is too large for f16.
    bool add(std::span<const float> weights, Bytes& codes);
    ByteView scales() const { return std::as_bytes(std::span(scales_)); }

  private:
    bool add_row(std::span<const float> row, std::byte* codes);
    CodesLayout layout_;
    std::vector<float> started_;  // weights of the row that is still incomplete
    std::vector<std::uint32_t> scales_;
};

}  // namespace moex
