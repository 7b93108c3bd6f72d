// The keys of this hub and of the publishers of its packages, in the state folder:
//   signing-key          the hub's own key, made at first use
//   known-publishers     the publishers' keys, one line "MODEL KEY" each, pinned at first use
#pragma once

#include <filesystem>

#include "hub/model/package/package.h"
#include "protocol/result.h"

namespace moex {

std::filesystem::path signing_key_file(const std::filesystem::path& state_directory);

// Checks signature.json of a package, and pins its key for the model's name at first use. A package
// without a signature is accepted, unless a key is pinned for its name. Errors: a signature that
// does not fit the manifest; another key than the pinned one that is no lawful successor of it.
Status check_publisher(const ModelPackage& package, const std::filesystem::path& state_directory);

}  // namespace moex
