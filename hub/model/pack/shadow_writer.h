// `moex-hub pack --shadow` writes a shadow: the experts of a package in fewer bits
// (hub/model/package/shadow_package.h). One layer is in memory at a time. shadow.json is written
// last, so that an incomplete shadow never opens.
#pragma once

#include <filesystem>
#include <functional>

#include "hub/base/thread_pool.h"
#include "hub/model/pack/packer.h"
#include "hub/model/package/shadow_package.h"

namespace moex {

struct ShadowOptions {
    ShadowDtype dtype = ShadowDtype::int3;
    std::uint32_t group_size_max = 128;  // largest group of weights with one scale; nf4: at most 64
};
// Writes a shadow of `package` to `out`. If the package has INT4 experts, they are requantised, and
// the shadow then fits this package only. A shadow of bf16 or f32 experts fits any package of the
// same checkpoint. The function creates `out` and refuses a folder that is not empty. It writes the
// same bytes on every machine.
Result<PackReport> write_shadow(const ModelPackage& package, const ShadowOptions& options,
                                const std::filesystem::path& out, ThreadPool& threads,
                                const std::function<void(const PackProgress&)>& progress);

}  // namespace moex
