// Measures how fast weights leave a hub over loopback, beside two servers that do nothing else.
//   weights_bench --model DIR [--port PORT --pid PID] [--connections N] [--seconds S] [--repeats N]
//                 [--read discard|copy] [--header]
// Each connection asks for one blob of DIR after the other, as a worker's fetch thread does. The
// servers answer in turns:
//   sendfile  a thread for each connection; sendfile() from the blob's file
//   memory    a thread for each connection; send() from the mapped file
//   hub       the hub at 127.0.0.1:PORT whose process is PID
// --read: discard lets the kernel drop the bytes, so that the readers cost little; copy reads them
// into 64 kB of memory.
// CSV: GB are 1e9 bytes; cpu_s_per_gb are seconds of processor time, which depend little on what
// else runs on the machine.
// example: weights_bench --model packages/bench-moe --port 8080 --pid $(pidof moex-hub) --header
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hub/base/clock.h"
#include "protocol/text.h"

namespace moex {
namespace {

struct Flags {
    std::string model, read = "discard";
    int port = 0, pid = 0;
    std::size_t connections = 32, seconds = 3, repeats = 3;
    bool header = false;
};

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "weights_bench: %s\n", message.c_str());
    std::exit(1);
}

class Socket {
  public:
    explicit Socket(int fd) : fd_(fd) {
        if (fd_ < 0) fail(text("no socket: ", std::strerror(errno)));
        const int on = 1;
        setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    ~Socket() {
        if (fd_ >= 0) close(fd_);
    }
    int fd() const { return fd_; }

  private:
    int fd_;
};

sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

double cpu_seconds(int who) {
    rusage usage{};
    getrusage(static_cast<__rusage_who>(who), &usage);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Returns the processor time of another process, by the fields 14 and 15 of its stat (proc(5)).
double cpu_seconds_of(int pid) {
    std::ifstream in(text("/proc/", pid, "/stat"));
    std::string line((std::istreambuf_iterator<char>(in)), {});
    const std::size_t name_end = line.rfind(')');
    if (name_end == std::string::npos) fail(text("there is no process ", pid));
    unsigned long user = 0, kernel = 0;
    std::sscanf(line.c_str() + name_end + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                &user, &kernel);
    return static_cast<double>(user + kernel) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

struct Blob {
    std::string name;
    int file = -1;
    const char* memory = nullptr;
    std::size_t bytes = 0;
};

std::vector<Blob> open_blobs(const std::string& model) {
    std::vector<Blob> blobs;
    for (const auto& entry : std::filesystem::directory_iterator(model + "/weights")) {
        Blob blob{.name = entry.path().filename().string(),
                  .file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC),
                  .bytes = entry.file_size()};
        void* const memory = mmap(nullptr, blob.bytes, PROT_READ, MAP_SHARED | MAP_POPULATE,
                                  blob.file, 0);
        if (memory == MAP_FAILED) fail(text("cannot map ", blob.name));
        blob.memory = static_cast<const char*>(memory);
        blobs.push_back(std::move(blob));
    }
    if (blobs.empty()) fail(text(model, " has no weights"));
    return blobs;
}

void send_all(int fd, const char* bytes, std::size_t size) {
    while (size > 0) {
        const ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent <= 0) return;
        bytes += sent;
        size -= static_cast<std::size_t>(sent);
    }
}

// Answers the requests of one connection, until it ends.
void serve(int fd, const std::vector<Blob>& blobs, bool by_sendfile) {
    std::string in;
    char piece[1024];
    for (;;) {
        const std::size_t end = in.find("\r\n\r\n");
        if (end == std::string::npos) {
            const ssize_t got = recv(fd, piece, sizeof piece, 0);
            if (got <= 0) return;
            in.append(piece, static_cast<std::size_t>(got));
            continue;
        }
        const std::size_t name = in.find("/weights/") + 9;
        const Blob& blob = *std::ranges::find(blobs, in.substr(name, in.find(' ', name) - name),
                                              &Blob::name);
        in.erase(0, end + 4);
        const std::string head = text("HTTP/1.1 200 OK\r\nContent-Length: ", blob.bytes,
                                      "\r\n\r\n");
        send_all(fd, head.data(), head.size());
        if (!by_sendfile) {
            send_all(fd, blob.memory, blob.bytes);
            continue;
        }
        for (off_t at = 0; at < static_cast<off_t>(blob.bytes);)
            if (sendfile(fd, blob.file, &at, blob.bytes - static_cast<std::size_t>(at)) <= 0)
                return;
    }
}

// Reads the body of an answer. `in` is what was read behind the head.
bool read_body(int fd, std::size_t left, bool discards, std::vector<char>& piece) {
    while (left > 0) {
        const std::size_t wanted = std::min(left, discards ? left : piece.size());
        const ssize_t got = recv(fd, piece.data(), wanted, discards ? MSG_TRUNC : 0);
        if (got <= 0) return false;
        left -= static_cast<std::size_t>(got);
    }
    return true;
}

// Asks for one blob after the other until `stop`. Adds their bytes to `bytes`.
void fetch(int port, const std::vector<Blob>& blobs, std::size_t first, bool discards,
           const std::atomic<bool>& stop, std::atomic<std::uint64_t>& bytes) {
    const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(port);
    if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        fail(text("cannot connect to port ", port));
    std::vector<char> piece(64 << 10);
    for (std::size_t i = first; !stop; ++i) {
        const std::string request = text("GET /weights/", blobs[i % blobs.size()].name,
                                         " HTTP/1.1\r\nHost: 127.0.0.1:", port, "\r\n\r\n");
        send_all(socket.fd(), request.data(), request.size());
        std::string head;
        std::size_t end = std::string::npos;
        while ((end = head.find("\r\n\r\n")) == std::string::npos) {
            const ssize_t got = recv(socket.fd(), piece.data(), 512, 0);
            if (got <= 0) return;
            head.append(piece.data(), static_cast<std::size_t>(got));
        }
        const std::size_t size = blobs[i % blobs.size()].bytes, have = head.size() - end - 4;
        if (!head.starts_with("HTTP/1.1 200")) fail(head.substr(0, end));
        if (!read_body(socket.fd(), size - have, discards, piece)) return;
        bytes += size;
    }
}

// Measures a server at `port`; `server_cpu` returns its processor time.
void measure(const char* server, const Flags& flags, int port, const std::vector<Blob>& blobs,
             const std::function<double()>& server_cpu) {
    std::atomic<bool> stop = false;
    std::atomic<std::uint64_t> bytes = 0;
    std::vector<std::thread> readers;
    const double cpu_before = server_cpu();
    const TimePoint begin = now_steady();
    for (std::size_t i = 0; i < flags.connections; ++i)
        readers.emplace_back(
            [&, i] { fetch(port, blobs, i * 37, flags.read == "discard", stop, bytes); });
    std::this_thread::sleep_for(std::chrono::seconds(flags.seconds));
    stop = true;
    for (std::thread& reader : readers) reader.join();
    const double seconds = std::chrono::duration<double>(now_steady() - begin).count();
    const double gb = 1e-9 * static_cast<double>(bytes.load());
    std::printf("%s,%s,%zu,%.2f,%.2f,%.3f,%.3f\n", server, flags.read.c_str(), flags.connections,
                gb, seconds, gb / seconds, (server_cpu() - cpu_before) / gb);
    std::fflush(stdout);
}

// Measures a server of this process.
void measure_here(const char* name, const Flags& flags, const std::vector<Blob>& blobs,
                  bool by_sendfile) {
    const Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    if (bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listener.fd(), 256) != 0 ||
        getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
        fail("cannot listen");

    std::atomic<std::int64_t> cpu_us = 0;
    std::vector<std::thread> servers;
    std::thread acceptor([&] {
        for (std::size_t i = 0; i < flags.connections; ++i)
            servers.emplace_back([&, fd = accept(listener.fd(), nullptr, nullptr)] {
                const Socket socket(fd);
                serve(socket.fd(), blobs, by_sendfile);
                cpu_us += static_cast<std::int64_t>(1e6 * cpu_seconds(RUSAGE_THREAD));
            });
    });
    measure(name, flags, ntohs(address.sin_port), blobs, [&, is_first = true]() mutable {
        if (std::exchange(is_first, false)) return 0.0;
        acceptor.join();
        for (std::thread& server : servers) server.join();
        return 1e-6 * static_cast<double>(cpu_us.load());
    });
}

Flags parse(int argc, char** argv) {
    Flags flags;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag == "--header") {
            flags.header = true;
            continue;
        }
        if (i + 1 == argc) fail(text("what is ", flag, "?"));
        const char* const value = argv[++i];
        if (flag == "--model")
            flags.model = value;
        else if (flag == "--read")
            flags.read = value;
        else if (flag == "--port")
            flags.port = std::atoi(value);
        else if (flag == "--pid")
            flags.pid = std::atoi(value);
        else if (flag == "--connections")
            flags.connections = std::strtoul(value, nullptr, 10);
        else if (flag == "--seconds")
            flags.seconds = std::strtoul(value, nullptr, 10);
        else if (flag == "--repeats")
            flags.repeats = std::strtoul(value, nullptr, 10);
        else
            fail(text("what is ", flag, "?"));
    }
    if (flags.model.empty()) fail("--model DIR is missing");
    return flags;
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    using namespace moex;
    const Flags flags = parse(argc, argv);
    const std::vector<Blob> blobs = open_blobs(flags.model);
    if (flags.header) std::puts("server,read,connections,gb,seconds,gb_per_s,server_cpu_s_per_gb");
    for (std::size_t repeat = 0; repeat < flags.repeats; ++repeat) {
        measure_here("sendfile", flags, blobs, true);
        measure_here("memory", flags, blobs, false);
        if (flags.port > 0)
            measure("hub", flags, flags.port, blobs, [&] { return cpu_seconds_of(flags.pid); });
    }
}
