#include "hub/net/http/reply_reader.h"

namespace moex::net {
namespace {

constexpr std::uint32_t head_bytes_max = 64 << 10;
// A body that is announced with its length is reserved at once.
constexpr std::uint64_t announced_bytes_max = 256 << 20;

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}

}  // namespace

std::string_view ReplyHead::header(std::string_view name) const {
    for (const auto& [own, value] : headers)
        if (own == name) return value;
    return {};
}

void ReplyReader::begin() {
    parser_.emplace();
    parser_->header_limit(head_bytes_max);
    parser_->body_limit(announced_bytes_max);
}

ReplyReader::State ReplyReader::feed(std::string_view in, std::string& body) {
    held_ += in;
    std::size_t at = 0;
    while (state_ != State::whole && state_ != State::wrong && at < held_.size()) {
        NetError error;
        const std::size_t used = parser_->put(asio::buffer(held_.data() + at, held_.size() - at),
                                              error);
        at += used;
        if (error && error != beast_http::error::need_more) {
            state_ = State::wrong;
            break;
        }
        if (state_ == State::head && parser_->is_header_done()) {
            if (parser_->get().result_int() == 100) {  // the answer itself follows
                begin();
                continue;
            }
            take_head();
        }
        body += parser_->get().body();
        parser_->get().body().clear();
        if (parser_->is_done()) state_ = State::whole;
        if (error) break;  // the rest of a line is missing
    }
    held_.erase(0, at);
    return state_;
}

ReplyReader::State ReplyReader::end() {
    NetError error;
    if (state_ == State::body) parser_->put_eof(error);
    if (state_ == State::body && !error)
        state_ = State::whole;
    else if (state_ != State::whole)
        state_ = State::wrong;
    return state_;
}

void ReplyReader::take_head() {
    state_ = State::body;
    parser_->eager(true);
    if (!parser_->content_length()) parser_->body_limit(boost::none);
    const auto& message = parser_->get();
    head_.status = message.result_int();
    for (const auto& field : message)
        head_.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                   std::string(field.value().data(), field.value().size()));
}

}  // namespace moex::net
