#include "hub/state/page_key.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <openssl/rand.h>
#include <unistd.h>

#include "hub/base/files.h"
#include "protocol/sha256.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint64_t file_bytes_max = 4096;

Result<PageKey> read_key(const std::filesystem::path& path) {
    MOEX_ASSIGN(content, read_text_file(path, file_bytes_max));
    const std::string line = content.substr(0, content.find_first_of("\r\n"));
    const auto key = parse_sha256(line);
    if (!key.ok())
        return Error{ErrorCode::bad_file,
                     text(path.string(), ": the first line has ", line.size(),
                          " characters, wanted 64 hexadecimal digits (openssl rand -hex 32)")};
    return PageKey(*key);
}

Result<PageKey> make_key(const std::filesystem::path& path) {
    PageKey key{};
    MOEX_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(key.data()), key.size()) == 1,
               "no random bytes");
    const std::string line = to_hex(key) + "\n";
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool is_written = fd >= 0 && ::write(fd, line.data(), line.size()) ==
                                           static_cast<ssize_t>(line.size());
    const int cause = errno;
    if (fd >= 0) ::close(fd);
    if (is_written) return key;
    return Error{ErrorCode::io_error,
                 text(path.string(), ": cannot write a key: ", std::strerror(cause))};
}

}  // namespace

Result<PageKey> load_page_key(const PageKeyPlaces& places) {
    if (!places.file.empty()) return read_key(places.file);
    if (!places.credential.empty()) {
        auto key = read_key(places.credential);
        if (key.ok() || key.error().code != ErrorCode::not_found) return key;
    }
    auto key = read_key(places.made);
    if (key.ok() || key.error().code != ErrorCode::not_found) return key;
    return make_key(places.made);
}

}  // namespace moex
