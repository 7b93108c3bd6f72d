#include "hub/registry/join_token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/text.h"

namespace moex {

namespace fs = std::filesystem;

Result<std::string> read_join_token(const fs::path& directory) {
    const fs::path file = directory / "join_token";
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

// Writes a new file and renames it.
Status write_join_token(const fs::path& directory, const std::string& token) {
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

}  // namespace moex
