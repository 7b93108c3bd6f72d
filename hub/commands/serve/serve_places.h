// The user and the state folder of a hub, as its settings and its environment choose them. `serve`
// and the checks of its settings use the same choice.
#pragma once

#include <filesystem>
#include <optional>

#include "hub/commands/serve/drop_privileges.h"
#include "hub/commands/serve/serve_settings.h"

namespace moex {

// Returns the user that the hub becomes, or nullopt if the process keeps its user. Error
// invalid_argument: --user names another user, and only root can become another user.
Result<std::optional<SystemUser>> serving_user(const AddressSettings& address);

// Returns the folder of the hub's state. Error invalid_argument: no setting and no variable names a
// folder; the sentence says what to choose.
Result<std::filesystem::path> serving_state_folder(const AddressSettings& address,
                                                   const std::optional<SystemUser>& user);

}  // namespace moex
