#include "hub/api/jobs/reasoning.h"

#include <algorithm>
#include <utility>

namespace moex {
namespace {

constexpr std::string_view blanks = " \t\r\n", line_ends = "\r\n";

// Returns the length of the longest proper prefix of `tag` with which `text` ends.
std::size_t begun_tag_bytes(std::string_view text, std::string_view tag) {
    for (std::size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length)
        if (text.ends_with(tag.substr(0, length))) return length;
    return 0;
}

std::string_view without_line_ends(std::string_view text) {
    const std::size_t last = text.find_last_not_of(line_ends);
    return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(bool inside)
    : part_(inside ? Part::block_begin : Part::answer_begin) {}

ReasonedText ReasoningSplitter::push(std::string_view piece) {
    held_ += piece;
    ReasonedText out;
    while (step(out)) {}
    return out;
}

bool ReasoningSplitter::step(ReasonedText& out) {
    switch (part_) {
        case Part::answer_begin: {
            const std::size_t begin = held_.find_first_not_of(blanks);
            if (begin == std::string::npos) return false;
            const std::string_view rest = std::string_view(held_).substr(begin);
            if (rest.size() < think_open.size() && think_open.starts_with(rest)) return false;

            const bool is_block = rest.starts_with(think_open);
            if (is_block) held_.erase(0, begin + think_open.size());
            part_ = is_block ? Part::block_begin : Part::content;
            return true;
        }
        case Part::block_begin:
        case Part::behind_block: {
            const std::size_t begin = held_.find_first_not_of(line_ends);
            held_.erase(0, begin);
            if (begin == std::string::npos) return false;
            part_ = part_ == Part::block_begin ? Part::block : Part::content;
            return true;
        }
        case Part::block: {
            const std::string_view text(held_);
            const std::size_t close = text.find(think_close);
            const bool closes = close != std::string_view::npos;
            const std::size_t certain = closes ? close
                                               : text.size() - begun_tag_bytes(text, think_close);

            const std::size_t shown = without_line_ends(text.substr(0, certain)).size();
            out.reasoning += text.substr(0, shown);
            held_.erase(0, closes ? close + think_close.size() : shown);
            if (closes) part_ = Part::behind_block;
            return closes;
        }
        case Part::content: out.content += std::exchange(held_, {}); return false;
    }
    return false;
}

ReasonedText ReasoningSplitter::finish() {
    ReasonedText out;
    std::string rest = std::exchange(held_, {});
    if (in_reasoning())
        out.reasoning = std::move(rest);
    else
        out.content = std::move(rest);
    return out;
}

bool ends_in_open_block(std::string_view prompt) {
    const std::size_t last = prompt.find_last_not_of(blanks);
    return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(think_open);
}

}  // namespace moex
