// The worker's connection to the hub. This class opens it, sends HELLO, closes it when the hub
// falls silent, and opens it again after a delay with full jitter. This class counts and sends
// frames; worker_core interprets them.
#pragma once

#include <string>
#include <string_view>

#include "web-worker/session/status_report.h"

namespace moex {

class HubConnection {
  public:
    HubConnection(Platform& platform, StatusReport& report)
        : platform_(platform),
          report_(report) {}
    ~HubConnection();
    HubConnection(const HubConnection&) = delete;

    bool online() const { return online_; }    // HELLO was answered
    bool greeted() const { return greeted_; }  // HELLO was sent, with the values of that moment
    bool closing() const { return closing_; }  // hung up; the platform has not confirmed it yet
    // Returns the number of connections so far: an answer is sent only on the connection of its
    // call.
    std::uint64_t number() const { return number_; }
    // Returns false after this side closed the connection: frames that still arrive are not
    // answered.
    bool listening() const { return !leaving_; }

    void connect();  // opens a connection; does nothing while one is being opened
    void retry_later(std::string why, std::function<void()> retry);
    bool retrying() const { return retry_timer_ != 0; }
    void stop_retrying();
    void hang_up(std::string_view why);

    void greet(const Hello& hello);
    void welcomed(std::uint32_t heartbeat_ms);
    void heard();  // called when a frame has arrived: the hub is alive
    void failed_by_hub(std::string code) { fatal_code_ = std::move(code); }

    void send(ByteView frame);
    void send_error(std::uint32_t sequence_id, const Error& error, bool fatal,
                    std::string wanted = {});
    void protocol_error(const Error& error) { protocol_error(error, close_code_for(error.code)); }
    // Sends an ERROR frame that describes `error`, then closes the connection.
    void protocol_error(const Error& error, CloseCode code);

    // The platform's events.
    void opened();
    struct End {
        bool refused = false;  // the hub refused the worker: a retry would not help
        bool bad_token = false;
    };
    End closed(std::uint16_t code);

  private:
    void watch_silence();

    Platform& platform_;
    StatusReport& report_;
    bool opening_ = false, greeted_ = false, online_ = false, closing_ = false, leaving_ = false;
    // The code of the hub's last fatal ERROR on this connection.
    std::string fatal_code_;
    std::uint32_t heartbeat_ms_ = 2000;
    std::uint32_t failures_ = 0;  // connections in a row that broke early
    double welcomed_at_ms_ = 0;
    std::uint64_t number_ = 0;
    std::uint64_t retry_timer_ = 0, silence_timer_ = 0;
};

}  // namespace moex
