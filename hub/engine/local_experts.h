// Computes experts on the hub's own cores: the expected result in tests, the fallback when no
// worker answers, and the reference for spot checks of workers' answers. The fast code uses
// Highway, or integer arithmetic (packed_experts.h); the slow reference version is
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
    // `arithmetic` applies to submit(). int8 requires INT4 experts and excludes deterministic
    // rounding, which requires f32 sums. compute() is always exact, because spot checks compare
    // workers' answers with it.
    LocalExperts(std::shared_ptr<const ModelPackage> package, ThreadPool& threads,
                 ExpertRounding rounding, Arithmetic arithmetic = Arithmetic::exact);
    ~LocalExperts() override;

    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "local"; }
    // With int8 arithmetic, packs all experts before a round requests them (see
    // PackedExperts::pack_in_background()). With exact arithmetic this does nothing and never calls
    // `done`.
    void pack_in_background(std::function<void()> done = {}, std::vector<std::uint8_t> layers = {});

    // Computes one expert over some rows, multiplied by the gate weights: y[r] = gates[r] ·
    // expert(x[r]), [num_rows, hidden_size]. x and gates are not rounded here; a caller that needs
    // the rounding of the wire must round them first. y is rounded if the rounding is
    // deterministic. The result of a row does not depend on num_rows.
    Status compute(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                   std::span<const float> gates, std::span<float> y) const override;
    Status compute_int8(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                        std::span<const float> gates, std::span<float> y) const override;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
