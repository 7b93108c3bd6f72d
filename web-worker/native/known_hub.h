// The hub's key, pinned at first use: before each connection a worker fetches the hub's signature
// of the manifest (/api/signature), compares the key with the pinned one, and reads which blobs the
// manifest names. The worker then takes no other blob. A hub that signs nothing is accepted as long
// as no key is pinned for it.
#pragma once

#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "protocol/signed_package.h"
#include "web-worker/native/hub_address.h"

namespace moex::native {

// What a hub's signature says; empty for a hub that signs nothing.
struct SignedHub {
    bool is_signed = false;
    std::string package_sha256;  // of the manifest, 64 digits
    std::set<Sha256> blobs;
    PublicKey key{};

    // Returns true if the hub signed the blob of a layer (protocol/span_layer.h).
    bool has_signed_layer(const Sha256& blob, const Signature& signature) const;
};

// Thread-safe. The workers of a process share one object, also for several hubs.
class KnownHub {
  public:
    // `file`: keeps the pinned keys, one line "HOST:PORT/PATH KEY" each; empty: they are pinned for
    // this run only. `wanted`: the key that the operator gave; it replaces the pinned one.
    KnownHub(std::filesystem::path file, std::optional<PublicKey> wanted);

    // Fetches and verifies the signature of `hub`; blocks. Error unauthorized: the hub is another
    // one than the pinned one; a retry would not help. Other errors: it could not be reached, or
    // its signature could not be read.
    Result<SignedHub> check(const HubAddress& hub);
    // Ends a check() that runs on another thread, and all later ones, with an error.
    void stop() { stopping_ = true; }

  private:
    Status load();
    Result<SignedHub> judge(const std::string& name, const std::optional<SignedManifest>& signature,
                            Bytes manifest);
    Status keep() const;

    const std::filesystem::path file_;
    const std::optional<PublicKey> wanted_;
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    bool loaded_ = false;
    std::set<std::string> given_;  // the hubs for which `wanted_` was pinned
    KnownKeys known_;
    // The newest manifest that was fetched, and what it says.
    SignedHub newest_;
};

}  // namespace moex::native
