#include "hub/commands/serve/drop_privileges.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "protocol/text.h"

namespace moex {
namespace {

void require(int result, const char* what) {
    if (result != 0) throw std::runtime_error(text("--user: ", what, ": ", std::strerror(errno)));
}

}  // namespace

Result<SystemUser> find_user(const std::string& name) {
    std::vector<char> buffer(1 << 16);
    passwd entry{};
    passwd* found = nullptr;
    if (getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || !found)
        return Error{ErrorCode::not_found,
                     text("--user: there is no user \"", name, "\" on this machine")};

    if (entry.pw_uid == 0)
        return Error{ErrorCode::invalid_argument, "--user: wanted a user without root's rights"};
    return SystemUser{name, entry.pw_uid, entry.pw_gid, entry.pw_dir};
}

Status give_folder(const std::filesystem::path& folder, const SystemUser& user) {
    std::error_code failure;
    if (std::filesystem::exists(folder, failure)) return {};

    const auto parent = folder.parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent, failure);

    constexpr mode_t owner_only = 0700;
    if (failure || mkdir(folder.c_str(), owner_only) != 0 ||
        chown(folder.c_str(), user.user_id, user.group_id) != 0)
        return Error{ErrorCode::io_error, text(folder.string(), ": cannot be made for ", user.name,
                                               ": ", std::strerror(errno))};
    return {};
}

ActingAs::ActingAs(const SystemUser& user) {
    require(initgroups(user.name.c_str(), user.group_id), "initgroups");
    require(setegid(user.group_id), "setegid");
    require(seteuid(user.user_id), "seteuid");
}

ActingAs::~ActingAs() {
    // The real user id of the process is still root, so these calls cannot fail.
    if (seteuid(0) != 0 || setegid(0) != 0) MOEX_CHECK(false, "root's id did not come back");
}

void become(const SystemUser& user) {
    require(initgroups(user.name.c_str(), user.group_id), "initgroups");
    require(setgid(user.group_id), "setgid");
    require(setuid(user.user_id), "setuid");
    if (setuid(0) == 0) throw std::runtime_error("--user: root's rights could be taken back");
}

}  // namespace moex
