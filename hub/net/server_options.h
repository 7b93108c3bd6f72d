// What the owner of a hub chooses about its door: where it listens,
// who may ask, and how much one client may take of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/base/clock.h"
#include "hub/net/access/rate_limits.h"
#include "hub/net/http/request_gate.h"

namespace moex::net {

// How long a client may take, and how much may wait for it.
struct ClientLimits {
    // From the first byte to the end of the head; also a TLS or WebSocket handshake.
    Duration header_within = 10s;
    Duration body_within = 30s;  // from the end of the head to the end of the body
    Duration idle_within = 30s;  // between requests of one connection
    // One write of at most 256 KiB: a reader that stops reading is closed.
    Duration write_within = 30s;
    Duration ping_every = 15s;  // of silence in a stream of events
    // Without any byte from a worker; half of it in silence sends a ping.
    Duration worker_idle_within = 30s;
    std::uint64_t stream_outbox_bytes_max = 4u << 20;
    std::uint64_t worker_outbox_bytes_max = 64u << 20;
};

struct ServerOptions {
    std::string listen_address = "127.0.0.1";
    std::uint16_t listen_port = 8080;         // 0: any free one, see Server::port()
    std::filesystem::path tls_cert, tls_key;  // both or none
    bool insecure_http = false;               // allow a non-loopback address without TLS
    std::vector<std::string> cors_origins;    // exact origins
    // Further names that Host may carry, besides the listen
    // address, localhost and the certificate's names.
    std::vector<std::string> hosts;
    // Addresses whose X-Forwarded-For and X-Forwarded-Proto count; API keys are asked for then.
    std::vector<std::string> trusted_proxies;
    std::filesystem::path static_directory;  // empty: the pages built into the binary
    std::filesystem::path access_log;        // empty: none; "-": stdout
    bool access_log_json = false;            // one object per line
    std::uint32_t connections_max = 4096;
    // Of one IPv4 address or IPv6 /64; loopback: rates.loopback_factor times as many.
    std::uint32_t connections_per_address_max = 256;
    // Request bodies in memory, of all connections together; beyond it 503.
    std::uint64_t body_bytes_in_flight_max = 64u << 20;
    // Workers of one address: what the swarm welcomes. Twice as many may
    // have a socket, since each may come back before its old one is missed.
    std::uint32_t workers_per_address_max = 16;
    Duration drain_within = 30s;
    bool test_routes = false;
    // For /api/status: whose guesses workers with experts on demand are told; "off": nobody's.
    std::string hints_by = "off";
    std::function<nlohmann::json()> describe_shadow;  // for /api/status; empty: there is none
    bool give_model = true;     // the whole package, to whoever may use the API
    bool require_keys = false;  // API keys on loopback too; always on elsewhere
    // In run(): SIGINT and SIGTERM stop, SIGHUP reads the certificate again (its names stay those
    // of the start), opens the access log anew and calls on_reload.
    bool handle_signals = true;
    // For the admin page; either may be empty.
    std::function<nlohmann::json()> describe_settings;  // [{name, value, source, help}]
    std::function<std::vector<std::string>(const std::string&)> qr_rows;  // '1' is dark
    // After SIGHUP, on a thread that may wait for files.
    std::function<void()> on_reload;
    GateLimits gate;
    ClientLimits clients;
    RateOptions rates;
};

// Whether the API asks for keys: on loopback only when told to, or when a proxy lets others in.
bool keys_required(const ServerOptions& options);

}  // namespace moex::net
