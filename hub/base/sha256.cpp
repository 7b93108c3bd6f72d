#include "hub/base/sha256.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include "protocol/check.h"
#include "protocol/text.h"

namespace moex {

Sha256 sha256(ByteView bytes) {
    Sha256 hash{};
    unsigned length = 0;
    MOEX_CHECK(EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(hash.data()),
                          &length, EVP_sha256(), nullptr) == 1,
               "SHA-256 failed");
    return hash;
}

Result<Sha256> sha256_file(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return Error{errno == ENOENT ? ErrorCode::not_found : ErrorCode::io_error,
                     text(path.string(), ": ", std::strerror(errno))};

    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          &EVP_MD_CTX_free);
    MOEX_CHECK(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1,
               "SHA-256 failed");

    std::vector<std::byte> window(1u << 20);
    for (;;) {
        const ssize_t count = ::read(fd, window.data(), window.size());
        if (count < 0 && errno == EINTR) continue;

        if (count < 0) {
            const int cause = errno;
            ::close(fd);
            return Error{ErrorCode::io_error, text(path.string(), ": ", std::strerror(cause))};
        }

        if (count == 0) break;
        MOEX_CHECK(
            EVP_DigestUpdate(context.get(), window.data(), static_cast<std::size_t>(count)) == 1,
            "SHA-256 failed");
    }

    ::close(fd);
    Sha256 hash{};
    MOEX_CHECK(EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(hash.data()),
                                  nullptr) == 1,
               "SHA-256 failed");

    return hash;
}

}  // namespace moex
