#include "hub/commands/gpu/gpu_model.h"
#include "hub/commands/gpu/gpu_steps.h"

namespace moex {
namespace {

Error built_without() {
    return Error{ErrorCode::unavailable,
                 "this moex-hub was built without Vulkan (scripts/setup.sh --for worker, then "
                 "scripts/build.sh --worker moex-hub)"};
}

}  // namespace

Result<std::unique_ptr<GpuModel>> open_gpu_model(std::shared_ptr<const ModelPackage>,
                                                 const GpuModelOptions&) {
    return built_without();
}

Result<std::string> find_gpu(const std::string&) { return built_without(); }

Result<std::unique_ptr<GpuSteps>> open_gpu_steps(std::shared_ptr<const ModelPackage>, ThreadPool&,
                                                 const GpuStepsOptions&) {
    return built_without();
}

}  // namespace moex
