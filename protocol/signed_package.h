// Signatures of a package's manifest and of a hub's pages, and the keys that a program knows. The
// manifest has the hash of every other file of a package, so its signature covers the package.
//
// A worker, a tab or a hub pins the key of a signer at first use and refuses another key from then
// on. A signer may change its key: the old key signs the new one, and the signature carries all
// such changes, so that a program that knows any earlier key can follow them:
//   pinned a; the signature is by c, with the changes a -> b (signed by a), b -> c (signed by b)
// The bytes and the texts are in protocol/PROTOCOL.md, "Signatures". This file has no library of
// cryptography: callers verify with a function of their own. Source: RFC 8032 (Ed25519).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/identity.h"
#include "protocol/sha256.h"

namespace moex {

inline constexpr std::size_t key_changes_max = 64;
inline constexpr std::size_t signature_json_bytes_max = 1u << 20;
// The file in which a package has the signature of its publisher.
inline constexpr const char* signature_file_name = "signature.json";

// Returns true if `signature` is the signature of `text` by `key`.
using SignatureFits =
    std::function<bool(const PublicKey& key, const Signature& signature, std::string_view text)>;

// The old key `from` has signed that `to` replaces it.
struct KeyChange {
    PublicKey from{}, to{};
    Signature signature{};
};

struct SignedManifest {
    PublicKey key{};
    std::vector<KeyChange> changes;  // the oldest first
    Sha256 sha256{};                 // of manifest.json
    std::uint64_t size_bytes = 0;    // of manifest.json
    Signature signature{};
};

// These functions return the texts that are signed.
std::string manifest_text(const Sha256& manifest, std::uint64_t size_bytes);
// `lines`: one line for each file of the pages, "PATH SHA256\n", sorted by path.
std::string pages_text(std::string_view lines);
// `layer`: a blob that the hub made of the package's files (protocol/span_layer.h).
std::string layer_text(const Sha256& manifest, const Sha256& layer);
std::string key_change_text(const PublicKey& from, const PublicKey& to);

// Returns the form in which people compare keys: "3f9a 01c2 ...", the first 128 bits of the key.
std::string fingerprint_of(const PublicKey& key);

std::string signed_manifest_to_json(const SignedManifest& signed_manifest);
// Parses the JSON; members that it does not know are passed over. Errors name the JSON by `what`.
Result<SignedManifest> parse_signed_manifest(std::string_view json, const char* what);
// Error hash_mismatch: the signature does not fit.
Status check_signature(const SignedManifest& signed_manifest, const SignatureFits& fits);

// Follows the changes from `pinned`. Returns true if they lead to the key of `signed_manifest`, or
// if it is the pinned key itself.
bool is_successor(const PublicKey& pinned, const SignedManifest& signed_manifest,
                  const SignatureFits& fits);

// Returns the hashes of all blobs that a manifest names, without reading its other fields.
Result<std::set<Sha256>> blobs_of_manifest(std::string_view manifest_json);

// The keys that a program has pinned, by the signer's name: one line "NAME KEY" each, where KEY has
// 64 hexadecimal digits. Lines that begin with '#' are comments.
class KnownKeys {
  public:
    static Result<KnownKeys> parse(std::string_view content, std::string_view what);
    std::string to_text() const;

    std::optional<PublicKey> find(std::string_view name) const;
    void pin(std::string_view name, const PublicKey& key);

  private:
    std::map<std::string, PublicKey, std::less<>> keys_;
};

// The result of judge_signer().
enum class SignerKey {
    known,    // the pinned key
    first,    // no key was pinned; the signer's key has been pinned
    changed,  // a lawful successor of the pinned key, which it has replaced
};
// Compares the signer `name` with the key that is pinned for it, and pins its key where that is
// due. `signed_manifest` is null if the signer sent no signature. Error unauthorized: another key
// than the pinned one, no signature although a key is pinned, or a signature that does not fit. The
// message names both keys.
Result<SignerKey> judge_signer(std::string_view name, const SignedManifest* signed_manifest,
                               KnownKeys& known, const SignatureFits& fits);

}  // namespace moex
