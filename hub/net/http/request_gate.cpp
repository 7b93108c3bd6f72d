#include "hub/net/http/request_gate.h"

#include <algorithm>
#include <array>
#include <optional>

#include "hub/net/http/fields.h"
#include "protocol/text.h"

namespace moex::net {
namespace {

bool is_token(char c) {
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
    return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}
// Parses a number that consists only of digits, because different HTTP servers read "+5", "5 " and
// "0x5" differently.
std::optional<std::uint64_t> parse_digits(std::string_view text) {
    if (text.empty() || text.size() > 18) return std::nullopt;

    std::uint64_t value = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') return std::nullopt;
        value = value * 10 + static_cast<unsigned>(c - '0');
    }
    return value;
}
// A chunk's size line has at most 8 hex digits, CR and LF. The further bytes suffice to tell a
// chunk extension from a number that is too long.
constexpr std::size_t chunk_line_bytes_max = 18;

}  // namespace

bool decode_path(std::string_view raw, std::string& out) {
    out.clear();
    for (std::size_t i = 0; i < raw.size(); ++i) {
        char c = raw[i];
        if (c == '%') {
            if (i + 2 >= raw.size()) return false;

            const int high = hex_value(raw[i + 1]), low = hex_value(raw[i + 2]);
            if (high < 0 || low < 0) return false;

            c = static_cast<char>(high * 16 + low);
            if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
            i += 2;
        }
        out += c;
    }
    return true;
}

RequestGate::RequestGate(GateLimits limits) : limits_(limits) {}

void RequestGate::refuse(unsigned status, std::string code, std::string message) {
    if (state_ == State::refused) return;
    refusal_ = {status, std::move(code), std::move(message)};
    state_ = State::refused;
}

void RequestGate::drop_body() {
    keeps_body_ = false;
    std::string().swap(request_.body);
}

bool RequestGate::take_expects_continue() { return std::exchange(expects_continue_, false); }

GatedRequest RequestGate::take() {
    GatedRequest request = std::move(request_);
    request_ = {};
    target_host_.reset();
    state_ = State::idle;
    part_ = BodyPart::none;
    line_.clear();
    body_bytes_ = 0;
    expects_continue_ = false;
    keeps_body_ = true;
    return request;
}

std::size_t RequestGate::feed(std::string_view in) {
    std::size_t taken = 0;
    while (taken < in.size() && (state_ == State::idle || state_ == State::head))
        take_head_byte(in[taken++]);
    if (taken > 0) return taken;

    while (taken < in.size() && state_ == State::body) taken += feed_body(in.substr(taken));
    return taken;
}

// Reads one byte of a request's head. Each byte is checked when it arrives, so that a TLS hello or
// a bare LF gets an answer at once and not after a timeout.
void RequestGate::take_head_byte(char byte) {
    state_ = State::head;
    const bool after_cr = !line_.empty() && line_.back() == '\r';
    const auto code = static_cast<unsigned char>(byte);

    if (byte == '\n' && !after_cr)
        return refuse(400, "bare_lf", "a line ends with LF alone; HTTP lines end with CR LF");
    if (after_cr && byte != '\n')
        return refuse(400, "bare_cr", "a CR without LF in the request head");
    if ((code < 0x20 && byte != '\r' && byte != '\n' && byte != '\t') || code == 0x7f)
        return refuse(400, "control_character",
                      text("byte ", static_cast<unsigned>(code),
                           " in the request head; TLS sent to a plain port?"));

    line_ += byte;
    if (line_ == "\r\n")
        return refuse(400, "empty_request_line", "the request begins with an empty line");
    if (line_.size() == std::size_t{limits_.target_bytes_max} + 64 &&
        line_.find('\n') == std::string::npos)
        return refuse(
            414, "target_too_long",
            text("the request target is longer than ", limits_.target_bytes_max, " bytes"));
    if (line_.size() > limits_.header_bytes_max)
        return refuse(431, "header_too_large",
                      text("the request head is larger than ", limits_.header_bytes_max, " bytes"));

    if (byte == '\n' && line_.ends_with("\r\n\r\n")) parse_head();
}

void RequestGate::parse_head() {
    std::string_view rest(line_);
    rest.remove_suffix(2);
    std::size_t end = rest.find("\r\n");
    if (!parse_request_line(rest.substr(0, end))) return;
    rest.remove_prefix(end + 2);

    while (!rest.empty()) {
        end = rest.find("\r\n");
        if (request_.headers.size() == limits_.header_fields_max)
            return refuse(431, "too_many_fields",
                          text("more than ", limits_.header_fields_max, " header fields"));

        if (!parse_field(rest.substr(0, end))) return;
        rest.remove_prefix(end + 2);
    }

    if (!check_fields() || !decide_body()) return;
    line_.clear();
    state_ = part_ == BodyPart::none ? State::done : State::body;
}

bool RequestGate::parse_request_line(std::string_view line) {
    const auto bad = [&](unsigned status, const char* code, std::string message) {
        refuse(status, code, std::move(message));
        return false;
    };
    const std::size_t first = line.find(' ');
    const std::size_t last = line.rfind(' ');
    if (first == std::string_view::npos || first == last || first == 0)
        return bad(400, "bad_request_line", "want METHOD TARGET HTTP/1.1, with single spaces");

    const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
    std::string_view target = line.substr(first + 1, last - first - 1);
    if (!std::all_of(method.begin(), method.end(), is_token))
        return bad(400, "bad_method", "the method is not a word");
    if (target.size() > limits_.target_bytes_max)
        return bad(414, "target_too_long",
                   text("the request target has ", target.size(), " bytes, at most ",
                        limits_.target_bytes_max, " are read"));
    if (version != "HTTP/1.1" && version != "HTTP/1.0") {
        const bool is_http = version.substr(0, 5) == "HTTP/";
        return bad(is_http ? 505 : 400, "bad_version", "want HTTP/1.1");
    }

    static constexpr std::array<std::string_view, 7> methods{"GET",    "HEAD",  "POST",   "PUT",
                                                             "DELETE", "PATCH", "OPTIONS"};
    if (std::find(methods.begin(), methods.end(), method) == methods.end())
        return bad(405, "method_not_allowed",
                   "methods here are GET, HEAD, POST, DELETE and OPTIONS");

    // Accept request targets in origin form ("/path"), and in the absolute form that clients of a
    // proxy send (RFC 9112, 3.2.2). Its authority then counts as the Host.
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (!target.starts_with(scheme)) continue;
        const std::size_t path = std::min(target.find('/', scheme.size()), target.size());
        target_host_ = std::string(target.substr(scheme.size(), path - scheme.size()));
        if (target_host_->empty()) return bad(400, "bad_target", "the request target has no host");
        target = path == target.size() ? std::string_view("/") : target.substr(path);
    }
    if (target.empty() || target[0] != '/')
        return bad(400, "bad_target", "the request target must begin with '/'");
    for (const char c : target)
        if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f ||
            c == '#')
            return bad(400, "bad_target",
                       "the request target holds a space, '#' or a byte outside ASCII");

    const std::size_t question = target.find('?');
    if (!decode_path(target.substr(0, question), request_.path))
        return bad(400, "bad_target", "a bad percent escape in the path");
    request_.query = question == std::string_view::npos ? std::string()
                                                        : std::string(target.substr(question + 1));

    request_.raw_target = std::string(target);
    request_.method = std::string(method);
    request_.http_1_0 = version == "HTTP/1.0";
    return true;
}

bool RequestGate::parse_field(std::string_view line) {
    if (line[0] == ' ' || line[0] == '\t') {
        refuse(400, "folded_line", "a header line is folded onto the next (obs-fold)");
        return false;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0 ||
        !std::all_of(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(colon), is_token)) {
        refuse(400, "bad_field", "a header line is not NAME: VALUE");
        return false;
    }
    request_.headers.emplace_back(lower_case(line.substr(0, colon)),
                                  std::string(trim_blanks(line.substr(colon + 1))));
    return true;
}

std::size_t RequestGate::count_fields(std::string_view name) const {
    const auto& headers = request_.headers;
    return static_cast<std::size_t>(std::count_if(
        headers.begin(), headers.end(), [&](const auto& field) { return field.first == name; }));
}

// Checks that the header fields fit together, before any field is used.
bool RequestGate::check_fields() {
    const auto bad = [&](unsigned status, const char* code, std::string message) {
        refuse(status, code, std::move(message));
        return false;
    };

    if (target_host_ && count_fields("host") <= 1) {
        std::erase_if(request_.headers, [](const auto& field) { return field.first == "host"; });
        request_.headers.emplace_back("host", *target_host_);
    }
    // HTTP/1.0 has no Host. Checks of load balancers use it, and a browser never does.
    if (request_.http_1_0 && count_fields("host") == 0)
        request_.headers.emplace_back("host", "localhost");
    const std::size_t hosts = count_fields("host");
    if (hosts != 1 || request_.header("host")->empty())
        return bad(400, "bad_host", text("want exactly one Host header, got ", hosts));

    if (count_fields("content-length") > 1)
        return bad(400, "bad_content_length", "more than one Content-Length");
    if (count_fields("transfer-encoding") > 1)
        return bad(400, "bad_transfer_encoding", "more than one Transfer-Encoding");

    for (const auto& [name, value] : request_.headers)
        if (is_singleton_field(name) && count_fields(name) > 1)
            return bad(400, "duplicate_header", text("more than one ", name, " header"));

    if (const auto expected = request_.header("expect")) {
        if (count_fields("expect") > 1 || lower_case(*expected) != "100-continue")
            return bad(417, "bad_expectation", "only Expect: 100-continue is known");
        expects_continue_ = true;
    }

    const bool close = lists_token(request_.headers, "connection", "close"),
               keep = lists_token(request_.headers, "connection", "keep-alive");
    request_.keep_alive = request_.http_1_0 ? keep && !close : !close;
    return true;
}

// Determines the length of the body (RFC 9112 section 6). A request whose length two parsers could
// measure differently is refused.
bool RequestGate::decide_body() {
    const auto bad = [&](unsigned status, const char* code, std::string message) {
        refuse(status, code, std::move(message));
        return false;
    };
    const auto length = request_.header("content-length"),
               coding = request_.header("transfer-encoding");

    if (coding) {
        if (request_.http_1_0)
            return bad(400, "bad_transfer_encoding", "Transfer-Encoding in HTTP/1.0");
        if (length)
            return bad(400, "bad_transfer_encoding",
                       "Transfer-Encoding and Content-Length in one request");
        if (lower_case(*coding) != "chunked")
            return bad(501, "bad_transfer_encoding",
                       "the only transfer coding read here is exactly `chunked`");
        part_ = BodyPart::chunk_size;
        return true;
    }

    if (length) {
        const std::optional<std::uint64_t> wanted = parse_digits(*length);
        if (!wanted) return bad(400, "bad_content_length", "Content-Length is not a plain number");
        if (*wanted > body_bytes_max())
            return bad(
                413, "body_too_large",
                text("the body has ", *wanted, " bytes, at most ", body_bytes_max(), " are read"));
        remaining_ = *wanted;
        if (remaining_ > 0) part_ = BodyPart::length;
    }

    if (part_ == BodyPart::none) expects_continue_ = false;
    return true;
}

std::uint64_t RequestGate::body_bytes_max() const {
    const std::uint64_t other = limits_.body_bytes_max_of
                                    ? limits_.body_bytes_max_of(request_.path, request_.method)
                                    : 0;
    return std::max(other, limits_.body_bytes_max);
}

std::size_t RequestGate::feed_body(std::string_view in) {
    if (part_ == BodyPart::length || part_ == BodyPart::chunk_data) {
        const std::size_t taken = static_cast<std::size_t>(
            std::min<std::uint64_t>(remaining_, in.size()));
        if (keeps_body_) request_.body.append(in.substr(0, taken));
        body_bytes_ += taken;
        remaining_ -= taken;
        if (remaining_ > 0) return taken;

        if (part_ == BodyPart::length)
            state_ = State::done;
        else
            part_ = BodyPart::chunk_end;
        return taken;
    }

    // All other parts of a chunked body are lines: the size of a chunk, the end of a chunk, and
    // trailers.
    const char byte = in[0];
    const bool after_cr = !line_.empty() && line_.back() == '\r';
    if ((byte == '\n') != after_cr) {
        refuse(400, "bad_chunk", "a chunk line does not end with CR LF");
        return 1;
    }

    line_ += byte;
    if (byte == '\n') {
        line_.resize(line_.size() - 2);
        take_chunk_line();
        line_.clear();
        return 1;
    }

    if (part_ == BodyPart::trailers) {
        if (++trailer_bytes_ > limits_.header_bytes_max)
            refuse(400, "bad_chunk", "the trailers are too long");
    } else if (line_.size() > chunk_line_bytes_max) {
        refuse(400, "bad_chunk", "a chunk line is too long; extensions are refused");
    }
    return 1;
}

void RequestGate::take_chunk_line() {
    switch (part_) {
        case BodyPart::chunk_end:
            if (!line_.empty())
                return refuse(400, "bad_chunk", "a chunk is longer than its size says");
            part_ = BodyPart::chunk_size;
            return;
        case BodyPart::trailers:
            if (line_.empty())
                state_ = State::done;
            else if (line_.find(':') == std::string::npos || line_[0] == ' ' || line_[0] == '\t')
                refuse(400, "bad_trailer", "a trailer line is not NAME: VALUE");
            return;
        default: break;
    }

    if (line_.empty() || line_.size() > 8)
        return refuse(400, "bad_chunk",
                      "a chunk size is not 1 to 8 hex digits; extensions are refused");

    std::uint64_t size = 0;
    for (const char c : line_) {
        const int digit = hex_value(c);
        if (digit < 0)
            return refuse(400, "bad_chunk",
                          "a chunk size is not 1 to 8 hex digits; extensions are refused");
        size = size * 16 + static_cast<unsigned>(digit);
    }

    if (size > body_bytes_max() - body_bytes_)
        return refuse(413, "body_too_large",
                      text("the body is larger than ", body_bytes_max(), " bytes"));

    remaining_ = size;
    trailer_bytes_ = 0;
    part_ = size == 0 ? BodyPart::trailers : BodyPart::chunk_data;
}

}  // namespace moex::net
