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
    std::span<const BindingKind> bindings;  // bindings of group 0, in order
    // Names of the overrides. The index is the id of the specialization constant.
    std::span<const std::string_view> overrides;
    // True: every index comes from tables that the CPU wrote and checked, so clamping is not
    // needed.
    bool host_checked = false;
};
// Null if there is no kernel of that name.
const KernelSource* find_kernel(std::string_view name);

// Returns the values of the kernel's overrides, in their order. Aborts if `constants` lacks one.
std::vector<std::uint32_t> override_values(const KernelSource& source,
                                           std::span<const KernelConstant> constants);

}  // namespace moex::gpu
