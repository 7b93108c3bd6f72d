// Packages of the golden families with a gated delta rule, with matrices exactly as stored.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "hub/model/pack/packer.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/must.h"
#include "tests/support/repository.h"

namespace moex::test {

// Returns the package of a folder of tests/golden/families. Each is packed once in a program.
inline std::shared_ptr<const ModelPackage> golden_package(const std::string& family) {
    static const TemporaryFolder folder("golden-package");
    static std::map<std::string, std::shared_ptr<const ModelPackage>> packages;
    auto& package = packages[family];
    if (!package) {
        PackOptions options;
        options.expert_dtype = ExpertDtype::f32;
        options.hub_f32 = true;
        must(pack_checkpoint(repository() / "tests/golden/families" / family,
                             folder.path() / family, options, compute_threads(), {}));
        package = must(ModelPackage::open(folder.path() / family));
    }
    return package;
}

}  // namespace moex::test
