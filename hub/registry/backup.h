// Copies of the state folder as one file, made while a hub serves or not.
#pragma once

#include <filesystem>

#include "protocol/result.h"

namespace moex {

// Writes the state of `directory` to `file` (mode 0600), which must not exist: a database with all
// that moex.sqlite holds, and the join token in a table of its own. The copy is of one moment, and
// a hub that serves is not held up. Counts of its last half second may be missing. To restore, the
// file becomes moex.sqlite of an empty state folder; Registry::open() then writes the join token.
// Errors: not_found: no hub has kept its state in `directory`; invalid_argument: `file` exists;
// io_error.
Status back_up_state(const std::filesystem::path& directory, const std::filesystem::path& file);

}  // namespace moex
