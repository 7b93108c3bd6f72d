#include "hub/commands/chat/event_stream.h"

namespace moex {

bool EventStream::push(std::string_view piece,
                       const std::function<bool(std::string_view)>& on_data) {
    constexpr std::size_t bytes_max = 1u << 20;
    for (const char c : piece) {
        if (c != '\n') {
            if (line_.size() + data_.size() >= bytes_max) return false;
            line_ += c;
            continue;
        }

        if (line_.ends_with('\r')) line_.pop_back();
        if (line_.empty()) {
            const bool goes_on = !has_data_ || on_data(data_);
            data_.clear();
            has_data_ = false;
            if (!goes_on) return false;
        } else if (line_.starts_with("data:")) {
            const std::string_view value = std::string_view(line_).substr(5);
            if (has_data_) data_ += '\n';
            data_ += value.starts_with(' ') ? value.substr(1) : value;
            has_data_ = true;
        }
        line_.clear();
    }
    return true;
}

}  // namespace moex
