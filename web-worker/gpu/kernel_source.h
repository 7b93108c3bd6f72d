// The kernels of wgsl/, embedded by the build.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

struct KernelSource {
    std::string_view name;  // e.g. "group_down_4"
    std::string_view wgsl;
    std::string_view entry_point;
    // The kernel's bindings in group 0, in order of their numbers.
    std::span<const BindingKind> bindings;
    // Names of the kernel's overrides. The index of a name is the id of its specialization
    // constant.
    std::span<const std::string_view> overrides;
    // True if every array index in the kernel comes from tables that the CPU wrote and checked, so
    // clamping is not needed.
    bool host_checked = false;
};
// Returns the kernel with this name; null if there is none.
const KernelSource* find_kernel(std::string_view name);

// Returns the values of the kernel's overrides, in their order. Aborts if `constants` lacks one.
std::vector<std::uint32_t> override_values(const KernelSource& source,
                                           std::span<const KernelConstant> constants);

}  // namespace moex::gpu
