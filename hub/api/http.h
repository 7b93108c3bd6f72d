// HTTP as the routes see it: a request that passed the gate, and
// a responder that takes one whole answer or a stream of events.
// No socket here, so that the API handlers are tested without one.
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

namespace moex {

struct HttpRequest {
    std::string method;  // "GET", "POST", ...
    std::string path;    // decoded, without the query; begins with '/'
    std::string rest;    // of the path: what the '*' of its route stands for
    std::string query;   // raw, without '?'
    std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
    std::string body;
    // the client's, without port: the peer, or whom a trusted proxy forwards
    std::string remote_address;
    // whom work is counted for: clients with one name take turns as one
    std::string client;
    // whose streams it may resume: a key's, or without keys an address's
    std::string owner;
    // whom its tokens are counted for; null: nobody
    std::shared_ptr<RequestAccount> account;
    // the client is this machine, as far as anybody can tell
    bool loopback = false;
    bool secure = false;  // it came over TLS, here or at a trusted proxy
    bool http_1_0 = false;
    // In the answer's X-Request-Id and in the access log; see hub/net/http/request_id.h.
    std::string id;
    TimePoint received_at{};
    // First value of a header, by lower-case name.
    std::optional<std::string_view> header(std::string_view name) const;
};

struct HttpResponse {
    unsigned status = 200;
    std::string content_type = "application/json";
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;
    // Where it goes out as the last event of a stream; see HttpResponder::expect_stream().
    std::string event_name = {};
    // Runs once the answer has left whole, for the operating system to deliver; may be empty.
    std::function<void()> on_sent;
    // In the place of one that is there already.
    void set_header(std::string_view name, std::string value) {
        std::erase_if(headers, [name](const auto& header) { return header.first == name; });
        headers.emplace_back(name, std::move(value));
    }
};

const char* reason_phrase(unsigned status);  // "Not Found"

// The error object of `dialect`; OpenAI's is {"error":{"message","type","param","code"}} with the
// type that its clients expect. 429 and 503 get a Retry-After where the refusal brings none.
HttpResponse refusal_response(const Refusal& refusal, Dialect dialect = Dialect::openai);

// One event of a stream, or one line of it; `name` may be empty, and so may `id`, its number in a
// stream that can be resumed.
struct StreamEvent {
    std::string data;
    std::string name = {};
    std::string id = {};
};

// The way back of one request. Any thread may call it; the connection posts
// to its strand. Dropping the last reference without an answer sends a 500.
class HttpResponder {
  public:
    explicit HttpResponder(Dialect dialect = Dialect::openai) : dialect_(dialect) {}
    virtual ~HttpResponder() = default;
    virtual void respond(HttpResponse response) = 0;
    void refuse(const Refusal& refusal) { respond(refusal_response(refusal, dialect_)); }
    // Server-sent events, or lines of JSON where the dialect has those: headers go out at once;
    // each event is "data: ...\n\n", a line "...\n"; a comment or a blank goes out after 15 s of
    // silence. `stream_id`: of one that can be resumed (hub/api/resumable.h); else empty.
    virtual void begin_stream(const std::string& stream_id) = 0;
    // A stream will come if all goes well: after 15 s without an answer it
    // begins with pings, so that nobody in between gives the request up.
    // respond() then still works: its body goes out as the stream's last event.
    virtual void expect_stream() = 0;
    // `on_sent` runs once the event has left, as HttpResponse::on_sent does: not at all when the
    // client leaves before.
    virtual void send_event(StreamEvent event, std::function<void()> on_sent = {}) = 0;
    virtual void end_stream() = 0;
    // Called (once, on the connection's strand) when the
    // client went away before the answer was complete.
    virtual void on_disconnect(std::function<void()> handler) = 0;
    Dialect dialect() const { return dialect_; }

  private:
    const Dialect dialect_;
};

}  // namespace moex
