// The state folder and the permissions of its files.
#pragma once

#include <filesystem>

#include "protocol/result.h"

namespace moex {

// Returns $XDG_STATE_HOME/moex or ~/.local/state/moex. Error invalid_argument: neither variable
// names a folder, or HOME names a folder that does not exist.
Result<std::filesystem::path> default_state_directory();

// Checks that Registry::open() would accept `directory`, and that the files can be written, without
// changing or making any file. A folder that does not exist can be made in its parent.
Status check_state_directory(const std::filesystem::path& directory);

// These functions restrict the state folder and its files to one user (modes 0700 and 0600), and
// make them if they do not exist.
Status secure_directory(const std::filesystem::path& directory);
Status secure_file(const std::filesystem::path& file);

}  // namespace moex
