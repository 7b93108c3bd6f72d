// A self-signed certificate for trying TLS at home.
#pragma once

#include <string>
#include <vector>

#include "protocol/result.h"

namespace moex {

struct Certificate {
    std::string certificate_pem, key_pem;
    std::string sha256_fingerprint;  // AB:CD:..., as browsers show it
};

// ECDSA P-256, signed by itself. `names` become its subject alternative names: DNS names, or IP
// addresses where they parse as one.
Result<Certificate> make_self_signed(const std::vector<std::string>& names, int days);

}  // namespace moex
