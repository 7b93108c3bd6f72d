// Makes a self-signed certificate, to try TLS at home.
#pragma once

#include <string>
#include <vector>

#include "protocol/result.h"

namespace moex {

struct Certificate {
    std::string certificate_pem, key_pem;
    std::string sha256_fingerprint;  // AB:CD:..., as browsers show it
};

// Makes a certificate with ECDSA P-256 that signs itself. `names` become its subject alternative
// names: IP addresses if they parse as such, and otherwise DNS names.
Result<Certificate> make_self_signed(const std::vector<std::string>& names, int days);

}  // namespace moex
