// The last event of a hub that stops.
#pragma once

#include <string>

namespace moex::net {

// True if `data`, an event or a line of a stream, is refuse_since_hub_stops() in one of the
// dialects. The error is an object with a code, in an object `response` in one dialect; another
// dialect has the code beside the error.
bool says_that_it_stops(const std::string& data);

}  // namespace moex::net
