// Reads a stream of server-sent events piece by piece.
// Source: WHATWG HTML, "Server-sent events".
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace moex {

class EventStream {
  public:
    // Calls `on_data` with the `data` of every event that `piece` completes. Returns false if a
    // line has more than 1 MiB, or if `on_data` returned false.
    bool push(std::string_view piece, const std::function<bool(std::string_view)>& on_data);

  private:
    std::string line_, data_;
    bool has_data_ = false;
};

}  // namespace moex
