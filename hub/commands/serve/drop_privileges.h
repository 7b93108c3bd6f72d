// Gives up root: the hub binds its port, and then becomes a user without rights.
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

// Finds a user. not_found names the user; invalid_argument if the user is root.
Result<SystemUser> find_user(const std::string& name);

// Makes `folder` for the user (0700) if it does not exist. An existing folder keeps its owner.
Status give_folder(const std::filesystem::path& folder, const SystemUser& user);

// Opens and makes files as `user` during its lifetime. The destructor restores root, which binds
// ports and reads keys.
class ActingAs {
  public:
    explicit ActingAs(const SystemUser& user);
    ~ActingAs();
};

// Becomes the user until the process ends. Throws std::runtime_error if the system refuses.
void become(const SystemUser& user);

}  // namespace moex
