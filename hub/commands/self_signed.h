// Makes a self-signed TLS certificate, with which a person can try HTTPS at home.
#pragma once

#include <string>
#include <vector>

#include "protocol/result.h"

namespace moex {

struct Certificate {
    std::string certificate_pem, key_pem;
    std::string sha256_fingerprint;  // SHA-256 of the certificate as browsers show it: AB:CD:...
};

// Makes a certificate with an ECDSA P-256 key that signs itself. `names` become its subject
// alternative names: a text that parses as IP address becomes an address, any other text a DNS
// name.
Result<Certificate> make_self_signed(const std::vector<std::string>& names, int days);

}  // namespace moex
