// Shows the progress of a long command on stderr: one line that changes on a terminal. Elsewhere it
// shows nothing, or with --progress one line per tenth of the work.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "hub/base/clock.h"

namespace moex {

class ProgressLine {
  public:
    explicit ProgressLine(bool lines_wanted);
    ~ProgressLine();  // ends the changing line

    // `share` is the finished part of the work, 0 to 1.
    void show(double share, const std::string& line);
    bool is_terminal() const { return is_terminal_; }

  private:
    bool is_terminal_, lines_wanted_, line_open_ = false;
    TimePoint shown_at_{};
    int tenths_shown_ = -1;
};

// A bar with rate and time left, for a command that processes bytes.
class ProgressBar {
  public:
    ProgressBar(std::string label, bool lines_wanted);
    // `note` is shown at the end, e.g. "layer 3/48".
    void show(std::uint64_t done_bytes, std::uint64_t total_bytes, std::string_view note);

  private:
    std::string label_;
    ProgressLine line_;
    TimePoint started_at_;
    std::uint64_t first_bytes_ = 0;  // bytes that a resumed run had done before
    bool has_first_ = false;
};

// Shows the stages of a start as a bar, which the last stage removes. Shows nothing if stderr is no
// terminal, because the log has the stages then.
class StageBar {
  public:
    void show(std::string_view stage);

  private:
    int number_ = 0;
};

// Returns a size such as "2.51 MB" or "701 kB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace moex
