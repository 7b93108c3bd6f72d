#include "hub/api/resumable.h"

#include <algorithm>
#include <atomic>

#include "hub/base/random_digits.h"
#include "protocol/text.h"

namespace moex {
namespace {

// Returns a function that runs `function` only once: at the first call of the returned function or
// of any of its copies.
std::function<void()> once(std::function<void()> function) {
    if (!function) return {};
    const auto has_run = std::make_shared<std::atomic<bool>>(false);
    return [has_run, function = std::move(function)] {
        if (!has_run->exchange(true)) function();
    };
}

Refusal no_such_stream() {
    return {404,
            "There is no such stream: it was stopped, it was not resumed in time, or it belongs to "
            "another key.",
            "stream_not_found", ""};
}

}  // namespace

ResumableStream::ResumableStream(StreamName name, const ResumableOptions& options,
                                 std::shared_ptr<HttpResponder> line)
    : HttpResponder(line->dialect()),
      name_(std::move(name)),
      options_(options),
      line_(std::move(line)),
      sent_(name_.last_event) {}

// Registers a handler that runs when the present connection of the stream breaks.
void ResumableStream::hold_line() {
    line_->on_disconnect([weak = weak_from_this(), serial = ++line_serial_] {
        if (const auto self = weak.lock()) self->lose_line(serial);
    });
}

void ResumableStream::lose_line(std::uint64_t serial) {
    bool knows_id;
    {
        const std::lock_guard lock(mutex_);
        if (serial != line_serial_ || !line_) return;
        line_.reset();
        knows_id = begun_;
        if (!ended_) over_at_ = options_.clock() + name_.kept_for;
    }
    if (!knows_id || name_.kept_for == Duration{}) give_up();
}

void ResumableStream::begin() {
    if (std::exchange(begun_, true) || !line_) return;
    line_->begin_stream(name_.id);
}

void ResumableStream::announce() {
    const std::lock_guard lock(mutex_);
    if (!ended_) begin();
}

void ResumableStream::begin_stream(const std::string&) {
    const std::lock_guard lock(mutex_);
    begin();
}

void ResumableStream::expect_stream() {
    const std::lock_guard lock(mutex_);
    if (line_) line_->expect_stream();
}

// Sends the response as a plain answer if the stream's head has not been sent yet; otherwise its
// body is sent as the last event.
void ResumableStream::respond(HttpResponse response) {
    {
        const std::lock_guard lock(mutex_);
        if (!begun_) {
            ended_ = true;
            over_at_ = options_.clock();
            if (line_) line_->respond(std::move(response));
            line_.reset();
            return;
        }
    }

    send_event({std::move(response.body), std::move(response.event_name)},
               std::move(response.on_sent));
    end_stream();
}

void ResumableStream::send_event(StreamEvent event, std::function<void()> on_sent) {
    const std::lock_guard lock(mutex_);
    if (event.is_passing) {
        if (line_ && newest() >= sent_) line_->send_event(std::move(event), std::move(on_sent));
        return;
    }
    event.id = text(first_number_ + events_.size());
    bytes_ += event.data.size() + event.name.size();
    events_.push_back({std::move(event), once(std::move(on_sent))});
    while (bytes_ > options_.bytes_max && events_.size() > 1) {
        bytes_ -= events_.front().event.data.size() + events_.front().event.name.size();
        events_.pop_front();
        ++first_number_;
    }
    if (line_ && newest() > sent_) line_->send_event(events_.back().event, events_.back().on_sent);
}

void ResumableStream::end_stream() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    on_given_up_ = nullptr;
    if (!line_) return;  // the connection broke earlier, and the time to expiry runs already
    over_at_ = options_.clock() + name_.kept_for;
    line_->end_stream();
    line_.reset();
}

void ResumableStream::on_disconnect(std::function<void()> handler) {
    {
        const std::lock_guard lock(mutex_);
        const bool is_first = line_serial_ == 0;
        if (is_first && line_) hold_line();
        if (!given_up_) {
            on_given_up_ = std::move(handler);
            return;
        }
    }
    handler();
}

Checked<void> ResumableStream::resume(std::shared_ptr<HttpResponder> line,
                                      std::uint64_t last_event) {
    const std::lock_guard lock(mutex_);
    // No job sends events any more, so the connection would never end.
    if (given_up_ && !ended_) return no_such_stream();
    // The events that the client has of a former hub may still be computed again here.
    if (last_event > newest() && !name_.is_taken)
        return Refusal{
            400, text("This stream has no event ", last_event, "; its newest is ", newest(), "."),
            "invalid_value", "Last-Event-ID"};
    if (last_event + 1 < first_number_)
        return Refusal{
            410,
            text("Events ", last_event + 1, " to ", first_number_ - 1,
                 " are no longer kept: a stream keeps its last ", options_.bytes_max, " bytes."),
            "stream_too_long", "Last-Event-ID"};

    line_ = std::move(line);  // the former connection is cut off, so its client notices
    begun_ = true;
    sent_ = last_event;
    line_->begin_stream(name_.id);
    for (std::uint64_t i = last_event + 1 - first_number_; i < events_.size(); ++i)
        line_->send_event(events_[i].event, events_[i].on_sent);

    if (!ended_) {
        over_at_.reset();
        hold_line();
        return {};
    }
    over_at_ = options_.clock() + name_.kept_for;
    line_->end_stream();
    line_.reset();
    return {};
}

void ResumableStream::give_up() {
    std::function<void()> handler;
    {
        const std::lock_guard lock(mutex_);
        given_up_ = true;
        over_at_ = options_.clock();
        line_.reset();
        handler = std::exchange(on_given_up_, nullptr);
    }
    if (handler) handler();
}

std::optional<TimePoint> ResumableStream::ended_until() const {
    const std::lock_guard lock(mutex_);
    return ended_ || given_up_ ? over_at_ : std::nullopt;
}

bool ResumableStream::is_over(TimePoint now) const {
    const std::lock_guard lock(mutex_);
    return over_at_ && now >= *over_at_;
}

// Makes room for one more stream of `owner` (null: of all owners), within `max` streams. If there
// are `max` streams already, it removes the ended stream that expires first. Returns false if none
// of these streams has ended.
bool ResumableStreams::make_room(const std::string* owner, std::size_t max) {
    std::size_t count = 0;
    auto first = streams_.end();
    TimePoint first_until = TimePoint::max();
    for (auto at = streams_.begin(); at != streams_.end(); ++at) {
        if (!at->second->is_counted() || (owner && at->second->owner() != *owner)) continue;
        ++count;
        const auto until = at->second->ended_until();
        if (!until || *until >= first_until) continue;
        first = at;
        first_until = *until;
    }
    if (count < max) return true;
    if (first == streams_.end()) return false;
    streams_.erase(first);
    return true;
}

Checked<std::shared_ptr<ResumableStream>> ResumableStreams::open(
    const std::string& owner, std::shared_ptr<HttpResponder> line) {
    return open({.id = random_digits(32), .owner = owner, .kept_for = options_.kept_for},
                std::move(line));
}

Checked<std::shared_ptr<ResumableStream>> ResumableStreams::open(
    StreamName name, std::shared_ptr<HttpResponder> line) {
    const std::lock_guard lock(mutex_);
    if (name.is_counted && !make_room(&name.owner, options_.per_owner_max))
        return Refusal{429,
                       text(options_.per_owner_max,
                            " resumable streams of this client run already; end one with DELETE "
                            "/v1/streams/ID, or ask without 'moex.resumable'."),
                       "too_many_streams", "moex.resumable"};
    if (name.is_counted && !make_room(nullptr, options_.streams_max))
        return Refusal{503, "The hub has the most resumable streams that it allows.",
                       "too_many_streams", "moex.resumable"};

    const std::string id = name.id;
    auto stream = std::make_shared<ResumableStream>(std::move(name), options_, std::move(line));
    streams_.insert_or_assign(id, stream);
    return stream;
}

Checked<std::shared_ptr<ResumableStream>> ResumableStreams::find(const std::string& owner,
                                                                 const std::string& id) const {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(id);
    if (found != streams_.end() && found->second->owner() == owner &&
        !found->second->is_over(options_.clock()))
        return found->second;
    return no_such_stream();
}

void ResumableStreams::remove(const std::string& id) {
    const std::lock_guard lock(mutex_);
    streams_.erase(id);
}

void ResumableStreams::drop(const std::string& id) {
    std::shared_ptr<ResumableStream> stream;
    {
        const std::lock_guard lock(mutex_);
        const auto found = streams_.find(id);
        if (found == streams_.end()) return;
        stream = std::move(found->second);
        streams_.erase(found);
    }
    stream->give_up();
}

void ResumableStreams::sweep() {
    std::vector<std::shared_ptr<ResumableStream>> over;
    {
        const std::lock_guard lock(mutex_);
        const TimePoint now = options_.clock();
        for (auto at = streams_.begin(); at != streams_.end();)
            if (at->second->is_over(now)) {
                over.push_back(at->second);
                at = streams_.erase(at);
            } else {
                ++at;
            }
    }
    for (const auto& stream : over) stream->give_up();
}

}  // namespace moex
