// SHA-256 of bytes, of bytes that grow, and of files, by OpenSSL. The type and its hexadecimal
// form: protocol/sha256.h. Source: FIPS 180-4.
#pragma once

#include <filesystem>
#include <memory>

#include "protocol/bytes.h"
#include "protocol/result.h"
#include "protocol/sha256.h"

struct evp_md_ctx_st;

namespace moex {

Sha256 sha256(ByteView bytes);

// The SHA-256 of bytes that are added one piece after the other. A copy goes on by itself.
//   hash.add("ab"); hash.value() is that of "ab"; hash.add("c"); hash.value() is that of "abc"
class GrowingSha256 {
  public:
    GrowingSha256();
    GrowingSha256(const GrowingSha256& other);
    GrowingSha256& operator=(const GrowingSha256& other);
    ~GrowingSha256() = default;
    void add(ByteView bytes);
    Sha256 value() const;  // of all bytes so far

  private:
    std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

Result<Sha256> sha256_file(const std::filesystem::path& path);

}  // namespace moex
