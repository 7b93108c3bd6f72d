// Fuzzes the request gate. The first byte is the size of the pieces in which data arrives; the
// other bytes are the data of one connection. The gate reads request after request until it refuses
// one. Accepted requests are then checked with the rules for Host, Origin and key that the routes
// apply.
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "hub/net/access/access.h"
#include "hub/net/access/rate_limits.h"
#include "hub/net/http/fields.h"
#include "hub/net/http/handshake.h"
#include "hub/net/http/request_gate.h"
#include "hub/net/http/request_id.h"

namespace moex::net {
namespace {

constexpr GateLimits limits{.header_bytes_max = 2048,
                            .header_fields_max = 20,
                            .target_bytes_max = 256,
                            .body_bytes_max = 1024};

void require(bool condition) {
    if (!condition) std::abort();
}

struct Verdict {
    std::vector<GatedRequest> passed;
    std::vector<std::string_view> raw;  // bytes of each request in `passed`
    std::optional<GateRefusal> refusal;
    std::size_t taken = 0;
};

std::size_t count_fields(const GatedRequest& request, std::string_view name) {
    return static_cast<std::size_t>(
        std::count_if(request.headers.begin(), request.headers.end(),
                      [&](const auto& field) { return field.first == name; }));
}

// Feeds the bytes to a request gate in pieces of `piece` bytes (0: all at once), as network packets
// would arrive.
Verdict read_all(std::string_view bytes, std::size_t piece, bool keep_bodies = true) {
    Verdict verdict;
    RequestGate gate(limits);
    std::size_t request_begin = 0;

    while (verdict.taken < bytes.size() && gate.state() != RequestGate::State::refused) {
        const std::string_view in = bytes.substr(verdict.taken, piece == 0 ? bytes.size() : piece);
        const std::size_t taken = gate.feed(in);
        // The gate never takes more bytes than it got, and it always makes progress.
        require(taken > 0 && taken <= in.size());
        verdict.taken += taken;
        if (gate.state() == RequestGate::State::body || gate.state() == RequestGate::State::done)
            // The head, which has one field Host, must be complete before the body is read.
            require(count_fields(gate.request(), "host") == 1);
        if (gate.state() == RequestGate::State::body && !keep_bodies) gate.drop_body();
        if (gate.state() != RequestGate::State::done) continue;
        // A gate that has a complete request reads no more bytes until the caller has taken the
        // request.
        require(gate.feed("GET /") == 0);
        verdict.passed.push_back(gate.take());
        verdict.raw.push_back(bytes.substr(request_begin, verdict.taken - request_begin));
        require(gate.state() == RequestGate::State::idle && !gate.take_expects_continue());
        request_begin = verdict.taken;
    }
    if (gate.state() == RequestGate::State::refused) {
        verdict.refusal = gate.refusal();
        // After the gate has refused a request, it reads no more bytes.
        require(gate.feed(bytes) == 0);
    }
    return verdict;
}

bool same(const GatedRequest& a, const GatedRequest& b) {
    return a.method == b.method && a.path == b.path && a.query == b.query &&
           a.headers == b.headers && a.body == b.body && a.raw_target == b.raw_target &&
           a.keep_alive == b.keep_alive && a.http_1_0 == b.http_1_0;
}

void check_refusal(const GateRefusal& refusal) {
    static constexpr unsigned known[] = {400, 405, 413, 414, 417, 431, 501, 505};
    require(std::find(std::begin(known), std::end(known), refusal.status) != std::end(known));
    require(!refusal.code.empty() && !refusal.message.empty());
    for (const char c : refusal.code) require((c >= 'a' && c <= 'z') || c == '_');
}

// Checks that an accepted upgrade request is HTTP/1.1, has a WebSocket key that decodes to 16
// bytes, and has the header fields of an upgrade.
void check_handshake(const GatedRequest& request) {
    const std::string id = request_id_of(request);
    require(!id.empty() && id.size() <= request_id_chars_max);
    for (const char c : id) require(c > 0x20 && c < 0x7f);

    if (!is_websocket_handshake(request)) return;
    require(!request.http_1_0 && lists_token(request.headers, "connection", "upgrade") &&
            lists_token(request.headers, "upgrade", "websocket"));
    const std::string_view key = *request.header("sec-websocket-key");
    require(key.size() == 24 && key.find('=') == 22 && key[23] == '=');
}

// Checks a request that the gate accepted. The gate must have refused all constructs that RFC 9112
// lets a recipient interpret in several ways.
void check_passed(const GatedRequest& request, std::string_view raw) {
    const std::size_t lengths = count_fields(request, "content-length"),
                      codings = count_fields(request, "transfer-encoding");
    require(count_fields(request, "host") == 1 && lengths + codings <= 1 &&
            !(codings == 1 && request.http_1_0));
    require(request.body.size() <= limits.body_bytes_max &&
            request.headers.size() <= limits.header_fields_max);
    require(lengths + codings == 1 || request.body.empty());
    require(!request.raw_target.empty() && request.raw_target[0] == '/' && !request.path.empty() &&
            request.path[0] == '/');
    require(request.raw_target.size() <= limits.target_bytes_max);

    // If a header field occurs twice, some readers use the first occurrence and others the last.
    // Only list fields may occur twice.
    for (const char* name : {"authorization", "content-type", "host", "origin", "sec-websocket-key",
                             "sec-websocket-version", "x-api-key"})
        require(count_fields(request, name) <= 1);
    for (const char c : request.path) require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);

    for (const auto& [name, value] : request.headers) {
        require(!name.empty());
        for (const char c : name)
            require(c > 0x20 && c < 0x7f && c != ':' && !(c >= 'A' && c <= 'Z'));
        for (const char c : value) require(c != '\r' && c != '\n' && c != '\0');
        if (name == "content-length") {
            require(!value.empty() && value.size() <= 18 &&
                    value.find_first_not_of("0123456789") == std::string::npos);
            require(std::stoull(value) == request.body.size());
        }
        if (name == "transfer-encoding") require(value.size() == 7);
    }

    // The head of the request must end where any other HTTP reader finds its end. A body with a
    // stated length must be exactly the bytes behind the head.
    const std::size_t head_end = raw.find("\r\n\r\n");
    require(head_end != std::string_view::npos && head_end + 4 <= limits.header_bytes_max);
    if (codings == 0)
        require(raw.substr(head_end + 4) == request.body);
    else
        require(raw.size() >= head_end + 4 + 5 && raw.substr(raw.size() - 4) == "\r\n\r\n");
    std::size_t line_begin = 0;

    for (std::size_t i = 0; i < head_end + 4; ++i) {
        if (raw[i] != '\n') continue;
        require(i > 0 && raw[i - 1] == '\r');  // no bare LF
        require(line_begin == 0 ||
                (raw[line_begin] != ' ' && raw[line_begin] != '\t'));  // no folded line
        line_begin = i + 1;
    }
    if (request.http_1_0) require(!request.keep_alive || count_fields(request, "connection") > 0);
    check_handshake(request);
}

// Checks the access rules of the routes against a second implementation of the rules, which reads
// only the request.
void check_access(const GatedRequest& gated, const AccessPolicy& policy) {
    const HttpRequest& request = gated;
    const bool host_ok = policy.host_allowed(*request.header("host"));
    const AccessPolicy::Origin origin = policy.judge_origin(request);
    require(host_ok == policy.host_allowed(*request.header("host")) &&
            origin == policy.judge_origin(request));
    const std::size_t origins = count_fields(gated, "origin");
    require((origin == AccessPolicy::Origin::none) == (origins == 0));
    require(origins <= 1);

    if (host_ok) {
        // The gate may allow only a host that is this machine, or a name that the operator
        // configured.
        const auto authority = parse_authority(*request.header("host"));
        require(authority.has_value());
        require(authority->host == "localhost" || authority->host == "hub.example" ||
                (authority->is_address && is_loopback_address(authority->host)));
    }
    if (origin == AccessPolicy::Origin::allowed || origin == AccessPolicy::Origin::same) {
        std::string value(*request.header("origin"));
        std::transform(value.begin(), value.end(), value.begin(),
                       [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
        require(origin == AccessPolicy::Origin::same ? value.rfind("http", 0) == 0
                                                     : value == "https://app.example");
        if (origin == AccessPolicy::Origin::same && host_ok) {
            const auto from = parse_authority(std::string_view(value).substr(value.find("//") + 2)),
                       own = parse_authority(*request.header("host"));
            // A page with another host name than the hub never counts as the hub's own page.
            require(from && own && from->host == own->host);
        }
    }
    // A key is found only if a header carries it, so that no guarded route is open to a request
    // without such a header.
    const auto key = bearer_key(request);
    if (key) require(count_fields(gated, "authorization") + count_fields(gated, "x-api-key") > 0);
    if (key)
        require(std::any_of(gated.headers.begin(), gated.headers.end(), [&](const auto& field) {
            return (field.first == "authorization" || field.first == "x-api-key") &&
                   field.second.size() >= key->size() &&
                   field.second.compare(field.second.size() - key->size(), key->size(), *key) == 0;
        }));
    // A client that connects directly always has the address of its connection. For a client behind
    // a proxy, the address is this machine only if the proxy sent that address.
    static const TrustedProxies proxies({"127.0.0.1", "10.0.0.1"});
    const Client stranger = proxies.client_of("203.0.113.9", false, gated.headers),
                 behind = proxies.client_of("127.0.0.1", false, gated.headers);
    require(stranger.address == "203.0.113.9" && !stranger.loopback && !stranger.secure);
    require(plain_address(behind.address) == behind.address &&
            (!behind.loopback ||
             (is_loopback_address(behind.address) && count_fields(gated, "x-forwarded-for") > 0)));
    require(!behind.secure || count_fields(gated, "x-forwarded-proto") > 0);
    if (is_json_content_type(request.header("content-type").value_or("")))
        require(count_fields(gated, "content-type") > 0);
}

void check_rates(std::string_view bytes) {
    const std::string address(bytes.substr(0, 40));
    require(rate_key(rate_key(address)) == rate_key(address));
    RateLimits rates({.api_requests_per_minute = 60, .api_requests_burst = 3, .addresses_max = 4});
    unsigned passed = 0;
    for (int i = 0; i < 6; ++i)
        passed += rates.api_request(TimePoint{std::chrono::seconds(1)}, address, false) ==
                  Duration{0};
    // The rate limit allows a burst of three requests at the same time, and no more.
    require(passed == 3);
}

void one(std::size_t piece, std::string_view bytes) {
    static const AccessPolicy policy({.listen_address = "127.0.0.1",
                                      .hosts = {"hub.example"},
                                      .cors_origins = {"https://app.example"}});
    const Verdict whole = read_all(bytes, 0), again = read_all(bytes, 0),
                  cut = read_all(bytes, piece);

    for (const Verdict* other : {&again, &cut}) {
        require(other->passed.size() == whole.passed.size() &&
                other->refusal.has_value() == whole.refusal.has_value());
        for (std::size_t i = 0; i < whole.passed.size(); ++i)
            require(same(whole.passed[i], other->passed[i]) && whole.raw[i] == other->raw[i]);
        if (whole.refusal)
            require(whole.refusal->status == other->refusal->status &&
                    whole.refusal->code == other->refusal->code);
        require(other->taken == whole.taken);
    }

    // When the gate drops bodies instead of keeping them, it must find the same ends of requests.
    const Verdict dropped = read_all(bytes, piece, false);
    require(dropped.taken == whole.taken && dropped.passed.size() == whole.passed.size() &&
            dropped.refusal.has_value() == whole.refusal.has_value());
    for (const GatedRequest& request : dropped.passed) require(request.body.empty());
    if (whole.refusal) check_refusal(*whole.refusal);
    for (std::size_t i = 0; i < whole.passed.size(); ++i) {
        check_passed(whole.passed[i], whole.raw[i]);
        check_access(whole.passed[i], policy);
    }

    check_rates(bytes);
}

}  // namespace
}  // namespace moex::net

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    moex::net::one(1 + data[0] % 32,
                   std::string_view(reinterpret_cast<const char*>(data + 1), size - 1));
    return 0;
}
