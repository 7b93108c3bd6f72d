// The line to the hub: opened, greeted on, given up when
// the hub falls silent, and opened again with full jitter.
// Knows frames, not experts: what a frame means is worker_core's to say.
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
    bool greeted() const { return greeted_; }  // HELLO was sent, with what was true then
    bool closing() const { return closing_; }  // hung up; the platform has not said so yet
    // Counts connections: an answer belongs to the one that asked.
    std::uint64_t number() const { return number_; }
    // else this side closed it: what still comes in is not answered
    bool listening() const { return !leaving_; }

    void connect();  // unless it is being opened already
    void retry_later(std::string why, std::function<void()> retry);
    bool retrying() const { return retry_timer_ != 0; }
    void stop_retrying();
    void hang_up(std::string_view why);

    void greet(const Hello& hello);
    void welcomed(std::uint32_t heartbeat_ms);
    void heard();  // a frame came in: the hub is there
    void failed_by_hub(std::string code) { fatal_code_ = std::move(code); }

    void send(ByteView frame);
    void send_error(std::uint32_t sequence_id, const Error& error, bool fatal,
                    std::string wanted = {});
    void protocol_error(const Error& error) { protocol_error(error, close_code_for(error.code)); }
    // says what was wrong, then closes
    void protocol_error(const Error& error, CloseCode code);

    // From the platform.
    void opened();
    struct End {
        bool refused = false;  // for good: trying again would not help
        bool bad_token = false;
    };
    End closed(std::uint16_t code);

  private:
    void wait_for_a_word();

    Platform& platform_;
    StatusReport& report_;
    bool opening_ = false, greeted_ = false, online_ = false, closing_ = false, leaving_ = false;
    // of the hub's last fatal ERROR on this connection
    std::string fatal_code_;
    std::uint32_t heartbeat_ms_ = 2000;
    std::uint32_t failures_ = 0;  // connections in a row that did not last
    double welcomed_at_ms_ = 0;
    std::uint64_t number_ = 0;
    std::uint64_t retry_timer_ = 0, silence_timer_ = 0;
};

}  // namespace moex
