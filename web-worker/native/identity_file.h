// The Ed25519 key of the contributor who runs this worker, in a file: PKCS#8 in PEM, as `openssl
// genpkey -algorithm ed25519` writes it. A hub adds up the work of all workers that sign with it.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "protocol/identity.h"

namespace moex::native {

class IdentityFile {
  public:
    // Reads the key from `file`, or creates the file (mode 0600) if it does not exist. An error
    // names the file.
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
