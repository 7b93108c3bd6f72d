#include "hub/commands/serve/serve_places.h"

#include <unistd.h>

#include "hub/registry/state_files.h"

namespace moex {

Result<std::optional<SystemUser>> serving_user(const AddressSettings& address) {
    if (address.user.empty()) return std::optional<SystemUser>();

    MOEX_ASSIGN(user, find_user(address.user));
    if (geteuid() == 0) return std::optional(std::move(user));
    if (user.user_id != geteuid())
        return Error{
            ErrorCode::invalid_argument,
            text("--user ", address.user, ": only root can become another user; the user with id ",
                 geteuid(), " started this hub")};
    return std::optional<SystemUser>();
}

Result<std::filesystem::path> serving_state_folder(const AddressSettings& address,
                                                   const std::optional<SystemUser>& user) {
    if (!address.state_directory.empty()) return address.state_directory;
    if (!user) return default_state_directory();

    std::error_code failure;
    if (!std::filesystem::is_directory(user->home, failure))
        return Error{ErrorCode::invalid_argument,
                     text("--user ", user->name, ": the user's home is ", user->home.string(),
                          ", which is not a folder; choose a folder for keys and counts with "
                          "--state DIR")};
    return user->home / ".local/state/moex";
}

}  // namespace moex
