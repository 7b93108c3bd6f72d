#include "hub/fetch/endpoint.h"

#include "protocol/text.h"

namespace moex {
namespace {

constexpr int redirects_max = 8;

bool is_redirect(int status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string printable(std::string_view value) {
    std::string out(value.substr(0, 200));
    for (char& c : out)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    return out;
}

}  // namespace

Result<std::string> parse_token(std::string_view value) {
    for (const char c : value)
        if (c <= 0x20 || c >= 0x7f)
            return Error{ErrorCode::invalid_argument,
                         "HF_TOKEN holds a blank, a line break or a byte beyond ASCII; wanted the "
                         "token alone"};
    if (value.size() > 1024)
        return Error{ErrorCode::invalid_argument, "HF_TOKEN has more than 1024 bytes"};
    return std::string(value);
}

Endpoint::Endpoint(WebAddress address, std::string token, WebClientOptions options)
    : address_(std::move(address)),
      token_(std::move(token)),
      client_(std::move(options)) {
    while (address_.url.ends_with('/')) address_.url.pop_back();
}

Result<WebAddress> Endpoint::resolve(const std::string& path) const {
    if (path.starts_with('/')) return parse_web_address(address_.url + path);
    return follow_location(address_, path);
}

Result<Endpoint::Answer> Endpoint::get(const std::string& path, const std::string& range,
                                       const WebClient::OnHead& on_head,
                                       const WebClient::OnBody& on_body) {
    MOEX_ASSIGN(address, resolve(path));
    return get(address, range, on_head, on_body);
}

Result<Endpoint::Answer> Endpoint::get(const WebAddress& address, const std::string& range,
                                       const WebClient::OnHead& on_head,
                                       const WebClient::OnBody& on_body) {
    Answer answer{.from = address};
    wait_s_ = 0;
    for (int step = 0; step <= redirects_max; ++step) {
        WebRequest request{.address = answer.from, .range = range};
        const bool is_own = answer.from.origin == address_.origin;
        if (is_own && !token_.empty())
            request.headers.push_back(text("Authorization: Bearer ", token_));

        // The body of a redirect is not read.
        MOEX_ASSIGN(
            head, client_.ask(
                      request,
                      [&](const WebHead& now) { return !is_redirect(now.status) && on_head(now); },
                      on_body));
        answer.head = std::move(head);
        wait_s_ = retry_after_s(answer.head);
        if (is_own && answer.commit.empty())
            answer.commit = std::string(answer.head.header("x-repo-commit"));
        if (!is_redirect(answer.head.status)) return answer;

        const std::string_view location = answer.head.header("location");
        if (location.empty())
            return Error{ErrorCode::unavailable, text(answer.from.origin, " answers ",
                                                      answer.head.status, " without a Location")};
        MOEX_ASSIGN(next, follow_location(answer.from, location));
        answer.from = std::move(next);
    }
    return Error{ErrorCode::unavailable,
                 text(address.origin, " redirects more than ", redirects_max, " times")};
}

Result<std::string> Endpoint::get_text(const std::string& path, std::uint64_t bytes_max,
                                       Answer* answer) {
    std::string body;
    bool is_too_long = false;
    MOEX_ASSIGN(got, get(
                         path, "", [](const WebHead& head) { return head.status == 200; },
                         [&](ByteView bytes) {
                             is_too_long = bytes.size() > bytes_max - body.size();
                             if (is_too_long) return false;
                             body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                             return true;
                         }));
    if (answer != nullptr) *answer = got;
    if (got.head.status != 200) return error_of(got.head, got.from.origin);
    if (is_too_long)
        return Error{ErrorCode::bad_file, text(got.from.origin, " sends more than ", bytes_max,
                                               " bytes for ", printable(path))};
    return body;
}

Error error_of(const WebHead& head, std::string_view what) {
    std::string said = printable(head.header("x-error-message"));
    if (!said.empty()) said = text(" (", said, ")");
    switch (head.status) {
        case 401:
        case 403:
            return {ErrorCode::unauthorized,
                    text(what, " answers ", head.status, said,
                         ": no such repository, or one that asks for a token; set HF_TOKEN to a "
                         "token that may read it, and accept its licence on its page")};
        case 404: return {ErrorCode::not_found, text(what, " answers 404", said)};
        case 408:
        case 425:
        case 429: return {ErrorCode::unavailable, text(what, " answers ", head.status, said)};
        default:
            return {head.status >= 500 ? ErrorCode::unavailable : ErrorCode::bad_file,
                    text(what, " answers ", head.status, said)};
    }
}

}  // namespace moex
