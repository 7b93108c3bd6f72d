// The hub's address and the certificates to trust: every connection of a native worker needs both.
#pragma once

#include "web-worker/native/hub_url.h"

namespace moex::native {

struct HubAddress {
    HubUrl url;
    std::string ca_file;  // file of a further CA certificate to trust
    bool insecure_tls = false;
};

}  // namespace moex::native
