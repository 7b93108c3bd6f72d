#include "web-worker/session/hub_connection.h"

#include <algorithm>
#include <cmath>

namespace moex {
namespace {
constexpr double connect_ms_min = 500, connect_ms_max = 30000;
constexpr double failures_forgotten_ms = 10000;  // time of service
// If this many heartbeats bring no frame, the connection is dead.
constexpr double heartbeats_silent = 6;
}  // namespace

HubConnection::~HubConnection() {
    for (const std::uint64_t timer : {retry_timer_, silence_timer_})
        if (timer != 0) platform_.clear_timer(timer);
}

void HubConnection::connect() {
    if (std::exchange(opening_, true)) return;
    // Events of the connection before are not reported any more.
    closing_ = false;
    platform_.connect();
}

void HubConnection::retry_later(std::string why, std::function<void()> retry) {
    const double most = std::min(connect_ms_max,
                                 2 * connect_ms_min * std::pow(2.0, std::min(failures_, 10u)));
    const double delay_ms = connect_ms_min + platform_.random() * (most - connect_ms_min);

    ++failures_;
    report_.status.retry_at_ms = platform_.now_ms() + delay_ms;
    report_.enter(WorkerPhase::offline, std::move(why));

    stop_retrying();
    retry_timer_ = platform_.set_timer(delay_ms, [this, retry = std::move(retry)] {
        retry_timer_ = 0;
        retry();
    });
}

void HubConnection::stop_retrying() {
    if (retry_timer_ != 0) platform_.clear_timer(std::exchange(retry_timer_, 0));
}

void HubConnection::hang_up(std::string_view why) {
    leaving_ = true;
    closing_ = online_ || greeted_;
    opening_ = online_ = greeted_ = false;
    if (silence_timer_ != 0) platform_.clear_timer(std::exchange(silence_timer_, 0));
    platform_.close(1001, why);
}

void HubConnection::greet(const Hello& hello) {
    greeted_ = true;
    send(encode_hello(hello));
    watch_silence();
}

void HubConnection::welcomed(std::uint32_t heartbeat_ms) {
    online_ = true;
    welcomed_at_ms_ = platform_.now_ms();
    heartbeat_ms_ = heartbeat_ms;
}

// A connection that lasts resets the count of failures. A hub that breaks right after each WELCOME
// is therefore retried after longer and longer delays, like a hub that cannot be reached.
void HubConnection::heard() {
    if (online_ && platform_.now_ms() - welcomed_at_ms_ >= failures_forgotten_ms) failures_ = 0;
    watch_silence();
}

// Closes a connection that went silent without closing (sleep, a lost NAT entry). The hub sends a
// frame at every heartbeat.
void HubConnection::watch_silence() {
    if (silence_timer_ != 0) platform_.clear_timer(silence_timer_);
    silence_timer_ = platform_.set_timer(heartbeats_silent * std::max(500u, heartbeat_ms_), [this] {
        silence_timer_ = 0;
        if (greeted_) hang_up("the hub fell silent");
    });
}

void HubConnection::send(ByteView frame) {
    ++report_.status.frames_sent;
    report_.status.bytes_sent += frame.size();
    platform_.send(frame);
    report_.changed();
}

void HubConnection::send_error(std::uint32_t sequence_id, const Error& error, bool fatal,
                               std::string wanted) {
    ++report_.status.errors;
    send(encode_error({.sequence_id = sequence_id,
                       .code = error_code_name(error.code),
                       .found = error.message,
                       .wanted = std::move(wanted),
                       .fatal = fatal}));
}

void HubConnection::protocol_error(const Error& error, CloseCode code) {
    send_error(no_sequence_id, error, true);
    leaving_ = true;
    platform_.close(static_cast<std::uint16_t>(code), error.message);
}

void HubConnection::opened() {
    leaving_ = closing_ = opening_ = false;
    fatal_code_.clear();
    ++number_;
}

HubConnection::End HubConnection::closed(std::uint16_t code) {
    opening_ = online_ = greeted_ = false;
    if (silence_timer_ != 0) platform_.clear_timer(std::exchange(silence_timer_, 0));
    // If the hub closed because HELLO arrived too late, it did not refuse the worker.
    const bool refused = code == static_cast<std::uint16_t>(CloseCode::policy) &&
                         fatal_code_ != error_code_name(ErrorCode::timeout);

    // If no ERROR frame arrived, the hub refused the WebSocket upgrade because of the token.
    const bool bad_token = fatal_code_.empty() ||
                           fatal_code_ == error_code_name(ErrorCode::unauthorized);
    closing_ = false;
    return {.refused = refused, .bad_token = refused && bad_token};
}

}  // namespace moex
