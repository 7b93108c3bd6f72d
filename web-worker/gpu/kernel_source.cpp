#include "web-worker/gpu/kernel_source.h"

#include <algorithm>

namespace moex::gpu {
namespace {
#include "kernels_text.inc"
}  // namespace

const KernelSource* find_kernel(std::string_view name) {
    for (const KernelSource& source : kernel_sources)
        if (source.name == name) return &source;
    return nullptr;
}

std::vector<std::uint32_t> override_values(const KernelSource& source,
                                           std::span<const KernelConstant> constants) {
    std::vector<std::uint32_t> values;
    for (const std::string_view name : source.overrides) {
        const auto found = std::find_if(
            constants.begin(), constants.end(),
            [&](const KernelConstant& constant) { return constant.name == name; });
        MOEX_CHECK(found != constants.end(), text(source.name, " wants ", name));
        values.push_back(found->value);
    }
    return values;
}

}  // namespace moex::gpu
