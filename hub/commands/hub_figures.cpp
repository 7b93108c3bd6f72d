#include "hub/commands/hub_figures.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <memory>
#include <system_error>

#include "protocol/json.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::size_t body_bytes_max = 64u << 20;
constexpr timeval patience{.tv_sec = 10, .tv_usec = 0};

struct HubAddress {
    std::string host, port = "80";
};

Result<HubAddress> address_of(const std::string& url) {
    const std::string scheme = "http://";
    if (!url.starts_with(scheme))
        return Error{ErrorCode::invalid_argument,
                     text("--from-metrics: wanted http://HOST:PORT, found \"", url,
                          "\"; of a hub behind TLS: curl URL/api/status | moex-hub model "
                          "--from-metrics -")};
    HubAddress address{.host = url.substr(scheme.size())};
    address.host = address.host.substr(0, address.host.find('/'));
    const std::size_t colon = address.host.rfind(':');
    if (colon != std::string::npos && address.host.find(']', colon) == std::string::npos) {
        address.port = address.host.substr(colon + 1);
        address.host.resize(colon);
    }
    if (address.host.starts_with('[') && address.host.ends_with(']'))
        address.host = address.host.substr(1, address.host.size() - 2);
    return address;
}

class Socket {
  public:
    Socket() = default;
    explicit Socket(int file) : file_(file) {}
    Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(file_, other.file_);
        return *this;
    }
    ~Socket() {
        if (file_ >= 0) ::close(file_);
    }
    int file() const { return file_; }

  private:
    int file_ = -1;
};

Error failed(const std::string& url, int reason) {
    return Error{ErrorCode::io_error, text(url, ": ", std::generic_category().message(reason))};
}

Result<Socket> connect_to(const HubAddress& address, const std::string& url) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int wrong = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
    if (wrong != 0) return Error{ErrorCode::not_found, text(url, ": ", gai_strerror(wrong))};
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);

    int reason = 0;
    for (const addrinfo* one = found; one; one = one->ai_next) {
        Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ::setsockopt(socket.file(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        ::setsockopt(socket.file(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        if (::connect(socket.file(), one->ai_addr, one->ai_addrlen) == 0) return socket;
        reason = errno;
    }
    return failed(url, reason);
}

// The hub closes behind its answer, so that its end is the end of the line.
Result<std::string> exchange(const Socket& socket, std::string_view request,
                             const std::string& url) {
    while (!request.empty()) {
        const ssize_t sent = ::send(socket.file(), request.data(), request.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return failed(url, errno);
        request.remove_prefix(static_cast<std::size_t>(sent));
    }

    std::string reply(1 << 16, '\0');
    for (std::size_t size = 0;;) {
        const ssize_t got = ::recv(socket.file(), reply.data() + size, reply.size() - size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return failed(url, errno == EAGAIN ? ETIMEDOUT : errno);
        size += static_cast<std::size_t>(got);
        if (got == 0) {
            reply.resize(size);
            return reply;
        }
        if (size == reply.size()) reply.resize(2 * size);
        if (size > body_bytes_max)
            return Error{ErrorCode::payload_size, text(url, " answers more than 64 MiB")};
    }
}

// 0 where it is missing or no number.
double number_of(const Json& object, std::string_view name) {
    const Json* const found = find_member(object, name);
    return found && found->is_number() ? found->get<double>() : 0;
}
const Json& part_of(const Json& object, std::string_view name) {
    static const Json nothing;
    const Json* const found = find_member(object, name);
    return found ? *found : nothing;
}
std::string text_of(const Json& object, std::string_view name) {
    const Json& found = part_of(object, name);
    return found.is_string() ? found.get<std::string>() : std::string();
}

// Where a worker tells no times its mean is taken for half a step below the median's edge.
WorkerLook worker_of(const Json& worker) {
    const Json& split = part_of(worker, "split");
    WorkerLook look{.groups = number_of(worker, "groups_sent"),
                    .p50_ms = number_of(worker, "p50_ms"),
                    .p99_ms = number_of(worker, "p99_ms")};
    look.mean_ms = number_of(split, "groups") > 0 ? number_of(split, "group_ms")
                                                  : look.p50_ms / 1.06;
    return look;
}

double copies_of(const std::string& hedge) {
    const std::string fixed = "fixed ";
    double copies = 1;
    if (hedge.starts_with(fixed))
        std::from_chars(hedge.data() + fixed.size(), hedge.data() + hedge.size(), copies);
    return std::max(copies, 1.0);
}

}  // namespace

Result<std::string> fetch_status(const std::string& url, std::string_view key) {
    MOEX_ASSIGN(address, address_of(url));
    MOEX_ASSIGN(socket, connect_to(address, url));
    std::string request = text("GET /api/status HTTP/1.1\r\nHost: ",
                               url.substr(7, url.find('/', 7) - 7), "\r\nConnection: close\r\n");
    if (!key.empty()) request += text("Authorization: Bearer ", key, "\r\n");
    MOEX_ASSIGN(reply, exchange(socket, request + "\r\n", url));

    const std::size_t head = reply.find("\r\n\r\n");
    const std::string status = reply.substr(0, reply.find("\r\n"));
    if (head == std::string::npos || !status.starts_with("HTTP/1."))
        return Error{ErrorCode::bad_field, text(url, " answers no HTTP")};
    if (status.find(" 200") == std::string::npos)
        return Error{ErrorCode::unavailable,
                     text(url, "/api/status: \"", status, "\"; a hub with keys wants --key-file")};
    return reply.substr(head + 4);
}

Result<HubLook> read_status(std::string_view json) {
    MOEX_ASSIGN(status, parse_json_object(json, body_bytes_max, "/api/status"));
    const Json &engine = part_of(status, "engine"), &calls = part_of(status, "calls");
    if (!find_member(engine, "experts_waited_s"))
        return Error{ErrorCode::bad_field,
                     "/api/status tells no engine.experts_waited_s: of an older hub, or of none"};

    HubLook look;
    look.model = text_of(part_of(status, "model"), "name");
    look.figures = {.steps = number_of(engine, "steps"),
                    .rows = number_of(engine, "rows"),
                    .rounds = number_of(calls, "rounds"),
                    .step_s = number_of(engine, "steps_s"),
                    .waited_s = number_of(engine, "experts_waited_s"),
                    .copies = copies_of(text_of(part_of(status, "options"), "hedge")),
                    .calls_local = number_of(calls, "local"),
                    .calls = number_of(calls, "calls"),
                    .workers = {}};
    for (const Json& worker : part_of(status, "workers"))
        look.workers[static_cast<std::uint64_t>(number_of(worker, "id"))] = worker_of(worker);
    return look;
}

Result<HubFigures> figures_over(std::span<const HubLook> looks) {
    const HubLook &first = looks.front(), &last = looks.back();
    const HubFigures &from = first.figures, &to = last.figures;
    if (to.steps < from.steps || to.step_s < from.step_s)
        return Error{ErrorCode::bad_field, "the hub was started again between the looks"};
    HubFigures out = to;
    out.steps -= from.steps;
    out.rows -= from.rows;
    out.rounds -= from.rounds;
    out.step_s -= from.step_s;
    out.waited_s -= from.waited_s;
    out.calls_local -= from.calls_local;
    out.calls -= from.calls;
    if (out.steps <= 0 || out.rounds <= 0)
        return Error{ErrorCode::unavailable,
                     "no layer was exchanged with a worker in that time: ask the hub something"};

    for (const auto& [id, worker] : last.workers) {
        const auto before = first.workers.find(id);
        const double groups = worker.groups -
                              (before == first.workers.end() ? 0 : before->second.groups);
        double sum_ms = 0, count = 0;
        for (const HubLook& look : looks.subspan(1))
            if (const auto found = look.workers.find(id); found != look.workers.end())
                sum_ms += found->second.mean_ms, ++count;
        if (groups > 0 && sum_ms > 0)
            out.workers.push_back(
                {.time = answer_time_of(sum_ms / count, worker.p50_ms, worker.p99_ms),
                 .share = groups / out.rounds});
    }
    if (out.workers.empty())
        return Error{ErrorCode::unavailable, "no worker that is there now was asked in that time"};
    return out;
}

}  // namespace moex
