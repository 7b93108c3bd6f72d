// GETs to one hub, one after the other over a kept connection, plain or TLS.
// Blocking, with a deadline for each operation; of one thread.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "protocol/bytes.h"
#include "web-worker/native/hub_address.h"

namespace moex::native {

class HttpClient {
  public:
    explicit HttpClient(HubAddress hub);
    ~HttpClient();

    struct Reader {
        // The head came. False: the body is not wanted, and the connection is closed.
        std::function<bool(unsigned status)> begin;
        // The next piece of the body. False: enough, likewise.
        std::function<bool(ByteView piece)> take;
    };
    // Asks for `path` from the byte `first` on: the hub answers 206, or 200 with the whole. An
    // error says how the line broke; what `take` has got by then is good.
    Status get(std::string_view path, std::uint64_t first, const Reader& reader);

  private:
    struct Connection;
    HubAddress hub_;
    std::unique_ptr<Connection> connection_;
};

}  // namespace moex::native
