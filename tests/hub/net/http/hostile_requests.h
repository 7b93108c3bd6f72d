// Requests that two readers could understand differently, or that cost
// more than they give. Tests send them to the request gate and to the server.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace moex::net {

struct HostileRequest {
    const char* name;
    std::string bytes;
    unsigned status;  // expected status; 0: the connection ends without an answer
};

inline std::string hostile_post() {
    return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
}

// Requests with transfer codings that make the end of the body ambiguous.
inline std::vector<HostileRequest> hostile_codings() {
    const std::string host = "Host: localhost\r\n";
    const std::string post = hostile_post();
    return {
        {"identity coding", post + "Transfer-Encoding: identity\r\n\r\n", 501},
        {"chunked, identity", post + "Transfer-Encoding: chunked, identity\r\n\r\n", 501},
        {"gzip, chunked", post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"xchunked", post + "Transfer-Encoding: xchunked\r\n\r\n", 501},
        {"chunked twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
         400},
        {"chunked with a vertical tab",
         post + "Transfer-Encoding: \x0b"
                "chunked\r\n\r\n",
         400},
        {"chunked beside a length",
         post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"chunked in HTTP/1.0",
         "POST /v1/completions HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         400},
    };
}

// Requests with malformed lines, Host headers and other fields.
inline std::vector<HostileRequest> hostile_heads() {
    using namespace std::string_literals;
    const std::string host = "Host: localhost\r\n";
    return {
        {"folded line", "GET / HTTP/1.1\r\n" + host + "X-A: 1\r\n 2\r\n\r\n", 400},
        {"folded by a tab", "GET / HTTP/1.1\r\n" + host + "X-A: 1\r\n\t2\r\n\r\n", 400},
        {"first field folded", "GET / HTTP/1.1\r\n X-A: 1\r\n" + host + "\r\n", 400},
        {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
        {"empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
        {"two hosts", "GET / HTTP/1.1\r\n" + host + "Host: evil.example\r\n\r\n", 400},
        {"two equal hosts", "GET / HTTP/1.1\r\n" + host + host + "\r\n", 400},
        {"bare LF after the request line", "GET / HTTP/1.1\n" + host + "\r\n", 400},
        {"bare LF after a field", "GET / HTTP/1.1\r\nHost: localhost\n\r\n", 400},
        {"bare CR in a value", "GET / HTTP/1.1\r\nHost: local\rhost\r\n\r\n", 400},
        {"NUL in a value", "GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n"s, 400},
        {"space before the colon", "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400},
        {"field without a name", "GET / HTTP/1.1\r\n" + host + ": x\r\n\r\n", 400},
        {"field without a colon", "GET / HTTP/1.1\r\n" + host + "nonsense\r\n\r\n", 400},
        {"field name with a bracket", "GET / HTTP/1.1\r\n" + host + "X(a): 1\r\n\r\n", 400},
    };
}

// Requests with lengths or chunks that make the end of the body ambiguous.
inline std::vector<HostileRequest> hostile_bodies() {
    const std::string post = hostile_post();
    return {
        {"length with a sign", post + "Content-Length: +4\r\n\r\n{}{}", 400},
        {"negative length", post + "Content-Length: -1\r\n\r\n", 400},
        {"hex length", post + "Content-Length: 0x4\r\n\r\n{}{}", 400},
        {"length list", post + "Content-Length: 4, 4\r\n\r\n{}{}", 400},
        {"two lengths", post + "Content-Length: 4\r\nContent-Length: 5\r\n\r\n{}{}", 400},
        {"two equal lengths", post + "Content-Length: 4\r\nContent-Length: 4\r\n\r\n{}{}", 400},
        {"length beyond 64 bits", post + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
        {"empty length", post + "Content-Length: \r\n\r\n", 400},
        {"body over the cap", post + "Content-Length: 10485760\r\n\r\n", 413},
        {"chunks over the cap", post + "Transfer-Encoding: chunked\r\n\r\nffffff\r\n", 413},
        {"chunk size overflow", post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
         400},
        {"chunk extension", post + "Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n",
         400},
        {"bare LF chunk line", post + "Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n", 400},
        {"chunk size with a sign", post + "Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
         400},
        {"chunk longer than its size",
         post + "Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n", 400},
        {"empty chunk size", post + "Transfer-Encoding: chunked\r\n\r\n\r\n", 400},
        {"trailer that is no field",
         post + "Transfer-Encoding: chunked\r\n\r\n0\r\nnonsense\r\n\r\n", 400},
        {"unknown expectation", post + "Expect: a-miracle\r\nContent-Length: 2\r\n\r\n{}", 417},
    };
}

// Requests with malformed request lines, and heads that are too large.
inline std::vector<HostileRequest> hostile_request_lines() {
    const std::string host = "Host: localhost\r\n";
    std::string many = "GET / HTTP/1.1\r\n" + host;
    for (int i = 0; i < 100; ++i) many += "X-" + std::to_string(i) + ": 1\r\n";
    return {
        {"header beyond 8 KiB",
         "GET / HTTP/1.1\r\n" + host + "X-A: " + std::string(9000, 'a') + "\r\n\r\n", 431},
        {"more than 100 fields", many + "\r\n", 431},
        {"target beyond 4 KiB", "GET /" + std::string(5000, 'a') + " HTTP/1.1\r\n" + host + "\r\n",
         414},
        {"target without end", "GET /" + std::string(7000, 'a'), 414},
        {"absolute target without a host", "GET http:/// HTTP/1.1\r\n" + host + "\r\n", 400},
        {"absolute target of another scheme", "GET ftp://localhost/ HTTP/1.1\r\n" + host + "\r\n",
         400},
        {"absolute target and two hosts",
         "GET http://localhost/ HTTP/1.1\r\n" + host + host + "\r\n", 400},
        {"authority target", "CONNECT localhost:80 HTTP/1.1\r\n" + host + "\r\n", 405},
        {"fragment in the target", "GET /#a HTTP/1.1\r\n" + host + "\r\n", 400},
        {"bad percent escape", "GET /%zz HTTP/1.1\r\n" + host + "\r\n", 400},
        {"encoded NUL", "GET /%00 HTTP/1.1\r\n" + host + "\r\n", 400},
        {"unknown method", "BREW / HTTP/1.1\r\n" + host + "\r\n", 405},
        {"TRACE", "TRACE / HTTP/1.1\r\n" + host + "\r\n", 405},
        {"no version", "GET /\r\n" + host + "\r\n", 400},
        {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
        {"HTTP/1.2", "GET / HTTP/1.2\r\n" + host + "\r\n", 505},
        {"empty first line", "\r\nGET / HTTP/1.1\r\n" + host + "\r\n", 400},
        {"two spaces", "GET  / HTTP/1.1\r\n" + host + "\r\n", 400},
        {"TLS hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400},
    };
}

// Requests that repeat a field which is not a list.
inline std::vector<HostileRequest> hostile_repetitions() {
    const std::string host = "Host: localhost\r\n";
    const std::string post = hostile_post();
    return {
        {"two keys", post + "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400},
        {"two equal keys", post + "X-Api-Key: a\r\nx-api-key: a\r\n\r\n", 400},
        {"two content types", post + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
         400},
        {"two origins",
         "GET / HTTP/1.1\r\n" + host +
             "Origin: http://localhost\r\nOrigin: http://evil.example\r\n\r\n",
         400},
        {"two WebSocket keys",
         "GET /worker HTTP/1.1\r\n" + host +
             "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
             "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
         400},
        {"two WebSocket versions",
         "GET /worker HTTP/1.1\r\n" + host +
             "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 8\r\n\r\n",
         400},
    };
}

inline std::vector<HostileRequest> hostile_requests() {
    std::vector<HostileRequest> all;
    for (auto* part : {hostile_codings, hostile_heads, hostile_bodies, hostile_request_lines,
                       hostile_repetitions})
        for (HostileRequest& row : part()) all.push_back(std::move(row));
    return all;
}

}  // namespace moex::net
