// Encrypts pages of keys and values for the disk, and names their files so that a name says nothing
// about a text to those who lack the key.
//   file: "MxKe", u16 version, u16 0, salt[16], u64 counter; then the ciphertext; then tag[16]
// AES-256-GCM must never use a nonce twice with one key. Each process draws a random salt and
// derives a key from it, and its counter is the nonce; so neither a crash nor a restored backup
// repeats a pair. The tag covers the head of the file and its place (the file's name), so that no
// file can stand in for another.
// Source: NIST SP 800-38D (GCM, deterministic nonces); RFC 2104 (HMAC) as the derivation of keys.
// Owner: seal() and open() are for one thread; name() for any.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "hub/state/page_key.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

struct evp_cipher_ctx_st;

namespace moex {

using PageName = std::array<std::byte, 16>;

class PageCipher {
  public:
    explicit PageCipher(const PageKey& key);
    ~PageCipher();
    PageCipher(const PageCipher&) = delete;
    PageCipher& operator=(const PageCipher&) = delete;

    // Returns a name that follows from the key, the purpose and the bytes.
    PageName name(std::string_view purpose, ByteView bytes) const;
    Bytes seal(ByteView plain, std::string_view place);
    // Error bad_file: the file is damaged, is of another place, or was written with another key.
    Result<Bytes> open(ByteView sealed, std::string_view place);

  private:
    using Salt = std::array<std::byte, 16>;
    PageKey derive(const Salt& salt) const;

    PageKey key_, name_key_;
    Salt salt_{};
    PageKey own_key_;
    std::uint64_t counter_ = 0;
    // Keys of files that other processes wrote. Bounded: the oldest salts are dropped.
    std::map<Salt, PageKey> read_keys_;
    std::unique_ptr<evp_cipher_ctx_st, void (*)(evp_cipher_ctx_st*)> context_;
};

}  // namespace moex
