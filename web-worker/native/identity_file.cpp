#include "web-worker/native/identity_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace moex::native {
namespace {

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// Reads a private key from a file. Returns null if the file does not exist (see errno) or holds no
// key.
EVP_PKEY* read_key(const std::filesystem::path& path) {
    const File file(std::fopen(path.c_str(), "re"));
    return file ? PEM_read_PrivateKey(file.get(), nullptr, nullptr, nullptr) : nullptr;
}

Result<EVP_PKEY*> make_key(const std::filesystem::path& path) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const File file(descriptor < 0 ? nullptr : ::fdopen(descriptor, "w"));
    if (!file)
        return Error{ErrorCode::io_error,
                     text("cannot write ", path.string(), ": ", std::strerror(errno))};

    EVP_PKEY* key = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
    const bool written = key != nullptr &&
                         PEM_write_PKCS8PrivateKey(file.get(), key, nullptr, nullptr, 0, nullptr,
                                                   nullptr) == 1 &&
                         std::fflush(file.get()) == 0;
    if (written) return key;
    EVP_PKEY_free(key);
    return Error{ErrorCode::io_error, text("cannot write a key to ", path.string())};
}

}  // namespace

void IdentityFile::FreeKey::operator()(void* key) const {
    EVP_PKEY_free(static_cast<EVP_PKEY*>(key));
}

Result<IdentityFile> IdentityFile::open(const std::filesystem::path& path) {
    IdentityFile identity;
    if (std::filesystem::exists(path)) {
        identity.key_.reset(read_key(path));
    } else {
        MOEX_ASSIGN(made, make_key(path));
        identity.key_.reset(made);
    }

    std::size_t size = identity.public_key_.size();
    const auto* key = static_cast<const EVP_PKEY*>(identity.key_.get());
    if (key == nullptr || EVP_PKEY_get_id(key) != EVP_PKEY_ED25519 ||
        EVP_PKEY_get_raw_public_key(
            key, reinterpret_cast<unsigned char*>(identity.public_key_.data()), &size) != 1)
        return Error{ErrorCode::bad_file, text(path.string(),
                                               ": holds no Ed25519 key in PEM; `openssl genpkey "
                                               "-algorithm ed25519` makes one")};
    return identity;
}

Result<Signature> IdentityFile::sign(std::string_view text) const {
    Signature signature{};
    std::size_t size = signature.size();
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    auto* key = static_cast<EVP_PKEY*>(key_.get());
    const bool good = context != nullptr &&
                      EVP_DigestSignInit(context, nullptr, nullptr, nullptr, key) == 1 &&
                      EVP_DigestSign(context, reinterpret_cast<unsigned char*>(signature.data()),
                                     &size, reinterpret_cast<const unsigned char*>(text.data()),
                                     text.size()) == 1;
    EVP_MD_CTX_free(context);
    if (!good) return Error{ErrorCode::internal, "OpenSSL did not sign"};
    return signature;
}

}  // namespace moex::native
