// The kernels of wgsl/ as the build embedded them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

struct KernelSource {
    std::string_view name;  // e.g. "group_down_4"
    std::string_view wgsl;  // overrides substituted
    std::string_view entry_point;
    std::span<const BindingKind> bindings;  // of group 0, in order
};
// Null when there is none of that name.
const KernelSource* find_kernel(std::string_view name);

}  // namespace moex::gpu
