// Streams that outlive their connection: a request with `moex.resumable: true` continues for a
// while after the client's connection broke, and GET /v1/streams/ID sends the events that the
// client missed, each event once.
// A stream is the responder of a job, and forwards its events to one connection at a time. It keeps
// the last bytes of the stream, and the number of each event, which is sent as the event's `id:`.
// Example: events 1 to 7 were sent, then the connection broke. The client sends `Last-Event-ID: 5`
// and receives events 6, 7 and all later ones.
// Bounds: bytes of each stream, streams of each owner, streams of all owners. Thread-safe.
// Source: WHATWG HTML, server-sent events, "Last-Event-ID".
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hub/api/http.h"

namespace moex {

struct ResumableOptions {
    std::size_t bytes_max = 1u << 20;  // bytes of its last events that one stream keeps
    std::size_t per_owner_max = 4, streams_max = 256;
    // Time that a stream is kept after its connection broke, or after its end.
    Duration kept_for = 60s;
    std::function<TimePoint()> clock = now_steady;
};

// The identity of a stream, and how it is kept.
struct StreamName {
    std::string id, owner;
    Duration kept_for{};     // as ResumableOptions::kept_for; 0: it ends when its connection breaks
    bool is_counted = true;  // counts against per_owner_max and streams_max
    // Another hub began the stream, and the client has its events up to this number. Those are
    // computed again here, and not sent.
    bool is_taken = false;
    std::uint64_t last_event = 0;
};

class ResumableStream : public HttpResponder, public std::enable_shared_from_this<ResumableStream> {
  public:
    ResumableStream(StreamName name, const ResumableOptions& options,
                    std::shared_ptr<HttpResponder> line);

    // ---- Functions for the job. The handler of on_disconnect() runs once the client can no longer
    // reconnect.
    void respond(HttpResponse response) override;
    void begin_stream(const std::string& stream_id) override;
    void expect_stream() override;
    void send_event(StreamEvent event, std::function<void()> on_sent) override;
    void end_stream() override;
    void on_disconnect(std::function<void()> handler) override;

    // ---- Functions for the clients.
    // Sends the head of the stream, so that the client has the stream's id before the first token.
    void announce();
    // Sends all events after number `last_event`, and all future events, to the connection `line`.
    // A former connection of the stream ends.
    Checked<void> resume(std::shared_ptr<HttpResponder> line, std::uint64_t last_event);
    // Cancels the job of the stream, and closes the connection.
    void give_up();

    const std::string& id() const { return name_.id; }
    const std::string& owner() const { return name_.owner; }
    bool is_counted() const { return name_.is_counted; }
    // The time until which a client may resume a stream that has ended; nullopt: it has not ended.
    std::optional<TimePoint> ended_until() const;
    bool is_over(TimePoint now) const;  // true if no client may resume the stream any more

  private:
    struct Event {
        StreamEvent event;
        // Runs only once, even if the event is sent to several connections.
        std::function<void()> on_sent;
    };
    void hold_line();
    void begin();
    void lose_line(std::uint64_t serial);
    std::uint64_t newest() const { return first_number_ + events_.size() - 1; }

    const StreamName name_;
    const ResumableOptions& options_;

    // Guards the following members. The mutex is held while events are passed to `line_`, so that
    // their order is kept.
    mutable std::mutex mutex_;
    std::shared_ptr<HttpResponder> line_;  // empty: the connection broke, or the stream has ended
    std::uint64_t line_serial_ = 0;
    std::deque<Event> events_;
    std::uint64_t first_number_ = 1;  // number of the first event in `events_`
    std::size_t bytes_ = 0;
    std::uint64_t sent_;  // the client has the events up to this number
    bool begun_ = false, ended_ = false, given_up_ = false;
    std::optional<TimePoint> over_at_;
    std::function<void()> on_given_up_;
};

class ResumableStreams {
  public:
    explicit ResumableStreams(ResumableOptions options = {}) : options_(std::move(options)) {}
    // Opens a stream on the connection `line`; its id is 128 random bits. Refuses with 429 if the
    // owner has too many streams already, and with 503 if all owners together have too many.
    Checked<std::shared_ptr<ResumableStream>> open(const std::string& owner,
                                                   std::shared_ptr<HttpResponder> line);
    // Opens a stream with a name; without bounds if the name is not counted.
    Checked<std::shared_ptr<ResumableStream>> open(StreamName name,
                                                   std::shared_ptr<HttpResponder> line);
    Duration kept_for() const { return options_.kept_for; }
    // Finds a stream by its id. Refuses with 404 if the stream is unknown, is over, or has another
    // owner.
    Checked<std::shared_ptr<ResumableStream>> find(const std::string& owner,
                                                   const std::string& id) const;
    void remove(const std::string& id);
    void drop(const std::string& id);  // removes a stream, and gives it up
    // Removes streams that no client may resume any more. Calling it once a second is enough.
    void sweep();

  private:
    bool make_room(const std::string* owner, std::size_t max);

    const ResumableOptions options_;
    mutable std::mutex mutex_;
    std::map<std::string, std::shared_ptr<ResumableStream>> streams_;  // by id
};

}  // namespace moex
