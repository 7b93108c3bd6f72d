// The experts of a shadow as a backend: a decoder that runs with them shares attention, routers and
// head with the model that is served, and differs in what experts answer. Integer arithmetic, as
// the hub's own (hub/engine/kernels/integer.h): codes of 2 and 3 bits run as INT4 ones, which they
// are in memory; nf4 and int8 as INT8. Source: "OD-MoE: On-Demand Expert Loading for Cacheless
// Edge-Distributed MoE Inference", 3.1: a quantised model that runs ahead of the full one.
#pragma once

#include <memory>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/expert_backend.h"
#include "hub/engine/kernels/integer.h"
#include "hub/model/package/shadow_package.h"

namespace moex {

class ShadowExperts : public ExpertBackend {
  public:
    // Reads all of it; the shadow may be closed after that.
    ShadowExperts(const ShadowPackage& shadow, ThreadPool& threads);

    // A row's bits do not depend on its neighbours.
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "shadow"; }

  private:
    void load(const ShadowPackage& shadow, std::uint32_t layer, std::uint32_t expert);
    void run(const ExpertBatch& batch) const;
    std::byte* at(std::uint32_t layer, std::uint32_t expert) const {
        return layers_[layer].data() + expert * (up_.size_bytes() + down_.size_bytes());
    }
    ThreadPool& threads_;
    PackedMatrix up_, down_;  // shapes, without data; an expert is up and then down
    std::vector<AlignedBuffer> layers_;
};

}  // namespace moex
