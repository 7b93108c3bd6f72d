#include "hub/registry/state_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "hub/registry/migrations.h"
#include "hub/registry/sqlite_database.h"
#include "protocol/text.h"

namespace moex {

namespace fs = std::filesystem;

namespace {

// Refuses a folder that has other files and is open to other users, since the hub must not take the
// access of these users away.
Status check_own_folder(const fs::path& directory, const struct stat& info) {
    if (!S_ISDIR(info.st_mode))
        return Error{ErrorCode::io_error,
                     text(directory.string(), ": the state folder is not a folder")};
    std::error_code error;
    if ((info.st_mode & 077) != 0 && !fs::is_empty(directory, error) &&
        !fs::exists(directory / "moex.sqlite", error))
        return Error{ErrorCode::invalid_argument,
                     text(directory.string(),
                          ": holds other files and is open to other users; give the hub a state "
                          "folder of its own")};
    return {};
}

Status check_writable(const fs::path& path) {
    if (::access(path.c_str(), W_OK) == 0) return {};
    return Error{ErrorCode::io_error, text(path.string(), ": this user may not write there")};
}

}  // namespace

// Makes the folder private to its user.
Status secure_directory(const fs::path& directory) {
    std::error_code error;
    const bool made = fs::create_directories(directory, error);
    if (error)
        return Error{ErrorCode::io_error,
                     text(directory.string(), ": cannot make the state folder: ", error.message())};

    struct stat info {};
    if (::stat(directory.c_str(), &info) != 0)
        return Error{ErrorCode::io_error,
                     text(directory.string(), ": the state folder is not a folder")};
    if (!made) MOEX_TRY(check_own_folder(directory, info));
    if ((info.st_mode & 0777) != 0700 && ::chmod(directory.c_str(), 0700) != 0)
        return Error{ErrorCode::io_error,
                     text(directory.string(), ": cannot make the state folder private (0700)")};

    return {};
}

Status check_state_directory(const fs::path& directory) {
    struct stat info {};
    std::error_code error;
    if (::stat(directory.c_str(), &info) != 0) {
        fs::path parent = fs::absolute(directory, error);
        while (!fs::exists(parent, error) && parent.has_relative_path())
            parent = parent.parent_path();
        if (!fs::is_directory(parent, error))
            return Error{ErrorCode::io_error, text(parent.string(), ": is not a folder")};
        return check_writable(parent);
    }

    MOEX_TRY(check_own_folder(directory, info));
    MOEX_TRY(check_writable(directory));
    const fs::path file = directory / "moex.sqlite";
    if (!fs::exists(file, error)) return {};
    MOEX_TRY(check_writable(file));
    MOEX_ASSIGN(database, SqliteDatabase::open(file));
    if (const Status known = check_schema(*database, registry_migrations()); !known.ok())
        return Error{known.error().code, text(file.string(), ": ", known.error().message)};
    return {};
}

// Sets the mode of the database before sqlite opens it, since sqlite gives its -wal and -shm files
// the same mode.
Status secure_file(const fs::path& file) {
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0)
        return Error{
            ErrorCode::io_error,
            text(file.string(), ": cannot open: ", std::generic_category().message(errno))};

    const bool ok = ::fchmod(descriptor, 0600) == 0;
    ::close(descriptor);
    if (!ok)
        return Error{ErrorCode::io_error, text(file.string(), ": cannot make it private (0600)")};

    return {};
}

Result<fs::path> default_state_directory() {
    const char* xdg = std::getenv("XDG_STATE_HOME");
    if (xdg && xdg[0] == '/') return fs::path(xdg) / "moex";

    constexpr std::string_view choose = "; choose a folder for keys and counts with --state DIR";
    const char* home = std::getenv("HOME");
    if (!home || home[0] != '/')
        return Error{ErrorCode::invalid_argument,
                     text("neither XDG_STATE_HOME nor HOME names a folder", choose)};
    std::error_code failure;
    if (!fs::is_directory(home, failure))
        return Error{ErrorCode::invalid_argument,
                     text("HOME is ", home, ", which is not a folder", choose)};
    return fs::path(home) / ".local" / "state" / "moex";
}

}  // namespace moex
