// Several backends as one: the experts of the hub's own layers are computed here, and those of all
// other layers by contributors, except where the hub checks a contributor with its own weights.
// With `serve --own-layers N` these are the first N - 1 layers and the last one, so that what is
// left for a contributor is one range of consecutive layers.
//   8 layers, N = 3: the hub computes the experts of layers 0, 1 and 7
// The backend of the others knows of no experts in the hub's own layers. Thread-safe if all are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hub/engine/expert_backend.h"

namespace moex {

// Returns a value for each layer, 1 for the first `count` - 1 layers and the last one. `count` is
// at most `num_layers`.
std::vector<std::uint8_t> own_layers(std::uint32_t num_layers, std::uint32_t count);

class OwnLayers : public ExpertBackend {
  public:
    // `here` computes own layers, `checks` those of checks (ExpertBatch::is_check), `elsewhere` all
    // others. They outlive this object. `is_own` has a value for each layer.
    OwnLayers(ExpertBackend& here, ExpertBackend& checks, ExpertBackend& elsewhere,
              std::vector<std::uint8_t> is_own);

    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return elsewhere_.name(); }
    bool works_elsewhere() const override { return elsewhere_.works_elsewhere(); }
    bool wants_hints() const override { return elsewhere_.wants_hints(); }
    void hint(std::span<const ExpertHint> hints) override { elsewhere_.hint(hints); }

  private:
    ExpertBackend& here_;
    ExpertBackend& checks_;
    ExpertBackend& elsewhere_;
    std::vector<std::uint8_t> is_own_;
};

}  // namespace moex
