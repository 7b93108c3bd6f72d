// An Ed25519 key that signs packages and pages, in a file: PKCS#8 in PEM, as `openssl genpkey
// -algorithm ed25519` writes it. A second file beside it, FILE.changes, has the keys that it
// replaced, each with the signature of its successor (protocol/signed_package.h).
// Source: RFC 8032 (Ed25519).
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "protocol/signed_package.h"

namespace moex {

// Immutable, except for renew(); sign() is thread-safe.
class SigningKey {
  public:
    // Reads the key from `file`, or makes the file (mode 0600) if it does not exist. Errors name
    // the file.
    static Result<SigningKey> open(const std::filesystem::path& file);

    const PublicKey& public_key() const { return public_key_; }
    const std::vector<KeyChange>& changes() const { return changes_; }
    Result<Signature> sign(std::string_view text) const;
    Result<SignedManifest> sign_manifest(const Sha256& manifest, std::uint64_t size_bytes) const;

    // Replaces the key by a new one, which the old key signs. The files are written before this
    // object changes. The old key is deleted.
    Status renew();

  private:
    struct FreeKey {
        void operator()(void* key) const;
    };
    using Key = std::unique_ptr<void, FreeKey>;  // EVP_PKEY
    explicit SigningKey(std::filesystem::path file) : file_(std::move(file)) {}
    Status take(Key key);
    Status read_changes();
    std::filesystem::path changes_file() const { return file_.string() + ".changes"; }

    std::filesystem::path file_;
    Key key_;
    PublicKey public_key_{};
    std::vector<KeyChange> changes_;
};

// Verifies an Ed25519 signature (RFC 8032). Returns false also if the key's bytes are no valid key.
bool signature_fits(const PublicKey& key, const Signature& signature, std::string_view text);

// Writes a file of mode `mode` under another name and renames it, so that a crash leaves the old
// file or the new one. Errors name the file.
Status replace_file(const std::filesystem::path& file, std::string_view content, unsigned mode);

}  // namespace moex
