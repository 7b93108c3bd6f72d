// Source: the SQLite manual, "Using the SQLite Online Backup API".
#include "hub/registry/backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "hub/registry/join_token_file.h"
#include "hub/registry/sqlite_database.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// The name of a copy while it is written. The destructor removes this name.
class PartFile {
  public:
    explicit PartFile(fs::path path) : path_(std::move(path)) {}
    PartFile(const PartFile&) = delete;
    ~PartFile() {
        std::error_code ignored;
        fs::remove(path_, ignored);
    }
    // Gives the copy its final name.
    Status finish(const fs::path& file) {
        // Unlike rename(), link() never replaces a file that another process has just made.
        if (::link(path_.c_str(), file.c_str()) != 0)
            return Error{ErrorCode::io_error,
                         text(file.string(), ": ", std::generic_category().message(errno))};
        return {};
    }

  private:
    const fs::path path_;
};

Status write_copy(const fs::path& directory, const fs::path& file) {
    MOEX_ASSIGN(token, read_join_token(directory));
    MOEX_ASSIGN(source, SqliteDatabase::open(directory / "moex.sqlite"));
    MOEX_ASSIGN(copy, SqliteDatabase::open(file));
    MOEX_TRY(source->copy_to(*copy));
    // One file, without the -wal file that the state folder has beside its database.
    MOEX_TRY(copy->execute(text(
        "PRAGMA synchronous=FULL; PRAGMA journal_mode=DELETE; DROP TABLE IF "
        "EXISTS ",
        backup_token_table, "; CREATE TABLE ", backup_token_table, " (token TEXT NOT NULL);")));
    Statement insert(*copy, text("INSERT INTO ", backup_token_table, " VALUES (?)"));
    if (token.empty()) return {};
    return insert.bind(std::string_view(token)).run();
}

}  // namespace

Status back_up_state(const fs::path& directory, const fs::path& file) {
    std::error_code failure;
    if (!fs::exists(directory / "moex.sqlite", failure))
        return Error{ErrorCode::not_found,
                     text(directory.string(),
                          ": no hub keeps its state here; --state names the folder of one")};
    const auto refuse_existing = [](const fs::path& path) {
        return Error{ErrorCode::invalid_argument,
                     text(path.string(), ": exists already; name a new file, or remove this one")};
    };
    if (fs::exists(fs::symlink_status(file, failure))) return refuse_existing(file);

    const fs::path part = file.string() + ".part";
    const int descriptor = ::open(part.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor < 0 && errno == EEXIST) return refuse_existing(part);
    if (descriptor < 0)
        return Error{ErrorCode::io_error,
                     text(part.string(), ": ", std::generic_category().message(errno))};
    ::close(descriptor);
    PartFile unfinished(part);

    if (const Status written = write_copy(directory, part); !written.ok())
        return Error{written.error().code,
                     text(file.string(), ": not written: ", written.error().message)};
    return unfinished.finish(file);
}

}  // namespace moex
