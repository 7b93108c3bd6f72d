#include "hub/net/http/reply_reader.h"

#include <algorithm>
#include <charconv>

namespace moex::net {
namespace {

constexpr std::size_t head_bytes_max = 64 << 10, line_bytes_max = 1024;

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}

std::string_view trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

template <class Number>
bool read_number(std::string_view text, Number& out, int base) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
    return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string_view ReplyHead::header(std::string_view name) const {
    for (const auto& [own, value] : headers)
        if (own == name) return value;
    return {};
}

ReplyReader::State ReplyReader::feed(std::string_view in, std::string& body) {
    while (!in.empty() && state_ == State::head) {
        line_ += in.front();
        in.remove_prefix(1);
        if (line_.size() > head_bytes_max) return state_ = State::wrong;
        if (line_.ends_with("\r\n\r\n")) parse_head();
    }
    while (!in.empty() && state_ == State::body) in.remove_prefix(feed_body(in, body));
    return state_;
}

ReplyReader::State ReplyReader::end() {
    if (state_ == State::body && part_ == Part::to_end) return state_ = State::whole;
    if (state_ != State::whole) state_ = State::wrong;
    return state_;
}

void ReplyReader::parse_head() {
    std::string_view rest = line_;
    const auto next_line = [&] {
        const std::size_t end = rest.find("\r\n");
        const std::string_view line = rest.substr(0, end);
        rest.remove_prefix(end + 2);
        return line;
    };
    const std::string_view first = next_line();
    const bool is_right = first.starts_with("HTTP/1.") && first.size() >= 12 && first[8] == ' ' &&
                          read_number(first.substr(9, 3), head_.status, 10);
    if (!is_right) {
        state_ = State::wrong;
        return;
    }
    for (std::string_view line = next_line(); !line.empty(); line = next_line()) {
        const std::size_t colon = line.find(':');
        if (colon == std::string_view::npos) {
            state_ = State::wrong;
            return;
        }
        head_.headers.emplace_back(lower(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
    }
    line_.clear();
    if (head_.status == 100) {  // the answer itself follows
        head_ = {};
        return;
    }

    state_ = State::body;
    if (lower(head_.header("transfer-encoding")) == "chunked") {
        part_ = Part::chunk_size;
    } else if (const std::string_view length = head_.header("content-length"); !length.empty()) {
        part_ = Part::length;
        if (!read_number(length, remaining_, 10))
            state_ = State::wrong;
        else if (remaining_ == 0)
            state_ = State::whole;
    }
    const bool has_no_body = head_.status == 204 || head_.status == 304;
    if (has_no_body && state_ != State::wrong) state_ = State::whole;
}

std::size_t ReplyReader::feed_body(std::string_view in, std::string& body) {
    if (part_ == Part::to_end) {
        body += in;
        return in.size();
    }
    if (part_ == Part::length || part_ == Part::chunk_data) {
        const std::size_t size = std::min<std::uint64_t>(remaining_, in.size());
        body += in.substr(0, size);
        remaining_ -= size;
        if (remaining_ > 0) return size;
        if (part_ == Part::length) state_ = State::whole;
        part_ = Part::chunk_end;
        return size;
    }
    line_ += in.front();
    if (line_.size() > line_bytes_max) state_ = State::wrong;
    if (line_.ends_with("\r\n")) take_line();
    return 1;
}

// Takes a line between chunks: the end of a chunk, the size of the next one, or a trailer.
void ReplyReader::take_line() {
    const std::string line = std::exchange(line_, {});
    const std::string_view words = trimmed(std::string_view(line).substr(0, line.size() - 2));
    if (part_ == Part::chunk_end) {
        part_ = Part::chunk_size;
        if (!words.empty()) state_ = State::wrong;
    } else if (part_ == Part::trailers) {
        if (words.empty()) state_ = State::whole;
    } else if (!read_number(words.substr(0, words.find(';')), remaining_, 16)) {
        state_ = State::wrong;
    } else {
        part_ = remaining_ == 0 ? Part::trailers : Part::chunk_data;
    }
}

}  // namespace moex::net
