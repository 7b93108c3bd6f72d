// Sends GET requests to one hub, one after another over a kept connection, plain or TLS. Calls
// block; each network operation has a deadline. A client belongs to one thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "protocol/bytes.h"
#include "web-worker/native/hub_address.h"

namespace moex::native {

class HttpClient {
  public:
    // A request ends with an error soon after `*stopping` becomes true; null: only at its deadline.
    explicit HttpClient(HubAddress hub, const std::atomic<bool>* stopping = nullptr);
    ~HttpClient();
    const HubAddress& hub() const { return hub_; }

    struct Reader {
        // Called when the head of the response has arrived. Returns false if the caller does not
        // want the body; the connection is then closed.
        std::function<bool(unsigned status)> begin;
        // Called with the next piece of the body, which may be in the memory of `room`. Returns
        // false to stop; the connection is then closed.
        std::function<bool(ByteView piece)> take;
        // Optional. Returns memory for the next bytes of the body, which are read from the socket
        // into it. Where it is empty, the client has memory of its own for them.
        std::function<std::span<std::byte>()> room{};
    };
    // Requests `path` from the byte `first` on: the hub answers 206, or 200 with the whole file. An
    // error says how the connection broke; the bytes that `take` received before are valid.
    Status get(std::string_view path, std::uint64_t first, const Reader& reader);

  private:
    struct Connection;
    HubAddress hub_;
    const std::atomic<bool>* stopping_;
    std::unique_ptr<Connection> connection_;
};

}  // namespace moex::native
