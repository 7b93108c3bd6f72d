#include "web-worker/native/worker_key.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>

namespace moex::native {
namespace {
constexpr std::size_t key_digits = 32;
constexpr const char* file_name = "worker-key";

bool is_key(const std::string& text) {
    return text.size() == key_digits &&
           text.find_first_not_of("0123456789abcdef") == std::string::npos;
}
}  // namespace

std::string random_worker_key() {
    std::random_device device;
    std::string key;
    for (std::size_t i = 0; i < key_digits; ++i) key += "0123456789abcdef"[device() % 16];
    return key;
}

Result<std::string> kept_worker_key(const std::filesystem::path& folder) {
    const std::filesystem::path path = folder / file_name;
    std::string key;
    if (std::ifstream in(path); in >> key && is_key(key)) return key;

    key = random_worker_key();
    const std::filesystem::path part = path.string() + ".part";
    ::unlink(part.c_str());  // a file left by an interrupted start, with any mode
    const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const std::string line = key + '\n';
    bool written = file >= 0 &&
                   ::write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    const int write_error = errno;
    if (file >= 0) ::close(file);
    if (!written)
        return Error{ErrorCode::io_error,
                     text("cannot write ", part.string(), ": ", std::strerror(write_error))};
    std::error_code failed;
    std::filesystem::rename(part, path, failed);
    if (failed)
        return Error{ErrorCode::io_error,
                     text("cannot write ", path.string(), ": ", failed.message())};
    return key;
}

}  // namespace moex::native
