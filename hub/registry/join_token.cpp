// The token of the join link, which is stored in plain text, since the link is shown at every
// start.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/registry/registry.h"
#include "hub/registry/registry_state.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// Reads the join token from its file; returns an empty string if there is no file.
Result<std::string> read_token(const fs::path& file) {
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return std::string();

    char buffer[256];
    const ssize_t size = ::read(descriptor, buffer, sizeof buffer);
    ::close(descriptor);
    std::string token(buffer, size > 0 ? static_cast<std::size_t>(size) : 0);
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' '))
        token.pop_back();

    if (token.size() < 16)
        return Error{
            ErrorCode::bad_file,
            text(file.string(), ": holds ", token.size(),
                 " characters, a token of at least 16 is wanted; delete it for a new one")};
    ::chmod(file.c_str(), 0600);
    return token;
}

}  // namespace

// Writes the join token to a new file and renames the file, so that a crash leaves no partial
// token.
Status RegistryState::write_join_token(const std::string& token) const {
    const fs::path file = directory / "join_token", fresh = directory / "join_token.new";
    const int descriptor = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const std::string line = token + "\n";
    bool ok = descriptor >= 0 && ::fchmod(descriptor, 0600) == 0 &&
              ::write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    if (descriptor >= 0) {
        ok = ::fsync(descriptor) == 0 && ok;
        ::close(descriptor);
    }

    if (!ok || ::rename(fresh.c_str(), file.c_str()) != 0)
        return Error{ErrorCode::io_error, text(file.string(), ": cannot write the join token")};
    return {};
}

Result<std::string> read_join_token(const fs::path& directory) {
    return read_token(directory / "join_token");
}

Status RegistryState::restore_join_token() {
    std::string token;
    {
        Statement table(*database, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?");
        if (!table.bind(backup_token_table).step()) return table.status();
    }
    {
        Statement select(*database, text("SELECT token FROM ", backup_token_table));
        if (select.step()) token = select.text_column(0);
        MOEX_TRY(select.status());
    }
    if (!token.empty()) MOEX_TRY(write_join_token(token));
    return database->execute(text("DROP TABLE ", backup_token_table));
}

Result<std::string> RegistryState::load_join_token() {
    if (!join_token.empty()) return join_token;

    MOEX_ASSIGN(token, read_join_token(directory));
    if (token.empty()) {
        MOEX_ASSIGN(fresh, random_key(""));
        MOEX_TRY(write_join_token(fresh));
        token = std::move(fresh);
    }
    return join_token = token;
}

Result<std::string> Registry::join_token() {
    const std::lock_guard lock(state_->keys_mutex);
    return state_->load_join_token();
}

Result<std::string> Registry::rotate_join_token() {
    MOEX_ASSIGN(token, random_key(""));
    {
        const std::lock_guard lock(state_->keys_mutex);
        MOEX_TRY(state_->write_join_token(token));
        state_->join_token = token;
    }
    MOEX_TRY(set_key(Role::join, join_link_name, token));
    return token;
}

bool Registry::join_allowed(std::string_view token) const {
    const std::optional<Role> role = key_role(token);
    bool is_token = false;
    {
        const std::lock_guard lock(state_->keys_mutex);
        is_token = !state_->join_token.empty() && hash_key(state_->join_token) == hash_key(token);
    }
    return is_token || role == Role::join || role == Role::admin;
}

}  // namespace moex
