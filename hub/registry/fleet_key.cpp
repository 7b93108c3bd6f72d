#include "hub/registry/fleet_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "hub/base/files.h"
#include "protocol/check.h"
#include "protocol/sha256.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint64_t file_bytes_max = 4096;
constexpr std::uint8_t sealed_version = 1;
// A sealed text: the version, the salt, the number of the text, the encrypted bytes, the tag.
constexpr std::size_t salt_bytes = 16, head_bytes = 1 + salt_bytes + 8, tag_bytes = 16;

const unsigned char* raw(const std::byte* bytes) {
    return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, void (*)(EVP_CIPHER_CTX*)>;
Cipher make_cipher() { return {EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free}; }

std::array<std::byte, 12> nonce_of(std::uint64_t number) {
    std::array<std::byte, 12> nonce{};
    for (std::size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<std::byte>(number >> (8 * i));
    return nonce;
}

}  // namespace

FleetKey::~FleetKey() { OPENSSL_cleanse(bits_.data(), bits_.size()); }

Result<FleetKey> FleetKey::read(const std::filesystem::path& file) {
    struct stat found {};
    if (::stat(file.c_str(), &found) == 0 && (found.st_mode & 077) != 0)
        return Error{ErrorCode::bad_file,
                     text(file.string(), ": other users of this machine may read it: chmod 600 ",
                          file.string())};
    MOEX_ASSIGN(content, read_text_file(file, file_bytes_max));
    const std::string line = content.substr(0, content.find_first_of("\r\n"));
    const auto bits = parse_sha256(line);
    if (!bits.ok())
        return Error{ErrorCode::bad_file,
                     text(file.string(), ": the first line has ", line.size(),
                          " characters, wanted 64 hexadecimal digits (moex-hub fleet key FILE "
                          "writes such a key)")};
    return FleetKey(*bits);
}

Status FleetKey::make(const std::filesystem::path& file) {
    Bits bits{};
    if (RAND_bytes(raw(bits.data()), bits.size()) != 1)
        return Error{ErrorCode::internal, "no random numbers from OpenSSL"};
    const std::string line = to_hex(bits) + '\n';
    OPENSSL_cleanse(bits.data(), bits.size());
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool is_written = fd >= 0 && ::write(fd, line.data(), line.size()) ==
                                           static_cast<ssize_t>(line.size());
    const int cause = errno;
    if (fd >= 0) ::close(fd);
    if (is_written) return {};
    return Error{ErrorCode::io_error,
                 text(file.string(), ": cannot write a key: ", std::strerror(cause))};
}

FleetKey::Bits FleetKey::derive(std::string_view purpose, ByteView salt) const {
    const std::unique_ptr<EVP_PKEY_CTX, void (*)(EVP_PKEY_CTX*)> context(
        EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr), &EVP_PKEY_CTX_free);
    Bits out{};
    std::size_t length = out.size();
    const std::string info = text("moex fleet v1 ", purpose);
    const bool ok = context && EVP_PKEY_derive_init(context.get()) == 1 &&
                    EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) == 1 &&
                    (salt.empty() ||
                     EVP_PKEY_CTX_set1_hkdf_salt(context.get(), raw(salt.data()),
                                                 static_cast<int>(salt.size())) == 1) &&
                    EVP_PKEY_CTX_set1_hkdf_key(context.get(), raw(bits_.data()),
                                               static_cast<int>(bits_.size())) == 1 &&
                    EVP_PKEY_CTX_add1_hkdf_info(context.get(), raw(as_byte_view(info).data()),
                                                static_cast<int>(info.size())) == 1 &&
                    EVP_PKEY_derive(context.get(), raw(out.data()), &length) == 1;
    MOEX_CHECK(ok && length == out.size(), "HKDF failed");
    return out;
}

std::string FleetKey::code_of(std::string_view words) const {
    Bits key = derive("requests"), code{};
    unsigned length = 0;
    const bool ok = HMAC(EVP_sha256(), key.data(), key.size(), raw(as_byte_view(words).data()),
                         words.size(), raw(code.data()), &length) != nullptr;
    OPENSSL_cleanse(key.data(), key.size());
    MOEX_CHECK(ok, "HMAC failed");
    return to_hex(code);
}

bool FleetKey::is_code_of(std::string_view code, std::string_view words) const {
    const std::string right = code_of(words);
    return code.size() == right.size() &&
           CRYPTO_memcmp(code.data(), right.data(), right.size()) == 0;
}

Sealer::Sealer(const FleetKey& key) : key_(key) {
    MOEX_CHECK(RAND_bytes(raw(salt_.data()), salt_.size()) == 1, "no random bytes");
    own_key_ = key_.derive("journal", salt_);
}

Bytes Sealer::seal(ByteView plain, std::string_view place) {
    const std::uint64_t number = ++counter_;
    ByteWriter head(head_bytes + plain.size() + tag_bytes);
    head.u8(sealed_version);
    head.raw(salt_);
    head.u64(number);
    Bytes sealed = std::move(head).take();
    sealed.resize(head_bytes + plain.size() + tag_bytes);

    const Cipher cipher = make_cipher();
    const auto nonce = nonce_of(number);
    unsigned char* const body = raw(sealed.data()) + head_bytes;
    int length = 0;
    const bool ok =
        EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, raw(own_key_.data()),
                           raw(nonce.data())) == 1 &&
        EVP_EncryptUpdate(cipher.get(), nullptr, &length, raw(sealed.data()), head_bytes) == 1 &&
        EVP_EncryptUpdate(cipher.get(), nullptr, &length, raw(as_byte_view(place).data()),
                          static_cast<int>(place.size())) == 1 &&
        EVP_EncryptUpdate(cipher.get(), body, &length, raw(plain.data()),
                          static_cast<int>(plain.size())) == 1 &&
        EVP_EncryptFinal_ex(cipher.get(), body + length, &length) == 1 &&
        EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, tag_bytes, body + plain.size()) ==
            1;
    MOEX_CHECK(ok, "AES-256-GCM failed");
    return sealed;
}

Result<Bytes> Sealer::open(ByteView sealed, std::string_view place) const {
    if (sealed.size() < head_bytes + tag_bytes)
        return Error{ErrorCode::bad_file, "a sealed text that is cut short"};
    ByteReader in(sealed);
    const std::uint8_t version = in.u8();
    const ByteView salt = in.take(salt_bytes);
    const auto nonce = nonce_of(in.u64());
    if (version != sealed_version)
        return Error{ErrorCode::bad_file, text("a sealed text of version ", +version)};

    Bytes plain(in.remaining_bytes() - tag_bytes);
    const ByteView body = in.take(plain.size());
    std::array<std::byte, tag_bytes> tag{};
    std::ranges::copy(in.take(tag_bytes), tag.begin());

    FleetKey::Bits key = key_.derive("journal", salt);
    const Cipher cipher = make_cipher();
    int length = 0;
    const bool ok =
        EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, raw(key.data()),
                           raw(nonce.data())) == 1 &&
        EVP_DecryptUpdate(cipher.get(), nullptr, &length, raw(sealed.data()), head_bytes) == 1 &&
        EVP_DecryptUpdate(cipher.get(), nullptr, &length, raw(as_byte_view(place).data()),
                          static_cast<int>(place.size())) == 1 &&
        EVP_DecryptUpdate(cipher.get(), raw(plain.data()), &length, raw(body.data()),
                          static_cast<int>(body.size())) == 1 &&
        EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, tag_bytes, tag.data()) == 1 &&
        EVP_DecryptFinal_ex(cipher.get(), raw(plain.data()) + length, &length) == 1;
    OPENSSL_cleanse(key.data(), key.size());
    if (ok) return plain;
    return Error{ErrorCode::bad_file,
                 "a sealed text was changed, was moved, or is of another fleet key"};
}

}  // namespace moex
