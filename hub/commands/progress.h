// How far a long command is: one moving line on a terminal. Elsewhere nothing, or a plain line
// per tenth for who asked for it (--progress). To stderr.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "hub/base/clock.h"

namespace moex {

class ProgressLine {
  public:
    explicit ProgressLine(bool lines_wanted);
    ~ProgressLine();  // ends the moving line

    // `share` of the whole, 0 to 1.
    void show(double share, const std::string& line);
    bool is_terminal() const { return is_terminal_; }

  private:
    bool is_terminal_, lines_wanted_, line_open_ = false;
    TimePoint shown_at_{};
    int tenths_shown_ = -1;
};

// A bar with rate and time left, of a command that moves bytes.
class ProgressBar {
  public:
    ProgressBar(std::string label, bool lines_wanted);
    // `note` stands at the end, e.g. "layer 3/48".
    void show(std::uint64_t done_bytes, std::uint64_t total_bytes, std::string_view note);

  private:
    std::string label_;
    ProgressLine line_;
    TimePoint started_at_;
    std::uint64_t first_bytes_ = 0;  // what a resumed run found done
    bool has_first_ = false;
};

// The stages of a start: a bar that the last stage removes. Silent where stderr is no terminal,
// since the log tells the story there.
class StageBar {
  public:
    void show(std::string_view stage);

  private:
    int number_ = 0;
};

// "2.51 MB", "701 kB"
std::string bytes_text(std::uint64_t bytes);

}  // namespace moex
