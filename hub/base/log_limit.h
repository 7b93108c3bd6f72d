// Limits how often one line is logged, so that a cause that lasts, such as a full disk, does not
// fill the log. A line that is left out is counted.
//   accept failed error="Too many open files"                  at 10:00:00
//   accept failed error="Too many open files" left_out=599     at 10:01:00
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "hub/base/clock.h"

namespace moex {

class LogLimit {
  public:
    // admit() lets one line of each cause pass, and then none for the time `every`.
    explicit LogLimit(Duration every = std::chrono::minutes(1)) : every_(every) {}
    // Returns the number of lines of this cause that were left out since the last admitted one, or
    // nullopt if this line must be left out, too.
    std::optional<std::uint64_t> admit(std::string_view cause, TimePoint now);

  private:
    struct Line {
        TimePoint admitted_at;
        std::uint64_t left_out = 0;
    };
    const Duration every_;
    std::mutex mutex_;
    std::map<std::string, Line, std::less<>> lines_;  // at most 256; the oldest leaves first
};

}  // namespace moex
