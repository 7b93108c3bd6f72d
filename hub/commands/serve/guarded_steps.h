// A StepDevice that checks the package's files around each step of another device. A step that read
// a file with other bytes than at the start gives an error instead of tokens.
// Owner: the engine's thread, as for every StepDevice.
#pragma once

#include <memory>

#include "hub/engine/step_device.h"
#include "hub/model/package/package.h"

namespace moex {

class GuardedSteps : public StepDevice {
  public:
    // `device` computes with the files of `package` and outlives this object.
    GuardedSteps(StepDevice& device, std::shared_ptr<const ModelPackage> package)
        : device_(device),
          package_(std::move(package)) {}

    Result<StepResult> run(std::span<const StepRows> batch, ExpertBackend& experts,
                           std::uint32_t micro_batches, std::stop_token stop) override;
    const ModelConfig& config() const override { return device_.config(); }
    std::uint32_t micro_batches_max() const override { return device_.micro_batches_max(); }
    void recycle(StepResult&& result) override { device_.recycle(std::move(result)); }
    ThreadPool& threads() const override { return device_.threads(); }
    bool gives_hidden() const override { return device_.gives_hidden(); }
    bool takes_speculators() const override { return device_.takes_speculators(); }
    std::uint32_t likeliest_max() const override { return device_.likeliest_max(); }
    KvPageMover page_mover() override { return device_.page_mover(); }
    StateSlotSizes state_slots() const override { return device_.state_slots(); }
    Status renew() override { return device_.renew(); }

  private:
    StepDevice& device_;
    const std::shared_ptr<const ModelPackage> package_;
};

}  // namespace moex
