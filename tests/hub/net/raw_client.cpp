#include "tests/hub/net/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace moex::net {

RawClient::RawClient(std::uint16_t port) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        throw std::runtime_error("cannot connect");
}
RawClient::~RawClient() { close(); }
void RawClient::close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
}

bool RawClient::send(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
}

bool RawClient::fill(Clock::time_point until) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd waiting{socket_, POLLIN, 0};
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) <= 0) return false;
    char buffer[65536];
    const ssize_t size = ::recv(socket_, buffer, sizeof buffer, 0);
    if (size <= 0) return false;
    in_.append(buffer, static_cast<std::size_t>(size));
    return true;
}

std::string RawClient::read_until(std::string_view mark, std::chrono::milliseconds wait) {
    const auto until = Clock::now() + wait;
    while (in_.find(mark) == std::string::npos && fill(until)) {}
    const std::size_t at = in_.find(mark);
    const std::size_t size = at == std::string::npos ? in_.size() : at + mark.size();
    std::string out = in_.substr(0, size);
    in_.erase(0, size);
    return out;
}

RawResponse RawClient::read_response(bool head_only, std::chrono::milliseconds wait) {
    RawResponse response;
    const auto until = Clock::now() + wait;
    const std::string head = read_until("\r\n\r\n", wait);
    if (head.size() < 13 || head.substr(0, 9) != "HTTP/1.1 ") return response;
    response.status = static_cast<unsigned>(std::stoi(head.substr(9, 3)));
    std::size_t at = head.find("\r\n") + 2;

    while (at + 2 < head.size()) {
        const std::size_t end = head.find("\r\n", at);
        const std::string line = head.substr(at, end - at);
        const std::size_t colon = line.find(": ");
        std::string name = line.substr(0, colon);
        std::transform(name.begin(), name.end(), name.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        if (colon != std::string::npos) response.headers[name] = line.substr(colon + 2);
        at = end + 2;
    }

    if (head_only) return response;

    if (const auto length = response.headers.find("content-length");
        length != response.headers.end()) {
        const std::size_t size = std::stoul(length->second);
        while (in_.size() < size && fill(until)) {}
        response.body = in_.substr(0, size);
        in_.erase(0, size);
    }

    return response;
}

bool RawClient::wait_closed(std::chrono::milliseconds wait) {
    const auto until = Clock::now() + wait;
    while (fill(until)) in_.clear();
    return Clock::now() < until;
}

bool RawClient::upgrade(std::uint16_t port, const std::string& header_lines) {
    send("GET /worker HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) +
         "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: "
         "13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
         header_lines + "\r\n");
    return read_response(true).status == 101;
}

bool RawClient::send_frame(int opcode, std::string_view payload, bool masked, bool fin,
                           int reserved_bits) {
    std::string frame;
    frame += static_cast<char>((fin ? 0x80 : 0) | reserved_bits << 4 | opcode);
    const int mask_bit = masked ? 0x80 : 0;
    if (payload.size() < 126)
        frame += static_cast<char>(mask_bit | static_cast<int>(payload.size()));
    else if (payload.size() < 65536) {
        frame += static_cast<char>(mask_bit | 126);
        frame += static_cast<char>(payload.size() >> 8);
        frame += static_cast<char>(payload.size());
    } else {
        frame += static_cast<char>(mask_bit | 127);
        for (int shift = 56; shift >= 0; shift -= 8)
            frame += static_cast<char>(static_cast<std::uint64_t>(payload.size()) >> shift);
    }
    const char mask[4] = {0x12, 0x34, 0x56, 0x78};
    if (masked) frame.append(mask, 4);
    for (std::size_t i = 0; i < payload.size(); ++i)
        frame += masked ? static_cast<char>(payload[i] ^ mask[i % 4]) : payload[i];
    return send(frame);
}

RawFrame RawClient::read_frame(std::chrono::milliseconds wait) {
    const auto until = Clock::now() + wait;

    const auto have = [&](std::size_t size) {
        while (in_.size() < size)
            if (!fill(until)) return false;
        return true;
    };

    if (!have(2)) return {};
    std::size_t size = static_cast<unsigned char>(in_[1]) & 127, at = 2;
    const std::size_t extra = size == 126 ? 2 : size == 127 ? 8 : 0;

    if (extra) {
        if (!have(2 + extra)) return {};
        size = 0;
        for (std::size_t i = 0; i < extra; ++i)
            size = size << 8 | static_cast<unsigned char>(in_[2 + i]);
        at += extra;
    }

    if (!have(at + size)) return {};
    RawFrame frame{in_[0] & 15, in_.substr(at, size)};
    in_.erase(0, at + size);
    return frame;
}

RawFrame RawClient::read_close(std::chrono::milliseconds wait) {
    const auto until = Clock::now() + wait;
    for (;;) {
        RawFrame frame = read_frame(
            std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()));
        if (frame.opcode == 8 || frame.opcode == -1) return frame;
    }
}

RawResponse fetch(std::uint16_t port, const std::string& method, const std::string& path,
                  const std::string& header_lines, const std::string& body) {
    RawClient client(port);
    const bool own_host = header_lines.find("Host:") != std::string::npos;
    client.send(method + " " + path + " HTTP/1.1\r\n" +
                (own_host ? "" : "Host: 127.0.0.1:" + std::to_string(port) + "\r\n") +
                header_lines +
                (body.empty() ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n") +
                "\r\n" + body);
    return client.read_response(method == "HEAD");
}

}  // namespace moex::net
