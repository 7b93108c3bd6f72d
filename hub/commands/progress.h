// One moving line on a terminal, a plain line per tenth elsewhere. To stderr.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "hub/base/clock.h"

namespace moex {

class ProgressBar {
  public:
    explicit ProgressBar(std::string label);
    ~ProgressBar();  // ends the line
    // `note` stands at the end, e.g. "layer 3/48".
    void show(std::uint64_t done_bytes, std::uint64_t total_bytes, std::string_view note);

  private:
    std::string label_;
    bool is_terminal_, line_open_ = false;
    TimePoint started_at_, shown_at_{};
    std::uint64_t first_bytes_ = 0;  // what a resumed run found done
    int tenths_shown_ = -1;
    bool has_first_ = false;
};

// "2.51 MB", "701 kB"
std::string bytes_text(std::uint64_t bytes);

}  // namespace moex
