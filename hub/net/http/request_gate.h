// The request gate: a strict reader of HTTP/1.1 requests that takes no shape on trust.
// Sans-IO: bytes go in as they come, a whole request or a refusal comes out, and the head
// alone as soon as it is there, so that whoever may not ask is refused before a body is
// read. What two readers could understand differently (request smuggling) is refused:
// transfer codings other than exactly `chunked`, a length beside them, folded lines, bare
// LF, a second Host, length or other field that is no list, chunk extensions.
// Trailers are read and dropped.
// One reader, not a check in front of another: Beast's parser (1.81)
// accepts seven of the shapes refused here and waits for ever on an eighth.
// Owner: one connection. After a refusal the connection
// must close: where the next request begins is unknown.
// Source: RFC 9112.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hub/api/http.h"

namespace moex::net {

struct GateLimits {
    std::uint32_t header_bytes_max = 8192;  // request line and fields, with the empty line
    std::uint32_t header_fields_max = 100;
    std::uint32_t target_bytes_max = 4096;
    std::uint64_t body_bytes_max = 1u << 20;
};

// A request as the routes see it, and what only its connection needs.
// Who sent it is for the connection to fill in; the gate sees bytes alone.
struct GatedRequest : HttpRequest {
    std::string raw_target;  // as it came, with the query
    bool keep_alive = true;
};

struct GateRefusal {
    unsigned status = 400;  // 400, 405, 413, 414, 417, 431, 501, 505
    std::string code, message;
};

class RequestGate {
  public:
    enum class State { idle, head, body, done, refused };  // idle: no byte of a request yet
    explicit RequestGate(GateLimits limits);

    // Takes bytes from the front of `in` until a head ends, a
    // request is whole or refused; returns how many were taken.
    std::size_t feed(std::string_view in);
    State state() const { return state_; }
    const GateRefusal& refusal() const { return refusal_; }
    // The request as far as it has come: its head, and
    // the body's bytes so far. Requires body or done.
    GatedRequest& request() { return request_; }
    // Bytes of the body still to come; nullopt when it
    // comes in chunks and nobody knows. Requires body.
    std::optional<std::uint64_t> body_bytes_left() const {
        return part_ == BodyPart::length ? std::optional(remaining_) : std::nullopt;
    }
    // The body is read to its end, under the same rules,
    // but not kept. What is there already is let go.
    void drop_body();
    // True once per request: the client waits for "100 Continue" before it sends the body.
    bool take_expects_continue();
    // The whole request; the gate is idle again. Requires done.
    GatedRequest take();

  private:
    enum class BodyPart { none, length, chunk_size, chunk_data, chunk_end, trailers };
    void refuse(unsigned status, std::string code, std::string message);
    void take_head_byte(char byte);
    void parse_head();
    bool parse_request_line(std::string_view line);
    bool parse_field(std::string_view line);
    std::size_t count_fields(std::string_view name) const;
    bool check_fields();
    bool decide_body();
    std::size_t feed_body(std::string_view in);
    void take_chunk_line();

    GateLimits limits_;
    State state_ = State::idle;
    BodyPart part_ = BodyPart::none;
    GatedRequest request_;
    GateRefusal refusal_;
    std::string line_;             // the head, later a chunk line, as it comes
    std::uint64_t remaining_ = 0;  // of the body, or of a chunk
    std::uint32_t trailer_bytes_ = 0;
    std::uint64_t body_bytes_ = 0;  // read so far, kept or not
    bool expects_continue_ = false, keeps_body_ = true;
};

// Percent-decodes a path; false on a bad escape or a control character.
bool decode_path(std::string_view raw, std::string& out);

}  // namespace moex::net
