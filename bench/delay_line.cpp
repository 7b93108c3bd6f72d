// A proxy to a port of this machine that delays both directions by half of a given round trip time,
// exact to a tenth of a millisecond. Benches put it between a hub and its workers. The end of a
// connection is delayed like its data.
//   build/delay_line --port N --rtt-ms X [--late-share P --late-ms Y]
//     prints its own port, then serves until its input ends. A line of its input is another X.
//     A share P of the bursts (chunks that
//     follow each other within a millisecond, e.g. a frame) is late by Y ms more, and the chunks of
//     the same direction behind it wait, as after a lost packet of TCP. The draw has a fixed seed.
// The proxy is a program of its own, since timers of node fire up to a millisecond late and wait
// for other work of the bench. The delay of a chunk begins when the kernel received it, not when
// this program woke. The last tenths of a millisecond before a chunk is due are spent with polling
// instead of sleeping: a sleeping thread wakes about 50 us late, which would happen twice per round
// trip.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <random>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// A chunk of bytes that was read from one side and will be sent to the other side when it is due.
struct Piece {
    Clock::time_point due;
    std::vector<char> bytes;  // empty: this chunk is the end of the stream
    std::size_t sent = 0;
};
struct Direction {
    int from = -1, to = -1;
    std::deque<Piece> pieces;
    Clock::time_point came{};  // when the newest chunk came
    bool is_over = false;      // the stream has ended, so its socket is not read any more
    bool is_stuck = false;     // the receiving side's send buffer is full
};
struct Connection {
    std::array<Direction, 2> directions;
    bool is_closed = false;
};

struct Delays {
    Clock::duration half{};  // of each chunk
    Clock::duration late{};  // of a share of the bursts, in addition
    double late_share = 0;
};

Clock::duration duration_of(double ms) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double, std::milli>(ms));
}

// Chunks that follow each other within this period are one burst.
constexpr auto burst_gap = std::chrono::milliseconds(1);
// In this period before a chunk is due the program polls instead of sleeping.
constexpr auto looks_for = std::chrono::microseconds(200);

void prepare(int socket) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    fcntl(socket, F_SETFL, O_NONBLOCK);
}

sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

// Returns the time since the kernel received the bytes of `message`; zero if it has no timestamp.
Clock::duration age_of(msghdr& message) {
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_TIMESTAMPNS) continue;
        timespec came, now;
        std::memcpy(&came, CMSG_DATA(part), sizeof came);
        clock_gettime(CLOCK_REALTIME, &now);
        const std::int64_t ns = (now.tv_sec - came.tv_sec) * std::int64_t{1'000'000'000} +
                                (now.tv_nsec - came.tv_nsec);
        return std::chrono::nanoseconds(std::max<std::int64_t>(0, ns));
    }
    return {};
}

void read_from(Direction& direction, const Delays& delays, std::mt19937_64& random) {
    static std::array<char, 1 << 18> buffer;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(timespec))> told;
    iovec into{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &into;
    message.msg_iovlen = 1;
    message.msg_control = told.data();
    message.msg_controllen = told.size();
    const ssize_t count = recvmsg(direction.from, &message, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    direction.is_over = count <= 0;
    const Clock::time_point came = Clock::now() - (count > 0 ? age_of(message) : Clock::duration{});

    const bool begins_burst = came - direction.came > burst_gap;
    direction.came = came;
    const bool is_late = begins_burst &&
                         std::uniform_real_distribution<>(0, 1)(random) < delays.late_share;
    const Clock::duration more = is_late ? delays.late : Clock::duration{};
    direction.pieces.push_back({came + delays.half + more, {}, 0});
    if (count > 0) direction.pieces.back().bytes.assign(buffer.data(), buffer.data() + count);
}

// Forwards the chunks of a connection that are due. Returns false once the connection has ended.
bool send_due(Direction& direction, Clock::time_point now) {
    while (!direction.pieces.empty() && direction.pieces.front().due <= now) {
        Piece& piece = direction.pieces.front();
        if (piece.bytes.empty()) return false;
        const ssize_t count = send(direction.to, piece.bytes.data() + piece.sent,
                                   piece.bytes.size() - piece.sent, MSG_NOSIGNAL);
        direction.is_stuck = count < 0 && (errno == EAGAIN || errno == EINTR);
        if (direction.is_stuck) return true;
        if (count < 0) return false;
        piece.sent += static_cast<std::size_t>(count);
        if (piece.sent == piece.bytes.size()) direction.pieces.pop_front();
    }
    return true;
}

class Line {
  public:
    Line(std::uint16_t port, const Delays& delays)
        : target_(loopback(port)),
          delays_(delays),
          listener_(socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in any = loopback(0);
        socklen_t size = sizeof any;
        if (bind(listener_, reinterpret_cast<sockaddr*>(&any), size) != 0 ||
            listen(listener_, 64) != 0 ||
            getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &size) != 0) {
            std::perror("delay_line");
            std::exit(1);
        }
        std::printf("%u\n", ntohs(any.sin_port));
        std::fflush(stdout);
    }

    void run() {
        while (wait()) {
            if (polled_[1].revents != 0) accept_one();
            std::size_t at = 2;
            for (Connection& one : connections_)
                for (Direction& direction : one.directions) {
                    if (at < polled_.size() && polled_[at].fd == direction.from &&
                        (polled_[at].revents & (POLLIN | POLLHUP | POLLERR)) != 0 &&
                        !direction.is_over)
                        read_from(direction, delays_, random_);
                    ++at;
                }
            const Clock::time_point now = Clock::now();
            for (Connection& one : connections_)
                for (Direction& direction : one.directions)
                    one.is_closed = one.is_closed || !send_due(direction, now);
            connections_.remove_if([](const Connection& one) {
                if (!one.is_closed) return false;
                close(one.directions[0].from);
                close(one.directions[1].from);
                return true;
            });
        }
    }

  private:
    // Waits until a socket is readable or a chunk is due. Returns false when the program's input
    // has ended.
    bool wait() {
        polled_ = {{STDIN_FILENO, POLLIN, 0}, {listener_, POLLIN, 0}};
        Clock::time_point next = Clock::time_point::max();
        for (Connection& one : connections_)
            for (std::size_t i = 0; i < 2; ++i) {
                Direction& direction = one.directions[i];
                // The socket that this direction reads is the socket that the opposite direction
                // writes.
                const bool writes = one.directions[1 - i].is_stuck;
                polled_.push_back(
                    {direction.from,
                     static_cast<short>((direction.is_over ? 0 : POLLIN) | (writes ? POLLOUT : 0)),
                     0});
                if (!direction.pieces.empty() && !direction.is_stuck)
                    next = std::min(next, direction.pieces.front().due);
            }
        const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::max(Clock::duration{}, next - Clock::now() - looks_for));
        const timespec timeout{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
        ppoll(polled_.data(), polled_.size(), next == Clock::time_point::max() ? nullptr : &timeout,
              nullptr);
        return polled_[0].revents == 0 || read_input();
    }

    // Returns false if the input has ended.
    bool read_input() {
        std::array<char, 64> bytes;
        const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
        if (count <= 0) return false;
        input_.append(bytes.data(), static_cast<std::size_t>(count));
        const std::size_t end = input_.rfind('\n');
        if (end == std::string::npos) return true;
        const std::size_t before = input_.rfind('\n', end - 1);
        const std::size_t begin = end == 0 || before == std::string::npos ? 0 : before + 1;
        delays_.half = duration_of(std::atof(input_.substr(begin, end - begin).c_str()) / 2);
        input_.erase(0, end + 1);
        return true;
    }

    void accept_one() {
        const int near = accept(listener_, nullptr, nullptr);
        if (near < 0) return;
        const int far = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(far, reinterpret_cast<const sockaddr*>(&target_), sizeof target_) != 0) {
            close(near);
            close(far);
            return;
        }
        prepare(near);
        prepare(far);
        Connection& made = connections_.emplace_back();
        made.directions[0] = {.from = near, .to = far, .pieces = {}};
        made.directions[1] = {.from = far, .to = near, .pieces = {}};
    }

    const sockaddr_in target_;
    Delays delays_;
    std::string input_;  // the begin of a line
    std::mt19937_64 random_{1};
    const int listener_;
    std::list<Connection> connections_;
    std::vector<pollfd> polled_;
};

}  // namespace

int main(int count, char** arguments) {
    double rtt_ms = -1, late_ms = 0, late_share = 0;
    int port = 0;
    bool is_known = count % 2 == 1;
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = arguments[i];
        if (name == "--port")
            port = std::atoi(arguments[i + 1]);
        else if (name == "--rtt-ms")
            rtt_ms = std::atof(arguments[i + 1]);
        else if (name == "--late-ms")
            late_ms = std::atof(arguments[i + 1]);
        else if (name == "--late-share")
            late_share = std::atof(arguments[i + 1]);
        else
            is_known = false;
    }
    if (!is_known || port <= 0 || port > 65535 || rtt_ms < 0 || late_ms < 0 || late_share < 0 ||
        late_share > 1) {
        std::fprintf(stderr,
                     "usage: delay_line --port N --rtt-ms X [--late-share P --late-ms Y]\n");
        return 2;
    }
    prctl(PR_SET_TIMERSLACK, 1UL);  // without this, the system lets a timer fire up to 50 us late
    std::signal(SIGPIPE, SIG_IGN);
    Line(static_cast<std::uint16_t>(port),
         {duration_of(rtt_ms / 2), duration_of(late_ms), late_share})
        .run();
    return 0;
}
