// The name of a hub: eight hexadecimal digits in the file hub_id of its state folder.
#pragma once

#include <filesystem>
#include <string>

#include "protocol/result.h"

namespace moex {

// Returns the name of the hub of a state folder, which is made at the first call. Error bad_file:
// the file has something else.
Result<std::string> hub_id_of(const std::filesystem::path& directory);

}  // namespace moex
