#include "hub/commands/progress.h"

#include <unistd.h>
#include <algorithm>
#include <cstdio>

#include "protocol/text.h"

namespace moex {

std::string bytes_text(std::uint64_t bytes) {
    const double value = static_cast<double>(bytes);
    char out[32];
    if (bytes >= 1'000'000'000)
        std::snprintf(out, sizeof out, "%.2f GB", value / 1e9);
    else if (bytes >= 1'000'000)
        std::snprintf(out, sizeof out, "%.1f MB", value / 1e6);
    else if (bytes >= 1'000)
        std::snprintf(out, sizeof out, "%.1f kB", value / 1e3);
    else
        std::snprintf(out, sizeof out, "%.0f B", value);
    return out;
}

ProgressLine::ProgressLine(bool lines_wanted)
    : is_terminal_(isatty(STDERR_FILENO) == 1),
      lines_wanted_(lines_wanted) {}

ProgressLine::~ProgressLine() {
    if (line_open_) std::fputc('\n', stderr);
}

void ProgressLine::show(double share, const std::string& line) {
    if (is_terminal_) {
        const TimePoint now = now_steady();
        if (share < 1 && now - shown_at_ < 100ms) return;

        shown_at_ = now;
        line_open_ = true;
        std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
        return;
    }

    const int tenths = static_cast<int>(share * 10);
    if (!lines_wanted_ || tenths == tenths_shown_) return;

    tenths_shown_ = tenths;
    std::fprintf(stderr, "%s\n", line.c_str());
}

ProgressBar::ProgressBar(std::string label, bool lines_wanted)
    : label_(std::move(label)),
      line_(lines_wanted),
      started_at_(now_steady()) {}

void ProgressBar::show(std::uint64_t done_bytes, std::uint64_t total_bytes, std::string_view note) {
    const TimePoint now = now_steady();
    if (!has_first_) {
        has_first_ = true;
        first_bytes_ = done_bytes;
        started_at_ = now;
    }

    const auto done = static_cast<double>(done_bytes), total = static_cast<double>(total_bytes);
    const double share = total_bytes > 0 ? std::min(1.0, done / total) : 1.0;
    const double seconds = to_ms(now - started_at_) / 1e3;
    const auto done_here = static_cast<double>(done_bytes - std::min(first_bytes_, done_bytes));
    const double rate = seconds > 0.05 ? done_here / seconds : 0;
    const double left_s = rate > 0 && total_bytes > done_bytes ? (total - done) / rate : 0;

    char figures[96];
    std::snprintf(figures, sizeof figures, "%3.0f %%  %.0f MB/s  ETA %d:%02d", share * 100,
                  rate / 1e6, static_cast<int>(left_s) / 60, static_cast<int>(left_s) % 60);
    constexpr int width = 30;
    const int full = static_cast<int>(share * width);
    std::string bar;
    for (int i = 0; i < width; ++i) bar += i < full ? "█" : "░";
    line_.show(share, text(label_, ' ', line_.is_terminal() ? bar + ' ' : "", figures, "  ", note));
}

void StageBar::show(std::string_view stage) {
    if (isatty(STDERR_FILENO) != 1) return;

    constexpr int num_stages = 4;
    number_ = std::min(number_ + 1, num_stages);
    std::string bar;
    for (int i = 0; i < num_stages; ++i) bar += i < number_ ? "█████" : "░░░░░";
    std::fprintf(stderr, "\r\x1b[K%s %.*s", bar.c_str(), static_cast<int>(stage.size()),
                 stage.data());

    if (number_ == num_stages) std::fprintf(stderr, "\r\x1b[K");
}

}  // namespace moex
