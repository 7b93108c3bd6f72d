// Streams that outlive their line: a request with `moex.resumable: true` goes on for a while after
// the client's connection broke, and GET /v1/streams/ID sends what it missed, each event once.
// A stream stands between a job, to which it is the responder, and one connection at a time. It
// keeps its last bytes with the number of each event, which goes out as the event's `id:`.
// Bound: bytes of each stream, streams of each owner and of all. Thread-safe.
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
    std::size_t bytes_max = 1u << 20;  // that one stream keeps: the last ones
    std::size_t per_owner_max = 4, streams_max = 256;
    Duration kept_for = 60s;  // behind a line that broke, or the end
    std::function<TimePoint()> clock = now_steady;
};

class ResumableStream : public HttpResponder, public std::enable_shared_from_this<ResumableStream> {
  public:
    ResumableStream(std::string id, std::string owner, const ResumableOptions& options,
                    std::shared_ptr<HttpResponder> line);

    // ---- The job's side. Its on_disconnect() is told once nobody may come back.
    void respond(HttpResponse response) override;
    void begin_stream(const std::string& stream_id) override;
    void expect_stream() override;
    void send_event(StreamEvent event, std::function<void()> on_sent) override;
    void end_stream() override;
    void on_disconnect(std::function<void()> handler) override;

    // ---- The clients' side.
    // The head goes out: the client knows the id before there is a first token.
    void announce();
    // `line` gets all events behind number `last_event`, and those that come; a former one ends.
    Checked<void> resume(std::shared_ptr<HttpResponder> line, std::uint64_t last_event);
    // Ends the work for it, and the line.
    void give_up();

    const std::string& id() const { return id_; }
    const std::string& owner() const { return owner_; }
    // Of one that has ended: until when somebody may come back.
    std::optional<TimePoint> ended_until() const;
    bool is_over(TimePoint now) const;  // nobody may come back

  private:
    struct Event {
        StreamEvent event;
        std::function<void()> on_sent;  // runs once, however often the event is sent
    };
    void hold_line();
    void begin();
    void lose_line(std::uint64_t serial);
    std::uint64_t newest() const { return first_number_ + events_.size() - 1; }

    const std::string id_, owner_;
    const ResumableOptions& options_;

    mutable std::mutex
        mutex_;  // of what follows; held while a line is given events, in their order
    std::shared_ptr<HttpResponder> line_;  // empty: broken, or all is said
    std::uint64_t line_serial_ = 0;
    std::deque<Event> events_;
    std::uint64_t first_number_ = 1;  // of events_
    std::size_t bytes_ = 0;
    bool begun_ = false, ended_ = false, given_up_ = false;
    std::optional<TimePoint> over_at_;
    std::function<void()> on_given_up_;
};

class ResumableStreams {
  public:
    explicit ResumableStreams(ResumableOptions options = {}) : options_(std::move(options)) {}
    // A new one on `line`, under 128 random bits. 429: this owner has as many running; 503: all.
    Checked<std::shared_ptr<ResumableStream>> open(const std::string& owner,
                                                   std::shared_ptr<HttpResponder> line);
    // 404: unknown, over, or somebody else's.
    Checked<std::shared_ptr<ResumableStream>> find(const std::string& owner,
                                                   const std::string& id) const;
    void remove(const std::string& id);
    // Gives up those to which nobody came back; once a second is often enough.
    void sweep();

  private:
    bool make_room(const std::string* owner, std::size_t max);

    const ResumableOptions options_;
    mutable std::mutex mutex_;
    std::map<std::string, std::shared_ptr<ResumableStream>> streams_;  // by id
};

}  // namespace moex
