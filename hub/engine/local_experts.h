// Experts on the hub's own cores: the oracle in tests, the
// fallback when no worker answers, the judge in spot checks.
// Fast path through Highway, or in integers (packed_experts.h); the plain twin is
// protocol/expert_reference. Thread-safe.
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
    // `arithmetic` is that of submit(), and int8 for INT4 experts only; not with deterministic
    // rounding, which fixes f32 sums. compute() is always exact: it judges what others answer.
    LocalExperts(std::shared_ptr<const ModelPackage> package, ThreadPool& threads,
                 ExpertRounding rounding, Arithmetic arithmetic = Arithmetic::exact);
    ~LocalExperts() override;

    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "local"; }
    // In int8, packs all experts ahead of the rounds that ask for them, as
    // PackedExperts::pack_in_background() says; otherwise there is nothing to do and nobody hears.
    void pack_in_background(std::function<void()> done = {});

    // One expert over some rows, gates applied: y [num_rows, hidden_size] = gates[r] ·
    // expert(x[r]). x and gates are taken as given (already rounded to the wire by the
    // caller where that matters); y is rounded when the options are deterministic.
    // A row's result does not depend on num_rows.
    Status compute(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                   std::span<const float> gates, std::span<float> y) const override;
    Status compute_int8(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                        std::span<const float> gates, std::span<float> y) const override;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
