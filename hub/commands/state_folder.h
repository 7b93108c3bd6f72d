// The state folder of a command that takes --state.
#pragma once

#include <filesystem>

#include "hub/options/options.h"
#include "protocol/result.h"

namespace moex {

// Returns the folder of --state, or the default folder of the user. The error says what to choose
// if the user has no default folder.
Result<std::filesystem::path> state_folder(const Settings& settings);

}  // namespace moex
