// Matrices of the hub on their way into hub.safetensors as codes: what pack and synth share.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "hub/model/package/hub_tensors.h"
#include "hub/model/package/safetensors.h"

namespace moex {

// One entry of hub.safetensors, and which tensor of the model fills it.
struct HubEntry {
    std::size_t spec_index = 0;
    std::optional<TensorDtype> codes;  // int8 or int4: of a matrix of codes
    bool is_scales = false;            // what comes behind its codes
};
// For each spec, in order: one entry of the dtype that `plain` says, or codes and their scales.
struct HubEntries {
    std::vector<SafetensorsEntry> entries;
    std::vector<HubEntry> of;  // [entries.size()]
};
HubEntries hub_entries(std::span<const HubTensorSpec> specs, HubDtype hub_dtype,
                       const std::function<TensorDtype(std::size_t spec_index)>& plain);

// The rows of one matrix to codes, in pieces of any size; what scales they got comes last.
class RowCoder {
  public:
    void begin(const CodesLayout& layout);
    // Writes the codes of the rows that are whole now. False where a scale is not finite: a weight
    // too large for f16.
    bool add(std::span<const float> weights, Bytes& codes);
    ByteView scales() const { return std::as_bytes(std::span(scales_)); }

  private:
    bool add_row(std::span<const float> row, std::byte* codes);
    CodesLayout layout_;
    std::vector<float> started_;  // a row that is not whole yet
    std::vector<std::uint32_t> scales_;
};

}  // namespace moex
