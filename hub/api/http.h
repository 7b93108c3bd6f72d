// HTTP as the routes see it: a request that passed the gate, and a responder that takes one whole
// answer or a stream of events. This header has no socket, so that API handlers are tested without
// one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/api/dialect.h"
#include "hub/api/refusal.h"
#include "hub/api/request_account.h"
#include "hub/base/clock.h"
#include "protocol/bytes.h"

namespace moex {

struct HttpRequest {
    std::string method;  // "GET", "POST", ...
    std::string path;    // path of the URL, decoded, without the query; begins with '/'
    std::string rest;    // the part of `path` that matches the '*' of its route
    std::string query;   // raw, without '?'
    // The names of the headers are in lower case.
    std::vector<std::pair<std::string, std::string>> headers;
    std::string body;
    // The client's address without port: the peer, or the client that a trusted proxy reports.
    std::string remote_address;
    // The client's name for fair scheduling: requests with the same name share one round-robin
    // slot.
    std::string client;
    // Owner of resumable streams: the hash of the client's key, or the address if no keys are
    // required.
    std::string owner;
    // The account that the tokens are charged to; null: the request has no account.
    std::shared_ptr<RequestAccount> account;
    // True if the client is this machine, as far as the hub can know.
    bool loopback = false;
    bool secure = false;  // the request arrived over TLS, at the hub or at a trusted proxy
    bool http_1_0 = false;
    // A front or another hub sent the request, which it has shown by the fleet's key.
    bool of_fleet = false;
    // The id of the request, which is sent in the answer's X-Request-Id and written to the access
    // log; see hub/net/http/request_id.h.
    std::string id;
    TimePoint received_at{};
    // Returns the value of the first header with the lower-case name `name`.
    std::optional<std::string_view> header(std::string_view name) const;
};

struct HttpResponse {
    unsigned status = 200;
    std::string content_type = "application/json";
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;
    // The name of the event, used if the body is sent as the last event of a stream; see
    // HttpResponder::expect_stream().
    std::string event_name = {};
    // This function runs once the whole answer has been passed to the operating system; may be
    // empty.
    std::function<void()> on_sent;
    // Sets a header of the answer; replaces a header of the same name.
    void set_header(std::string_view name, std::string value) {
        std::erase_if(headers, [name](const auto& header) { return header.first == name; });
        headers.emplace_back(name, std::move(value));
    }
};

const char* reason_phrase(unsigned status);  // "Not Found"

// Makes the error answer of `dialect`. OpenAI's is {"error":{"message","type","param","code"}} with
// the type that its clients expect. 429 and 503 get a Retry-After if the refusal has none.
HttpResponse refusal_response(const Refusal& refusal, Dialect dialect = Dialect::openai);

// One event, or one line of JSON, of a streamed answer. `name`, the event's name, may be empty.
// `id` is the event's number in a resumable stream, else empty.
struct StreamEvent {
    std::string data;
    std::string name = {};
    std::string id = {};
    // True: the event is of the moment. It has no number, and a client that resumes does not get
    // it.
    bool is_passing = false;
};

// Sends the answer to a request. Any thread may call it; the connection posts the calls to its
// strand. Dropping the last reference without an answer sends a 500.
class HttpResponder {
  public:
    explicit HttpResponder(Dialect dialect = Dialect::openai) : dialect_(dialect) {}
    virtual ~HttpResponder() = default;
    virtual void respond(HttpResponse response) = 0;
    void refuse(const Refusal& refusal) { respond(refusal_response(refusal, dialect_)); }
    // Begins a stream of server-sent events, or of lines of JSON, as the dialect requires. The
    // headers are sent at once. An event is "data: ...\n\n", a line "...\n". After 15 s of silence
    // a comment (events) or a blank (lines) is sent. `stream_id` is the id of a resumable stream
    // (hub/api/resumable.h), else empty.
    virtual void begin_stream(const std::string& stream_id) = 0;
    // Announces a stream: after 15 s without an answer the stream begins with pings, so that no
    // proxy times out the request. respond() still works after these pings: its body is sent as the
    // last event.
    virtual void expect_stream() = 0;
    // `on_sent` runs once the event has been sent, as HttpResponse::on_sent does. `on_sent` does
    // not run if the client disconnects before that.
    virtual void send_event(StreamEvent event, std::function<void()> on_sent = {}) = 0;
    virtual void end_stream() = 0;
    // `handler` is called once, on the connection's strand, if the client disconnects before the
    // answer is complete.
    virtual void on_disconnect(std::function<void()> handler) = 0;
    Dialect dialect() const { return dialect_; }

  private:
    const Dialect dialect_;
};

// A responder that also streams bytes.
class ByteResponder : public HttpResponder {
  public:
    using HttpResponder::HttpResponder;
    // Begins a stream of records, each with its length as a u32 before it (little-endian). After
    // 15 s of silence a record without bytes is sent. end_stream() ends it.
    virtual void begin_records(const std::string& content_type) = 0;
    // `on_sent` runs as that of send_event(). The record is at most 4 GiB long.
    virtual void send_record(std::shared_ptr<const Bytes> record,
                             std::function<void()> on_sent) = 0;
};

}  // namespace moex
