// Shows the progress of a long command on stderr. On a terminal it is one line that changes.
// Elsewhere no progress is shown, or with --progress one line per tenth of the work.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "hub/base/clock.h"

namespace moex {

class ProgressLine {
  public:
    explicit ProgressLine(bool lines_wanted);
    ~ProgressLine();  // ends the progress line with a line break

    // `share` is the share of the work that is finished, 0 to 1.
    void show(double share, const std::string& line);
    bool is_terminal() const { return is_terminal_; }

  private:
    bool is_terminal_, lines_wanted_, line_open_ = false;
    TimePoint shown_at_{};
    int tenths_shown_ = -1;
};

// A progress bar with the rate and the remaining time, for a command that processes bytes.
class ProgressBar {
  public:
    ProgressBar(std::string label, bool lines_wanted);
    // `note` is shown at the end of the bar, e.g. "layer 3/48".
    void show(std::uint64_t done_bytes, std::uint64_t total_bytes, std::string_view note);

  private:
    std::string label_;
    ProgressLine line_;
    TimePoint started_at_;
    std::uint64_t first_bytes_ = 0;  // bytes that an earlier, interrupted run had finished
    bool has_first_ = false;
};

// Shows the stages of the hub's start as a bar, which is removed after the last stage. Shows
// nothing if stderr is no terminal, because the log then names the stages.
class StageBar {
  public:
    void show(std::string_view stage);

  private:
    int number_ = 0;
};

// Returns a number of bytes as text, such as "2.51 MB" or "701 kB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace moex
