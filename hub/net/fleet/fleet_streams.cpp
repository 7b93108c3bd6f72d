#include "hub/net/fleet/fleet_streams.h"

#include <ctime>
#include <utility>

#include "hub/base/log.h"
#include "hub/net/fleet/fleet_proof.h"
#include "hub/net/http/client_line.h"
#include "hub/net/http/event_blocks.h"
#include "protocol/thread_name.h"

namespace moex::net {
namespace {

constexpr int waiting_max = 256;
constexpr std::size_t answer_bytes_max = 16u << 20;
// A hub that is killed has closed its port after this time.
constexpr Duration pause_before_second = std::chrono::milliseconds(100);

}  // namespace

// One request that another hub answers, and the connection to that hub. A connection that ends
// without the head of an answer is tried once more: a hub that lives may have dropped it, and only
// a dead one loses its streams.
class FleetStreams::Passage : public std::enable_shared_from_this<Passage> {
  public:
    Passage(asio::io_context& io, HubAddress address, std::shared_ptr<ssl::context> tls,
            ClientRequest request, std::shared_ptr<HttpResponder> responder,
            std::function<void()> on_gone)
        : strand_(io.get_executor()),
          address_(std::move(address)),
          tls_(std::move(tls)),
          request_(std::move(request)),
          responder_(std::move(responder)),
          on_gone_(std::move(on_gone)),
          pause_(strand_) {}

    void start() {
        const auto self = shared_from_this();
        responder_->on_disconnect([self] {
            asio::post(self->strand_, [self] {
                self->pause_.cancel();
                if (const auto line = std::exchange(self->line_, nullptr)) line->close();
                self->release();
            });
        });
        asio::post(strand_, [self] { self->ask(); });
    }

  private:
    // Gives up the request. The client's connection breaks when its responder is destroyed, and
    // `on_gone_` has the responder, too.
    std::pair<std::shared_ptr<HttpResponder>, std::function<void()>> release() {
        return {std::move(responder_), std::exchange(on_gone_, nullptr)};
    }
    void ask() {
        if (!responder_) return;
        const auto self = shared_from_this();
        line_ = std::make_shared<ClientLine>(
            strand_, address_, tls_,
            ClientLine::Events{.on_head = [self](const ReplyHead& head) { self->on_head(head); },
                               .on_body = [self](std::string_view bytes) { self->on_body(bytes); },
                               .on_end = [self](ClientLine::End end) { self->on_end(end); }});
        line_->start(request_);
    }
    void on_head(const ReplyHead& head) {
        head_ = head;
        streams_ = head.status == 200 &&
                   head.header("content-type").starts_with("text/event-stream");
        if (streams_ && responder_)
            responder_->begin_stream(std::string(head.header("x-moex-stream")));
    }
    void on_body(std::string_view bytes) {
        if (!responder_) return;
        if (!streams_) {
            body_ += bytes;
            if (body_.size() <= answer_bytes_max) return;
            line_->close();  // which ends without an event
            return on_end(ClientLine::End::cut);
        }
        for (const std::string& block : blocks_.feed(bytes)) {
            ReadEvent event = read_event(block);
            if (!event.is_comment)
                responder_->send_event(
                    {std::move(event.data), std::move(event.name), std::move(event.id)});
        }
    }
    void on_end(ClientLine::End end) {
        line_.reset();
        const bool is_dying = end == ClientLine::End::cut && !head_;
        if (responder_ && is_dying && !std::exchange(is_second_, true)) {
            pause_.expires_after(pause_before_second);
            return pause_.async_wait([self = shared_from_this()](NetError) { self->ask(); });
        }
        const auto [responder, on_gone] = release();
        if (!responder) return;
        // A hub that is just killed takes the connection and ends it without a word. Should it live
        // after all, its journal tells it that the stream was taken.
        if (end == ClientLine::End::refused || is_dying) return on_gone();
        if (end != ClientLine::End::whole) {
            if (!head_)
                responder->refuse(
                    {503, "The hub of the stream does not answer.", "unavailable", ""});
            return;  // the client's connection breaks, as that of the hub did
        }
        if (streams_) return responder->end_stream();
        HttpResponse response{.status = head_->status, .body = std::move(body_)};
        response.content_type = head_->header("content-type");
        responder->respond(std::move(response));
    }

    const asio::strand<asio::io_context::executor_type> strand_;
    const HubAddress address_;
    const std::shared_ptr<ssl::context> tls_;
    const ClientRequest request_;
    std::shared_ptr<HttpResponder> responder_;  // empty once answered, as is on_gone_
    std::function<void()> on_gone_;
    std::shared_ptr<ClientLine> line_;  // null between two connections, and after the last
    asio::steady_timer pause_;
    bool is_second_ = false;  // the connection, if the first one was cut
    std::optional<ReplyHead> head_;
    bool streams_ = false;
    std::string body_;
    EventBlocks blocks_;
};

FleetStreams::FleetStreams(Registry& registry, const FleetKey& key, FleetStreamsOptions options)
    : key_(key),
      options_(std::move(options)),
      journal_(
          registry.store(), key,
          [this, &registry] {
              return Incarnation{options_.hub_id, registry.incarnation()};
          },
          [this](const std::string& stream_id) {
              const std::lock_guard lock(lost_mutex_);
              if (!is_stopped_) options_.on_lost(stream_id);
          }),
      tls_(make_tls_client_context(options_.ca_file)),
      thread_([this] {
          name_thread("fleet");
          io_.run();
      }) {}

FleetStreams::~FleetStreams() {
    stop();
    lookups_.join();
    work_.reset();
    io_.stop();
    thread_.join();
}

void FleetStreams::stop() {
    {
        const std::lock_guard lock(lost_mutex_);
        is_stopped_ = true;
    }
    lookups_.stop();
    lookups_.join();
}

void FleetStreams::begin(const std::string& stream_id, Bytes head) {
    journal_.begin(stream_id, std::move(head));
}
void FleetStreams::add(const std::string& stream_id, Bytes token) {
    journal_.add(stream_id, std::move(token));
}
void FleetStreams::end(const std::string& stream_id) { journal_.end(stream_id); }

Result<StreamFleet::Found> FleetStreams::find(const std::string& stream_id, bool owner_is_gone) {
    auto taken = journal_.take(stream_id, owner_is_gone);
    if (!taken.ok()) return taken.error();
    return Found{.is_ours = taken->is_ours,
                 .hub_id = std::move(taken->hub_id),
                 .address = std::move(taken->address),
                 .head = std::move(taken->head),
                 .tokens = std::move(taken->records)};
}

void FleetStreams::leave(const std::string& stream_id) {
    if (const Status left = journal_.leave(stream_id); !left.ok())
        log_rarely(LogLevel::warn, "fleet: a stream stays here until its journal is deleted",
                   kv("error", left.error().message));
}

void FleetStreams::pass_on(const std::string& address, const HttpRequest& request,
                           std::shared_ptr<HttpResponder> responder,
                           std::function<void()> on_gone) {
    const auto hub = HubAddress::parse(address);
    if (!hub.ok())
        return responder->refuse({503,
                                  text("The hub of the stream has no address that another hub "
                                       "can use: ",
                                       address, "."),
                                  "unavailable", ""});
    ClientRequest asked{.method = request.method, .target = request.path, .body = {}};
    for (const auto& [name, value] : request.headers)
        if (name == "authorization" || name == "x-api-key" || name == "last-event-id")
            asked.headers.emplace_back(name, value);
    asked.headers.emplace_back("x-forwarded-for", request.remote_address);
    asked.headers.emplace_back("x-moex-passed", "1");
    prove_fleet(key_, asked.method, asked.target, asked.headers, std::time(nullptr));
    std::make_shared<Passage>(io_, *hub, tls_, std::move(asked), std::move(responder),
                              std::move(on_gone))
        ->start();
}

bool FleetStreams::run_later(std::function<void()> work) {
    if (++num_waiting_ > waiting_max) {
        --num_waiting_;
        return false;
    }
    asio::post(lookups_, [this, work = std::move(work)] {
        work();
        --num_waiting_;
    });
    return true;
}

}  // namespace moex::net
