// Fills an expert's blob from the model's tensors: codes of the file as they are where they fit,
// otherwise weights that are rounded to the package's type. Measures what the rounding of already
// quantised weights costs.
#pragma once

#include <mutex>

#include "hub/model/pack/pack_input.h"

namespace moex {

// Sums the loss of matrices that were quantised in the file and are quantised again. Thread-safe.
class LossMeter {
  public:
    // Adds a tensor, or a part of it: the squares of its weights and of their errors.
    void add(const TensorInfo& tensor, double squares, double error_squares);
    // Counts a matrix that keeps the codes of the checkpoint.
    void keep(const TensorInfo& tensor);
    PackLosses losses() const;

  private:
    mutable std::mutex mutex_;
    PackLosses losses_;
};

// Fills the blob of an expert. Thread-safe.
Status write_expert_blob(const PackInput& input, const ExpertSource& source, LossMeter& losses,
                         std::span<std::byte> blob);

// Writes weights as bf16 words or as f32. A weight that is too large for bf16 is refused, like any
// other infinity.
Status encode_weights(std::span<const float> values, bool as_f32, std::span<std::byte> out,
                      const TensorInfo& tensor);

}  // namespace moex
