// The experts of a shadow (a cheaper copy of the model), as an expert backend of a decoder. A
// decoder that runs with this backend shares attention, routers and head with the served model, and
// differs only in what its experts compute. Arithmetic is in integers, as in the hub's own backend
// (hub/engine/kernels/integer.h): codes of 2 and 3 bits are stored in memory and computed as INT4
// codes; nf4 and int8 as INT8.
// Source: "OD-MoE: On-Demand Expert Loading for Cacheless Edge-Distributed MoE Inference", 3.1: a
// quantised model that runs ahead of the full one.
#pragma once

#include <memory>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/expert_backend.h"
#include "hub/engine/kernels/integer.h"
#include "hub/model/package/shadow_package.h"

namespace moex {

// Computes the experts of a shadow package on this machine.
class ShadowExperts : public ExpertBackend {
  public:
    // Copies the whole shadow package into memory; `shadow` may be closed afterwards.
    ShadowExperts(const ShadowPackage& shadow, ThreadPool& threads);

    // Computes a round. The bits of a row do not depend on the other rows of the batch.
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "shadow"; }

  private:
    void load(const ShadowPackage& shadow, std::uint32_t layer, std::uint32_t expert);
    void run(const ExpertBatch& batch) const;
    std::byte* at(std::uint32_t layer, std::uint32_t expert) const {
        return layers_[layer].data() + expert * (up_.size_bytes() + down_.size_bytes());
    }
    ThreadPool& threads_;
    // shapes of an expert's matrices, without data; memory holds up, then down
    PackedMatrix up_, down_;
    // [num_layers], packed experts of each layer; empty for dense layers
    std::vector<AlignedBuffer> layers_;
};

}  // namespace moex
