#include "hub/commands/gpu/gpu_model.h"

namespace moex {

Result<std::unique_ptr<GpuModel>> open_gpu_model(std::shared_ptr<const ModelPackage>,
                                                 const GpuModelOptions&) {
    return Error{ErrorCode::unavailable,
                 "this moex-hub was built without Vulkan (scripts/setup.sh --for worker, then "
                 "scripts/build.sh --worker moex-hub)"};
}

}  // namespace moex
