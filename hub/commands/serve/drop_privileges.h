// Gives up the rights of root: the hub binds its port as root, and then becomes a user without
// special rights.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "protocol/result.h"

namespace moex {

struct SystemUser {
    std::string name;
    uid_t user_id = 0;
    gid_t group_id = 0;
    std::filesystem::path home;
};

// Finds a user of the system by name. The error not_found names the user; invalid_argument means
// that the user is root.
Result<SystemUser> find_user(const std::string& name);

// Makes `folder` with `user` as its owner (mode 0700) if it does not exist. An existing folder
// keeps its owner.
Status give_folder(const std::filesystem::path& folder, const SystemUser& user);

// While the object exists, the process opens and makes files as `user`. The destructor makes the
// process root again, so that it can bind ports and read keys.
class ActingAs {
  public:
    explicit ActingAs(const SystemUser& user);
    ~ActingAs();
};

// Makes the process run as `user` until it ends. Throws std::runtime_error if the system refuses.
void become(const SystemUser& user);

}  // namespace moex
