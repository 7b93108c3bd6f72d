// Computes experts on the hub's own cores: the oracle in tests, the fallback when no worker
// answers, and the judge in spot checks. The fast path uses Highway, or integers
// (packed_experts.h); the plain twin is protocol/expert_reference. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "hub/base/thread_pool.h"
#include "hub/engine/arithmetic.h"
#include "hub/engine/expert_backend.h"
#include "hub/model/package/package.h"

namespace moex {

class LocalExperts : public ExpertBackend, public ExpertCompute {
  public:
    // `arithmetic` is that of submit(). int8 is for INT4 experts only, and not with deterministic
    // rounding, which fixes f32 sums. compute() is always exact: it judges what others answer.
    LocalExperts(std::shared_ptr<const ModelPackage> package, ThreadPool& threads,
                 ExpertRounding rounding, Arithmetic arithmetic = Arithmetic::exact);
    ~LocalExperts() override;

    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "local"; }
    // In int8, packs all experts ahead of the rounds that request them, as
    // PackedExperts::pack_in_background() does. Otherwise there is nothing to do, and `done` is
    // never called.
    void pack_in_background(std::function<void()> done = {});

    // Computes one expert over some rows, gates applied: y [num_rows, hidden_size] = gates[r] ·
    // expert(x[r]). x and gates are used as given; a caller that needs wire rounding has rounded
    // them already. y is rounded when the options are deterministic. The result of a row does not
    // depend on num_rows.
    Status compute(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                   std::span<const float> gates, std::span<float> y) const override;
    Status compute_int8(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                        std::span<const float> gates, std::span<float> y) const override;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
