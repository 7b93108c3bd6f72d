// One request through a front, up to the end of its answer, over as many hubs as it takes.
//
// A streamed answer has numbered events. When its hub is gone, the front asks another one for the
// stream after the last event that it has passed on (GET /v1/streams/ID). A hub that finds no
// journal of the stream gets the request itself again, with the same id: the id gives the seed, so
// the text is the same, and the hub leaves out the events that were sent. An answer that is not
// streamed is asked for again as a whole, and so is a stream of lines of JSON: its first lines,
// which the client has, are left out here. Owner: the strand of the client's connection.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "hub/net/front/front_context.h"
#include "hub/net/http/event_blocks.h"

namespace moex::net {

class FrontExchange : public std::enable_shared_from_this<FrontExchange> {
  public:
    // The client's connection.
    struct Client {
        std::function<void(std::string bytes)> send;
        std::function<void(bool keep_alive)> end;    // the answer is complete, or broke
        std::function<std::size_t()> waiting_bytes;  // that are not sent yet
    };
    FrontExchange(FrontContext& front, ClientLine::Strand strand, GatedRequest request,
                  Client client);
    ~FrontExchange();
    void start();
    void on_drained();  // the client has read what waited
    void abandon();     // the client has gone

  private:
    bool is_generation() const;
    void ask();
    void ask_later();
    ClientRequest make_request() const;
    ClientRequest make_follow() const;
    void on_head(const ReplyHead& head);
    void on_body(std::string_view bytes);
    void on_end(ClientLine::End end);
    void on_answer();
    void on_cut(ClientLine::End end);
    void leave_hub();
    void watch_hub();
    void pass_block(const std::string& block);
    void pass_lines(std::string_view bytes);
    void send_head(const ReplyHead& head, std::optional<std::size_t> body_bytes);
    void send_chunk(std::string_view bytes);
    void finish(bool keep_alive);
    void give_up();
    void refuse(unsigned status, std::string_view message);

    FrontContext& front_;
    const ClientLine::Strand strand_;
    const GatedRequest request_;
    Client client_;
    const std::string own_id_;  // 32 random hexadecimal digits: the request, at whichever hub
    asio::steady_timer timer_;  // to the next attempt, or to the next look at the hub
    TimePoint heard_at_{};      // the hub's last bytes
    TimePoint give_up_at_{};

    PrefixRoutes::Keys prompt_;         // of a request for a model's answer
    std::shared_ptr<ClientLine> line_;  // to the present hub; null: none
    std::string hub_url_;
    std::set<std::string> avoided_;  // hubs that refused the request or are gone
    ReplyHead head_;
    std::string body_;
    EventBlocks blocks_;
    std::string line_held_;        // the beginning of a line of JSON
    std::uint64_t num_lines_ = 0;  // of the present hub
    bool streams_ = false;         // the present hub sends events or lines
    bool has_lines_ = false;       // ... lines of JSON
    bool follows_ = false;         // the present hub was asked for the stream, not for the answer

    bool begun_ = false;  // the client has the head of a stream
    std::string stream_id_;
    std::uint64_t last_event_ = 0;  // number of the last event or line that was passed on
    bool has_unnumbered_ = false;   // an event without a number was passed on
    bool has_journal_ = true;       // false: a hub has no journal of the stream
    bool keeps_id_ = false;         // the client gets the numbers of events
    bool over_ = false;
};

}  // namespace moex::net
