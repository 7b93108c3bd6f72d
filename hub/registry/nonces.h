// The challenges that a worker or a contributor signs with the key that it keeps
// (protocol/identity.h). signature_fits() in hub/base/signing_key.h checks the signature.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace moex
