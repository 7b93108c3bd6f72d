#include "hub/state/page_cipher.h"

#include <algorithm>
#include <cstring>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint32_t sealed_magic = 0x654b'784d;  // "MxKe"
constexpr std::uint16_t sealed_version = 1;
constexpr std::size_t head_bytes = 32, tag_bytes = 16, read_keys_max = 256;

const unsigned char* raw(const std::byte* bytes) {
    return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

PageKey hmac(const PageKey& key, std::string_view purpose, ByteView bytes) {
    Bytes message(purpose.size() + 1 + bytes.size());
    std::memcpy(message.data(), purpose.data(), purpose.size());
    std::copy(bytes.begin(), bytes.end(), message.begin() + purpose.size() + 1);
    PageKey out{};
    unsigned length = 0;
    MOEX_CHECK(HMAC(EVP_sha256(), key.data(), key.size(), raw(message.data()), message.size(),
                    raw(out.data()), &length) != nullptr,
               "HMAC failed");
    return out;
}

std::array<std::byte, 12> nonce_of(std::uint64_t counter) {
    std::array<std::byte, 12> nonce{};
    for (std::size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<std::byte>(counter >> (8 * i));
    return nonce;
}

}  // namespace

PageCipher::PageCipher(const PageKey& key)
    : key_(key),
      name_key_(hmac(key, "names", {})),
      context_(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free) {
    MOEX_CHECK(context_ && RAND_bytes(raw(salt_.data()), salt_.size()) == 1, "no random bytes");
    own_key_ = derive(salt_);
}

PageCipher::~PageCipher() {
    for (PageKey* key : {&key_, &name_key_, &own_key_}) OPENSSL_cleanse(key->data(), key->size());
    for (auto& [salt, key] : read_keys_) OPENSSL_cleanse(key.data(), key.size());
}

PageKey PageCipher::derive(const Salt& salt) const { return hmac(key_, "pages", salt); }

PageName PageCipher::name(std::string_view purpose, ByteView bytes) const {
    const PageKey long_name = hmac(name_key_, purpose, bytes);
    PageName name{};
    std::copy_n(long_name.begin(), name.size(), name.begin());
    return name;
}

Bytes PageCipher::seal(ByteView plain, std::string_view place) {
    ByteWriter out(head_bytes + plain.size() + tag_bytes);
    out.u32(sealed_magic);
    out.u16(sealed_version);
    out.u16(0);
    out.raw(salt_);
    out.u64(++counter_);
    Bytes sealed = std::move(out).take();
    sealed.resize(head_bytes + plain.size() + tag_bytes);

    EVP_CIPHER_CTX* const context = context_.get();
    const auto nonce = nonce_of(counter_);
    unsigned char* const body = raw(sealed.data()) + head_bytes;
    int length = 0;
    const bool ok =
        EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), nullptr, raw(own_key_.data()),
                           raw(nonce.data())) == 1 &&
        EVP_EncryptUpdate(context, nullptr, &length, raw(sealed.data()), head_bytes) == 1 &&
        EVP_EncryptUpdate(context, nullptr, &length, raw(as_byte_view(place).data()),
                          static_cast<int>(place.size())) == 1 &&
        EVP_EncryptUpdate(context, body, &length, raw(plain.data()),
                          static_cast<int>(plain.size())) == 1 &&
        EVP_EncryptFinal_ex(context, body + length, &length) == 1 &&
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, tag_bytes, body + plain.size()) == 1;
    MOEX_CHECK(ok, "AES-256-GCM failed");
    return sealed;
}

Result<Bytes> PageCipher::open(ByteView sealed, std::string_view place) {
    ByteReader in(sealed);
    const std::uint32_t magic = in.u32();
    const std::uint16_t version = in.u16(), flags = in.u16();
    Salt salt{};
    const ByteView salt_bytes = in.take(salt.size());
    const std::uint64_t counter = in.u64();
    if (in.overrun() || in.remaining_bytes() < tag_bytes || magic != sealed_magic ||
        version != sealed_version || flags != 0)
        return Error{ErrorCode::bad_file, "not an encrypted page of this version, or cut short"};
    std::copy(salt_bytes.begin(), salt_bytes.end(), salt.begin());

    if (read_keys_.size() >= read_keys_max && !read_keys_.contains(salt)) read_keys_.clear();
    const PageKey& key = read_keys_.try_emplace(salt, derive(salt)).first->second;
    const auto nonce = nonce_of(counter);
    Bytes plain(in.remaining_bytes() - tag_bytes);
    const ByteView body = in.take(plain.size());
    Bytes tag(tag_bytes);
    std::copy_n(in.take(tag_bytes).begin(), tag_bytes, tag.begin());

    EVP_CIPHER_CTX* const context = context_.get();
    int length = 0;
    const bool ok =
        EVP_DecryptInit_ex(context, EVP_aes_256_gcm(), nullptr, raw(key.data()),
                           raw(nonce.data())) == 1 &&
        EVP_DecryptUpdate(context, nullptr, &length, raw(sealed.data()), head_bytes) == 1 &&
        EVP_DecryptUpdate(context, nullptr, &length, raw(as_byte_view(place).data()),
                          static_cast<int>(place.size())) == 1 &&
        EVP_DecryptUpdate(context, raw(plain.data()), &length, raw(body.data()),
                          static_cast<int>(body.size())) == 1 &&
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_SET_TAG, tag_bytes, tag.data()) == 1 &&
        EVP_DecryptFinal_ex(context, raw(plain.data()) + length, &length) == 1;
    if (!ok)
        return Error{ErrorCode::bad_file,
                     "the page is damaged, was moved, or was written with another key"};
    return plain;
}

}  // namespace moex
