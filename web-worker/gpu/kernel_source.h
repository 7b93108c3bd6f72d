// The kernels of wgsl/ as the build embedded them.
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
    std::span<const BindingKind> bindings;  // of group 0, in order
    // told when a pipeline is made; the place is the id of the specialization constant
    std::span<const std::string_view> overrides;
    // every index comes from tables that the host wrote and checked: clamping adds nothing
    bool host_checked = false;
};
// Null when there is none of that name.
const KernelSource* find_kernel(std::string_view name);

// The values of the kernel's overrides, in their order. Aborts when one is not among `constants`.
std::vector<std::uint32_t> override_values(const KernelSource& source,
                                           std::span<const KernelConstant> constants);

}  // namespace moex::gpu
