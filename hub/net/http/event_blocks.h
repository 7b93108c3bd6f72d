// Server-sent events as a client reads them. Source: WHATWG HTML, "Parsing an event stream".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moex::net {

// Cuts a stream of events at the empty lines between them.
class EventBlocks {
  public:
    // Returns the events that are complete now, each with its lines and without the empty line.
    std::vector<std::string> feed(std::string_view in);
    std::size_t waiting_bytes() const { return held_.size(); }

  private:
    std::string held_;
};

struct ReadEvent {
    std::string data, name, id;
    bool is_comment = false;  // a ping
};
ReadEvent read_event(std::string_view block);
// Returns the event without its number.
std::string without_id(std::string_view block);

}  // namespace moex::net
