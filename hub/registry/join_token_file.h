// The file of the join token in a state folder (0600). It is plain text, since the join link is
// shown at every start.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

// Reads the join token of a state folder; an empty text if it has none.
Result<std::string> read_join_token(const std::filesystem::path& directory);
// Replaces the join token. A crash leaves no partial token.
Status write_join_token(const std::filesystem::path& directory, const std::string& token);
// The table of a backup's database that holds the join token (hub/registry/backup.h).
inline constexpr std::string_view backup_token_table = "backup_join_token";

}  // namespace moex
