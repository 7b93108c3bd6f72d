// The challenges that a worker or a contributor signs, and the check of a signature with the
// key that the signer keeps (protocol/identity.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/identity.h"

namespace moex {

// Makes challenges: a worker signs one for its connection, a contributor signs one to have its
// records deleted. A challenge is a MAC of its purpose with a secret of this process, so that no
// challenge has to be stored.
class Nonces {
  public:
    Nonces();
    std::string for_worker(std::uint64_t worker_id) const;
    // Makes a challenge, which is valid for five to ten minutes.
    std::string to_forget(std::int64_t now_s) const;
    bool fits_to_forget(std::string_view challenge, std::int64_t now_s) const;

  private:
    std::string of(std::string_view purpose, std::uint64_t number) const;
    std::string secret_;
};

// Verifies an Ed25519 signature (RFC 8032). Returns false also if the key's bytes are no valid key.
bool signature_fits(const PublicKey& key, const Signature& signature, std::string_view text);

}  // namespace moex
