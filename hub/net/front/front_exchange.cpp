#include "hub/net/front/front_exchange.h"

#include <charconv>
#include <ctime>

#include "hub/base/log.h"
#include "hub/base/random_digits.h"
#include "hub/net/access/access.h"
#include "hub/net/fleet/fleet_proof.h"
#include "hub/net/front/stop_event.h"
#include "protocol/text.h"

namespace moex::net {
namespace {

constexpr Duration ask_again_after = std::chrono::milliseconds(100);
constexpr Duration watch_every = std::chrono::seconds(1), silent_max = std::chrono::seconds(3);
// How long a request may be without a hub: longer than a lost lease of a hub that hangs.
constexpr Duration hubless_max = std::chrono::seconds(60);
constexpr std::size_t answer_bytes_max = 64u << 20, waiting_bytes_max = 1u << 20;

// Headers that belong to one connection, and those that the front sets itself.
bool is_own_header(std::string_view name) {
    for (const char* own :
         {"host", "connection", "keep-alive", "content-length", "transfer-encoding", "expect",
          "upgrade", "te", "trailer", "origin", "x-forwarded-for", "x-forwarded-proto"})
        if (name == own) return true;
    return name.starts_with("x-moex-");
}

}  // namespace

FrontExchange::FrontExchange(FrontContext& front, ClientLine::Strand strand, GatedRequest request,
                             Client client)
    : front_(front),
      strand_(std::move(strand)),
      request_(std::move(request)),
      client_(std::move(client)),
      own_id_(random_digits(32)),
      timer_(strand_) {
    ++front_.requests;
}

FrontExchange::~FrontExchange() { --front_.requests; }

// True for requests that may be sent again, since they change nothing but counts.
bool FrontExchange::is_generation() const {
    if (request_.method != "POST") return false;
    for (const char* path : {"/v1/", "/api/chat", "/api/generate", "/api/embed", "/completion",
                             "/infill", "/tokenize", "/detokenize", "/apply-template"})
        if (request_.path.starts_with(path)) return true;
    return false;
}

void FrontExchange::start() {
    give_up_at_ = now_steady() + hubless_max;
    if (is_generation()) prompt_ = PrefixRoutes::keys_of_body(request_.body);
    keeps_id_ = request_.method == "GET" ||
                request_.body.find("\"resumable\"") != std::string::npos;
    ask();
}

ClientRequest FrontExchange::make_request() const {
    // A HEAD is asked for as a GET, whose body is then left out.
    ClientRequest out{.method = request_.method == "HEAD" ? "GET" : request_.method,
                      .target = request_.raw_target,
                      .body = request_.body};
    for (const auto& [name, value] : request_.headers)
        if (!is_own_header(name)) out.headers.emplace_back(name, value);
    // The front's own pages are the hub's own pages.
    const auto origin = request_.header("origin"), host = request_.header("host");
    if (origin) {
        const std::size_t scheme = origin->find("://");
        const bool is_own = host && scheme != std::string_view::npos &&
                            origin->substr(scheme + 3) == *host;
        out.headers.emplace_back("origin", is_own ? hub_url_ : std::string(*origin));
    }
    if (!is_generation()) return out;
    std::erase_if(out.headers, [](const auto& one) { return one.first == "last-event-id"; });
    out.headers.emplace_back("x-moex-stream", stream_id_.empty() ? own_id_ : stream_id_);
    if (last_event_ > 0) out.headers.emplace_back("last-event-id", text(last_event_));
    return out;
}

ClientRequest FrontExchange::make_follow() const {
    ClientRequest out{.method = "GET", .target = "/v1/streams/" + stream_id_, .body = {}};
    for (const auto& [name, value] : request_.headers)
        if (name == "authorization" || name == "x-api-key") out.headers.emplace_back(name, value);
    out.headers.emplace_back("last-event-id", text(last_event_));
    return out;
}

void FrontExchange::ask() {
    if (over_) return;
    const TimePoint now = now_steady();
    if (now >= give_up_at_) return give_up();
    const auto hub = front_.hubs.pick(avoided_, now, prompt_);
    if (!hub) {
        avoided_.clear();
        return ask_later();
    }
    hub_url_ = hub->url();
    head_ = {};
    body_.clear();
    blocks_ = {};
    line_held_.clear();
    num_lines_ = 0;
    streams_ = false;

    follows_ = begun_ && has_journal_ && !stream_id_.empty();
    ClientRequest request = follows_ ? make_follow() : make_request();
    request.headers.emplace_back("x-forwarded-for", request_.remote_address);
    prove_fleet(front_.key, request.method, request.target, request.headers, std::time(nullptr));
    const auto self = shared_from_this();
    line_ = std::make_shared<ClientLine>(
        strand_, *hub, front_.hub_tls,
        ClientLine::Events{.on_head = [self](const ReplyHead& head) { self->on_head(head); },
                           .on_body = [self](std::string_view bytes) { self->on_body(bytes); },
                           .on_end = [self](ClientLine::End end) { self->on_end(end); }});
    line_->start(request);
    heard_at_ = now;
    watch_hub();
}

// Leaves a hub that hangs: nothing arrives, and its lease has ended.
void FrontExchange::watch_hub() {
    timer_.expires_after(watch_every);
    timer_.async_wait([self = shared_from_this()](NetError error) {
        if (error || self->over_ || !self->line_) return;
        const bool is_silent = now_steady() - self->heard_at_ > silent_max;
        if (!is_silent || self->front_.hubs.lives(self->hub_url_)) return self->watch_hub();
        self->leave_hub();
        self->on_cut(ClientLine::End::silent);
    });
}

void FrontExchange::ask_later() {
    timer_.expires_after(ask_again_after);
    timer_.async_wait([self = shared_from_this()](NetError error) {
        if (!error) self->ask();
    });
}

void FrontExchange::leave_hub() {
    if (!line_) return;
    std::exchange(line_, nullptr)->close();
    front_.hubs.done(hub_url_);
}

void FrontExchange::on_head(const ReplyHead& head) {
    head_ = head;
    has_lines_ = head.header("content-type").starts_with("application/x-ndjson");
    streams_ = head.status == 200 &&
               (has_lines_ || head.header("content-type").starts_with("text/event-stream"));
    if (!streams_) return;
    if (const auto id = head.header("x-moex-stream"); !id.empty()) stream_id_ = id;
    give_up_at_ = {};
    avoided_.clear();
    if (std::exchange(begun_, true))
        ++(follows_ ? front_.followed : front_.repeated);
    else
        send_head(head, std::nullopt);
}

void FrontExchange::on_body(std::string_view bytes) {
    heard_at_ = now_steady();
    if (!streams_) {
        body_ += bytes;
        if (body_.size() > answer_bytes_max) {
            leave_hub();
            refuse(502, "The answer of the hub is longer than a front passes on.");
        }
        return;
    }
    const std::shared_ptr<ClientLine> line = line_;
    if (has_lines_)
        pass_lines(bytes);
    else
        for (const std::string& block : blocks_.feed(bytes)) {
            pass_block(block);
            if (over_ || line_ != line) return;
        }
    if (over_ || line_ != line) return;
    if (client_.waiting_bytes() > waiting_bytes_max) line_->pause();
}

void FrontExchange::on_drained() {
    if (line_ && client_.waiting_bytes() <= waiting_bytes_max) line_->resume();
}

// Passes an event on once. The client gets its number only if it asked for a stream that it can
// resume.
void FrontExchange::pass_block(const std::string& block) {
    const ReadEvent event = read_event(block);
    if (says_that_it_stops(event.data)) {
        leave_hub();
        return on_cut(ClientLine::End::cut);
    }
    if (!event.id.empty()) {
        std::uint64_t number = 0;
        std::from_chars(event.id.data(), event.id.data() + event.id.size(), number);
        if (number <= last_event_) return;
        last_event_ = number;
    } else if (!event.is_comment) {
        has_unnumbered_ = true;
    }
    send_chunk((keeps_id_ ? block : without_id(block)) + "\n\n");
}

// Passes lines of JSON on once. They have no numbers, so the front counts them: an answer that is
// asked for again has the same seed, and thus the same lines.
void FrontExchange::pass_lines(std::string_view bytes) {
    line_held_ += bytes;
    std::size_t begin = 0;
    for (std::size_t end; (end = line_held_.find('\n', begin)) != std::string::npos;) {
        // Blanks before a line are signs of life.
        const std::size_t first = std::min(line_held_.find_first_not_of(' ', begin), end);
        const std::string line = line_held_.substr(first, end - first);
        begin = end + 1;
        if (says_that_it_stops(line)) {
            leave_hub();
            return on_cut(ClientLine::End::cut);
        }
        if (++num_lines_ <= last_event_) continue;
        last_event_ = num_lines_;
        send_chunk(line + "\n");
    }
    line_held_.erase(0, begin);
    if (!line_held_.empty() && line_held_.find_first_not_of(' ') == std::string::npos) {
        send_chunk(" ");
        line_held_.clear();
    }
}

void FrontExchange::on_end(ClientLine::End end) {
    front_.hubs.done(hub_url_);
    line_.reset();
    if (over_) return;
    if (end == ClientLine::End::whole) return on_answer();
    front_.hubs.failed(hub_url_, now_steady());
    on_cut(end);
}

// The hub is gone, before its answer was complete.
void FrontExchange::on_cut(ClientLine::End end) {
    const bool was_sent = end != ClientLine::End::refused && end != ClientLine::End::unreachable;
    if (was_sent) avoided_.clear();
    avoided_.insert(hub_url_);
    const bool may_repeat = is_generation() || request_.method == "GET" ||
                            request_.method == "HEAD" || !was_sent;
    const bool is_numbered = !has_unnumbered_ || last_event_ > 0 || !stream_id_.empty();
    if (!may_repeat || !is_numbered || (begun_ && !is_generation())) return give_up();
    if (was_sent) give_up_at_ = now_steady() + hubless_max;
    if (!was_sent) return ask();
    if (begun_)
        log_info("front: a stream goes on at another hub", kv("stream", stream_id_),
                 kv("of", hub_url_), kv("last_event", last_event_));
    else
        ++front_.repeated;
    ask();
}

void FrontExchange::on_answer() {
    if (streams_) {
        if (request_.http_1_0 == false) client_.send("0\r\n\r\n");
        return finish(!request_.http_1_0);
    }
    // Another hub may have room, or have loaded its model.
    const bool is_busy = head_.status == 502 || head_.status == 503 || head_.status == 504;
    if (begun_) {
        if (head_.status == 404 && has_journal_)
            has_journal_ = false;
        else
            avoided_.insert(hub_url_);
        return ask_later();
    }
    if (is_busy && is_generation()) {
        avoided_.insert(hub_url_);
        if (avoided_.size() < front_.hubs.size()) return ask();
    }
    send_head(head_, body_.size());
    if (request_.method != "HEAD") client_.send(std::move(body_));
    finish(true);
}

void FrontExchange::send_head(const ReplyHead& head, std::optional<std::size_t> body_bytes) {
    std::string out = text("HTTP/1.1 ", head.status, ' ', reason_phrase(head.status), "\r\n");
    for (const auto& [name, value] : head.headers) {
        if (name == "connection" || name == "content-length" || name == "transfer-encoding" ||
            name == "keep-alive")
            continue;
        out += text(name, ": ", value, "\r\n");
    }
    if (body_bytes)
        out += text("content-length: ", *body_bytes, "\r\n");
    else if (!request_.http_1_0)
        out += "transfer-encoding: chunked\r\n";
    const bool stays = request_.keep_alive && (body_bytes || !request_.http_1_0);
    out += text("connection: ", stays ? "keep-alive" : "close", "\r\n\r\n");
    client_.send(std::move(out));
}

void FrontExchange::send_chunk(std::string_view bytes) {
    if (request_.http_1_0) return client_.send(std::string(bytes));
    char size[20];
    const auto [end, error] = std::to_chars(size, size + sizeof size, bytes.size(), 16);
    client_.send(
        text(std::string_view(size, static_cast<std::size_t>(end - size)), "\r\n", bytes, "\r\n"));
}

void FrontExchange::finish(bool keep_alive) {
    if (std::exchange(over_, true)) return;
    leave_hub();
    timer_.cancel();
    client_.end(keep_alive && request_.keep_alive);
}

void FrontExchange::give_up() {
    ++front_.failed;
    if (!begun_) return refuse(503, "No hub answers now; try again.");
    const Refusal refusal{503, "The hub of this stream is gone, and no other could go on with it.",
                          "stream_lost", ""};
    if (has_lines_)
        send_chunk(refusal_response(refusal, Dialect::ollama).body + "\n");
    else
        send_chunk(text("data: ", refusal_response(refusal).body, "\n\n"));
    if (!request_.http_1_0) client_.send("0\r\n\r\n");
    finish(false);
}

void FrontExchange::refuse(unsigned status, std::string_view message) {
    HttpResponse response = refusal_response({status, std::string(message), "unavailable", ""});
    ReplyHead head{.status = status, .headers = {{"content-type", response.content_type}}};
    if (status == 503) head.headers.emplace_back("retry-after", "2");
    send_head(head, response.body.size());
    client_.send(std::move(response.body));
    finish(true);
}

void FrontExchange::abandon() {
    if (std::exchange(over_, true)) return;
    timer_.cancel();
    leave_hub();
}

}  // namespace moex::net
