#include "hub/engine/own_layers.h"

#include <algorithm>
#include <utility>

namespace moex {

std::vector<std::uint8_t> own_layers(std::uint32_t num_layers, std::uint32_t count) {
    std::vector<std::uint8_t> is_own(num_layers);
    if (count == 0 || num_layers == 0) return is_own;
    std::fill_n(is_own.begin(), count - 1, std::uint8_t{1});
    is_own.back() = 1;
    return is_own;
}

OwnLayers::OwnLayers(ExpertBackend& here, ExpertBackend& checks, ExpertBackend& elsewhere,
                     std::vector<std::uint8_t> is_own)
    : here_(here),
      checks_(checks),
      elsewhere_(elsewhere),
      is_own_(std::move(is_own)) {}

std::unique_ptr<ExpertRound> OwnLayers::submit(const ExpertBatch& batch) {
    if (is_own_[batch.layer] != 0) return here_.submit(batch);
    return (batch.is_check ? checks_ : elsewhere_).submit(batch);
}

}  // namespace moex
