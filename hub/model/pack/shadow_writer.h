// `moex-hub pack --shadow`: the experts of a package in fewer bits (hub/model/package/
// shadow_package.h). One layer is in memory at a time; shadow.json is written last, so that half a
// shadow never opens.
#pragma once

#include <filesystem>
#include <functional>

#include "hub/base/thread_pool.h"
#include "hub/model/pack/packer.h"
#include "hub/model/package/shadow_package.h"

namespace moex {

struct ShadowOptions {
    ShadowDtype dtype = ShadowDtype::int3;
    std::uint32_t group_size_max = 128;  // nf4: 64 at most
};
// Of INT4 experts as they are, requantised; of bf16 or f32 ones for any package of that
// checkpoint. `out` is made; one that holds something is refused. The same bytes on every machine.
Result<PackReport> write_shadow(const ModelPackage& package, const ShadowOptions& options,
                                const std::filesystem::path& out, ThreadPool& threads,
                                const std::function<void(const PackProgress&)>& progress);

}  // namespace moex
