#include "hub/commands/serve/guarded_steps.h"

namespace moex {

Result<StepResult> GuardedSteps::run(std::span<const StepRows> batch, ExpertBackend& experts,
                                     std::uint32_t micro_batches, std::stop_token stop) {
    MOEX_TRY(package_->check_unchanged());
    auto result = device_.run(batch, experts, micro_batches, std::move(stop));
    // A file may have been written to during the step. The step's sequences have grown then, which
    // does no harm: the error ends them, and the hub stops.
    MOEX_TRY(package_->check_unchanged());
    return result;
}

}  // namespace moex
