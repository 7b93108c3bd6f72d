// Not staying root: the hub binds its port and then becomes somebody without rights.
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

// not_found names the user; invalid_argument for root itself.
Result<SystemUser> find_user(const std::string& name);

// Makes `folder` for the user (0700) where there is none; one that is there keeps its owner.
Status give_folder(const std::filesystem::path& folder, const SystemUser& user);

// While it lives, files are opened and made as `user`. Root comes back at the end, to bind ports
// and read keys.
class ActingAs {
  public:
    explicit ActingAs(const SystemUser& user);
    ~ActingAs();
};

// For good. Throws std::runtime_error when the system refuses.
void become(const SystemUser& user);

}  // namespace moex
