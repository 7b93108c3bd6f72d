#include "hub/net/http/event_blocks.h"

#include <algorithm>

namespace moex::net {
namespace {

template <class Take>
void for_each_line(std::string_view block, Take take) {
    while (!block.empty()) {
        const std::size_t end = std::min(block.find('\n'), block.size());
        take(block.substr(0, end));
        block.remove_prefix(std::min(end + 1, block.size()));
    }
}

std::string_view value_of(std::string_view line, std::size_t name_bytes) {
    line.remove_prefix(name_bytes);
    if (line.starts_with(' ')) line.remove_prefix(1);
    return line;
}

}  // namespace

std::vector<std::string> EventBlocks::feed(std::string_view in) {
    // A block may end in the bytes that were held.
    std::size_t from = held_.empty() ? 0 : held_.size() - 1;
    held_ += in;
    std::vector<std::string> blocks;
    std::size_t begin = 0;
    for (std::size_t end; (end = held_.find("\n\n", from)) != std::string::npos;) {
        blocks.push_back(held_.substr(begin, end - begin));
        begin = from = end + 2;
    }
    held_.erase(0, begin);
    return blocks;
}

ReadEvent read_event(std::string_view block) {
    ReadEvent event;
    bool has_data = false;
    for_each_line(block, [&](std::string_view line) {
        if (line.starts_with("data:")) {
            if (has_data) event.data += '\n';
            event.data += value_of(line, 5);
            has_data = true;
        } else if (line.starts_with("event:")) {
            event.name = value_of(line, 6);
        } else if (line.starts_with("id:")) {
            event.id = value_of(line, 3);
        }
    });
    event.is_comment = !has_data;
    return event;
}

std::string without_id(std::string_view block) {
    std::string out;
    for_each_line(block, [&](std::string_view line) {
        if (line.starts_with("id:")) return;
        if (!out.empty()) out += '\n';
        out += line;
    });
    return out;
}

}  // namespace moex::net
