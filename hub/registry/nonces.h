// What a worker, or its owner, is given to sign, and whether the signature fits the key that each
// of them keeps (protocol/identity.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/identity.h"

namespace moex {

// What is signed once: by a worker for its connection, by its owner to be forgotten. Made from a
// secret of this process and what it is for, so that nothing has to be kept.
class Nonces {
  public:
    Nonces();
    std::string for_worker(std::uint64_t worker_id) const;
    // Fits for five to ten minutes.
    std::string to_forget(std::int64_t now_s) const;
    bool fits_to_forget(std::string_view challenge, std::int64_t now_s) const;

  private:
    std::string of(std::string_view purpose, std::uint64_t number) const;
    std::string secret_;
};

// RFC 8032. False as well for bytes that are no key.
bool signature_fits(const PublicKey& key, const Signature& signature, std::string_view text);

}  // namespace moex
