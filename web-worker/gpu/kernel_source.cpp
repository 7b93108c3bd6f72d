#include "web-worker/gpu/kernel_source.h"

namespace moex::gpu {
namespace {
#include "kernels_text.inc"
}  // namespace

const KernelSource* find_kernel(std::string_view name) {
    for (const KernelSource& source : kernel_sources)
        if (source.name == name) return &source;
    return nullptr;
}

}  // namespace moex::gpu
