// The Ed25519 key of whoever runs this worker, in a file: PKCS#8 in PEM, as `openssl genpkey
// -algorithm ed25519` writes it. What its workers did adds up at a hub.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "protocol/identity.h"

namespace moex::native {

class IdentityFile {
  public:
    // Reads `file`, or makes it (0600) when it is not there. An error names the file.
    static Result<IdentityFile> open(const std::filesystem::path& file);

    const PublicKey& public_key() const { return public_key_; }
    Result<Signature> sign(std::string_view text) const;

  private:
    struct FreeKey {
        void operator()(void* key) const;
    };
    std::unique_ptr<void, FreeKey> key_;  // EVP_PKEY
    PublicKey public_key_{};
};

}  // namespace moex::native
