#include "hub/commands/state_folder.h"

#include "hub/registry/state_files.h"

namespace moex {

Result<std::filesystem::path> state_folder(const Settings& settings) {
    std::filesystem::path chosen = settings.text("state");
    if (!chosen.empty()) return chosen;
    return default_state_directory();
}

}  // namespace moex
