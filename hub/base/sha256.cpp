#include "hub/base/sha256.h"

#include <cerrno>
#include <cstring>
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

GrowingSha256::GrowingSha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    MOEX_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
               "SHA-256 failed");
}

GrowingSha256::GrowingSha256(const GrowingSha256& other) : GrowingSha256() { *this = other; }

GrowingSha256& GrowingSha256::operator=(const GrowingSha256& other) {
    MOEX_CHECK(EVP_MD_CTX_copy_ex(context_.get(), other.context_.get()) == 1, "SHA-256 failed");
    return *this;
}

void GrowingSha256::add(ByteView bytes) {
    MOEX_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "SHA-256 failed");
}

Sha256 GrowingSha256::value() const {
    const GrowingSha256 copy = *this;
    Sha256 hash{};
    MOEX_CHECK(EVP_DigestFinal_ex(copy.context_.get(),
                                  reinterpret_cast<unsigned char*>(hash.data()), nullptr) == 1,
               "SHA-256 failed");
    return hash;
}

Result<Sha256> sha256_file(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return Error{errno == ENOENT ? ErrorCode::not_found : ErrorCode::io_error,
                     text(path.string(), ": ", std::strerror(errno))};

    GrowingSha256 hash;
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
        hash.add(ByteView(window).first(static_cast<std::size_t>(count)));
    }

    ::close(fd);
    return hash.value();
}

}  // namespace moex
