// The state folder of a command that takes --state, and the registry of one that takes --store,
// too.
#pragma once

#include <filesystem>

#include "hub/options/options.h"
#include "hub/registry/registry.h"
#include "protocol/result.h"

namespace moex {

// Returns the folder of --state, or the default folder of the user. The error says what to choose
// if the user has no default folder.
Result<std::filesystem::path> state_folder(const Settings& settings);

// Opens the registry that --store or --state names. Error not_found: no hub has kept `things` in
// the state folder, and `may_make` is false.
Result<std::unique_ptr<Registry>> open_registry_of(const Settings& settings,
                                                   std::string_view things, bool may_make);

}  // namespace moex
