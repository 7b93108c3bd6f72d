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

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      started_at_(now_steady()) {}

ProgressBar::~ProgressBar() {
    if (line_open_) std::fputc('\n', stderr);
}

void ProgressBar::show(std::uint64_t done_bytes, std::uint64_t total_bytes, std::string_view note) {
    const TimePoint now = now_steady();
    if (!has_first_) {
        has_first_ = true;
        first_bytes_ = done_bytes;
        started_at_ = now;
    }
    const double share = total_bytes > 0 ? std::min(1.0, static_cast<double>(done_bytes) /
                                                             static_cast<double>(total_bytes))
                                         : 1.0;
    const double seconds = to_ms(now - started_at_) / 1e3;
    const double rate = seconds > 0.05
                            ? static_cast<double>(done_bytes - std::min(first_bytes_, done_bytes)) /
                                  seconds
                            : 0;
    const double left_s = rate > 0 && total_bytes > done_bytes
                              ? static_cast<double>(total_bytes - done_bytes) / rate
                              : 0;
    char figures[96];
    std::snprintf(figures, sizeof figures, "%3.0f %%  %.0f MB/s  ETA %d:%02d", share * 100,
                  rate / 1e6, static_cast<int>(left_s) / 60, static_cast<int>(left_s) % 60);
    if (is_terminal_) {
        if (share < 1 && now - shown_at_ < 100ms) return;
        shown_at_ = now;
        constexpr int width = 30;
        const int full = static_cast<int>(share * width);
        std::string bar;
        for (int i = 0; i < width; ++i) bar += i < full ? "█" : "░";
        std::fprintf(stderr, "\r\x1b[K%s %s %s  %.*s", label_.c_str(), bar.c_str(), figures,
                     static_cast<int>(note.size()), note.data());
        line_open_ = true;
        return;
    }
    const int tenths = static_cast<int>(share * 10);
    if (tenths == tenths_shown_) return;
    tenths_shown_ = tenths;
    std::fprintf(stderr, "%s %s  %.*s\n", label_.c_str(), figures, static_cast<int>(note.size()),
                 note.data());
}

}  // namespace moex
