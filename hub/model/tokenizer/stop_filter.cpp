#include "hub/model/tokenizer/stop_filter.h"

#include <algorithm>
#include <utility>

namespace moex {

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

std::string StopFilter::push(std::string_view piece) {
    if (stopped_) return {};
    if (stops_.empty()) return std::string(piece);
    held_ += piece;
    std::size_t first = std::string::npos;
    for (const std::string& stop : stops_) {
        const std::size_t found = held_.find(stop);
        if (found >= first) continue;
        first = found;
        stop_ = stop;
    }

    if (first != std::string::npos) {
        stopped_ = true;
        std::string shown = held_.substr(0, first);
        held_.clear();
        return shown;
    }

    // Hold back the longest end of the text that is the beginning of a stop string. This end starts
    // with the first character of a stop string, so it never starts inside a character.
    std::size_t kept = 0;
    for (const std::string& stop : stops_) {
        for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > kept;
             --length) {
            if (std::string_view(held_).substr(held_.size() - length) ==
                std::string_view(stop).substr(0, length))
                kept = length;
        }
    }

    std::string shown = held_.substr(0, held_.size() - kept);
    held_.erase(0, held_.size() - kept);
    return shown;
}

std::string StopFilter::finish() { return std::exchange(held_, {}); }

}  // namespace moex
