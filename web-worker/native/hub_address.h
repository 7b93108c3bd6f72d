// Where the hub is and whom to trust on the way to it: what every connection of a native worker
// needs.
#pragma once

#include "web-worker/native/hub_url.h"

namespace moex::native {

struct HubAddress {
    HubUrl url;
    std::string ca_file;  // a further certificate to trust
    bool insecure_tls = false;
};

}  // namespace moex::native
