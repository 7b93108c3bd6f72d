// The request gate: a strict parser of HTTP/1.1 requests. Sans-IO: the caller feeds bytes as they
// arrive and gets a whole request or a refusal. The gate returns the head as soon as it is
// complete, so that a client without access is refused before its body is read. The gate refuses
// requests that two parsers could read differently (request smuggling): transfer codings other than
// exactly `chunked`, a length beside them, folded lines, bare LF, a second Host, length or other
// field that is no list, and chunk extensions. Trailers are read and dropped. The gate is the only
// parser and not a check in front of another one: Beast's parser (1.81) accepts seven of the forms
// refused here, and waits forever on an eighth. Owner: one connection. The connection must close
// after a refusal, because the beginning of the next request is unknown. Source: RFC 9112.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hub/api/http.h"

namespace moex::net {

struct GateLimits {
    // Bytes of the request line and fields, with the empty line.
    std::uint32_t header_bytes_max = 8192;
    std::uint32_t header_fields_max = 100;
    std::uint32_t target_bytes_max = 4096;
    std::uint64_t body_bytes_max = 1u << 20;
    // Returns another limit for the bodies of a path, or 0; null: there is none.
    std::uint64_t (*body_bytes_max_of)(std::string_view path, std::string_view method) = nullptr;
};

// A parsed request for the routes, with two more fields that only the connection needs. The
// connection fills in the client, because the gate sees only the bytes.
struct GatedRequest : HttpRequest {
    std::string raw_target;  // the request target as the client sent it, with the query
    bool keep_alive = true;
};

struct GateRefusal {
    unsigned status = 400;  // HTTP status: 400, 405, 413, 414, 417, 431, 501 or 505
    std::string code, message;
};

class RequestGate {
  public:
    // `idle`: no byte of the next request was read yet.
    enum class State { idle, head, body, done, refused };
    explicit RequestGate(GateLimits limits);

    // Reads bytes from the front of `in` until a head ends, or a request is complete or refused.
    // Returns the number of bytes that were read.
    std::size_t feed(std::string_view in);
    State state() const { return state_; }
    const GateRefusal& refusal() const { return refusal_; }
    // Returns the part of the request that was read: the head, and the body's bytes so far.
    // Requires State::body or State::done.
    GatedRequest& request() { return request_; }
    // Returns the bytes of the body that are still missing, or nullopt if the body is chunked and
    // its length is unknown. Requires State::body.
    std::optional<std::uint64_t> body_bytes_left() const {
        return part_ == BodyPart::length ? std::optional(remaining_) : std::nullopt;
    }
    // Drops the body: its remaining bytes are read under the same rules but not stored, and the
    // bytes that were stored are freed.
    void drop_body();
    // Returns true once per request, if the client waits for "100 Continue" before it sends the
    // body.
    bool take_expects_continue();
    // Returns the whole request, and makes the gate idle. Requires State::done.
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

    std::uint64_t body_bytes_max() const;

    GateLimits limits_;
    State state_ = State::idle;
    BodyPart part_ = BodyPart::none;
    GatedRequest request_;
    GateRefusal refusal_;
    std::string line_;             // bytes so far of the head, or of a line in a chunked body
    std::uint64_t remaining_ = 0;  // bytes that the body or the current chunk still lacks
    std::uint32_t trailer_bytes_ = 0;
    std::uint64_t body_bytes_ = 0;  // bytes of the body read so far, stored or not
    bool expects_continue_ = false, keeps_body_ = true;
    std::optional<std::string> target_host_;  // authority of a request target in absolute form
};

// Percent-decodes a path. Returns false on a bad escape or a control character.
bool decode_path(std::string_view raw, std::string& out);

}  // namespace moex::net
