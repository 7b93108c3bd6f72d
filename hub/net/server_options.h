// The options of the HTTP server: the address, the clients that it serves, and the limits of one
// client.
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

// Time limits of a client, and limits of the bytes that wait for the client.
struct ClientLimits {
    // from the first byte to the end of the head; also for a TLS or WebSocket handshake
    Duration header_within = 10s;
    Duration body_within = 30s;  // from the end of the head to the end of the body
    Duration idle_within = 30s;  // between requests of one connection
    // One write of at most 256 KiB. The connection of a client that stops reading is closed.
    Duration write_within = 30s;
    Duration ping_every = 15s;  // in a stream of events without an event
    // without any byte from a worker; the hub sends a ping after half of this time
    Duration worker_idle_within = 30s;
    std::uint64_t stream_outbox_bytes_max = 4u << 20;
    std::uint64_t worker_outbox_bytes_max = 64u << 20;
};

struct ServerOptions {
    std::string listen_address = "127.0.0.1";
    std::uint16_t listen_port = 8080;         // 0: any free port, see Server::port()
    std::filesystem::path tls_cert, tls_key;  // both or neither
    bool insecure_http = false;               // allow a non-loopback address without TLS
    std::vector<std::string> cors_origins;    // exact origins
    // Further names that the Host header may carry, besides the listen address, localhost and the
    // names of the certificate.
    std::vector<std::string> hosts;
    // Addresses whose X-Forwarded-For and X-Forwarded-Proto count. API keys are then required.
    std::vector<std::string> trusted_proxies;
    std::filesystem::path static_directory;  // empty: the pages built into the binary
    std::filesystem::path access_log;        // empty: none; "-": stdout
    bool access_log_json = false;            // one object per line
    std::uint32_t connections_max = 4096;
    // from one IPv4 address or IPv6 /64; loopback may have rates.loopback_factor times as many
    std::uint32_t connections_per_address_max = 256;
    // request bodies in memory, over all connections; beyond it 503
    std::uint64_t body_bytes_in_flight_max = 64u << 20;
    // Workers of one address that the swarm admits. Twice as many may have a socket, because a
    // worker may reconnect before its old connection has timed out.
    std::uint32_t workers_per_address_max = 16;
    Duration drain_within = 30s;
    bool test_routes = false;
    // For /api/status: the predictor whose hints are sent to workers with experts on demand; "off":
    // no hints are sent.
    std::string hints_by = "off";
    std::function<nlohmann::json()> describe_shadow;  // for /api/status; empty: no shadow runs
    bool give_model = true;     // a client with access to the API may load the whole package
    bool require_keys = false;  // API keys on loopback too; always on elsewhere
    // run() handles signals: SIGINT and SIGTERM stop the server. SIGHUP reads the certificate again
    // (its names stay those of the start), reopens the access log and calls on_reload.
    bool handle_signals = true;
    // for the admin page; either may be empty
    std::function<nlohmann::json()> describe_settings;  // [{name, value, source, help}]
    std::function<std::vector<std::string>(const std::string&)> qr_rows;  // '1' is dark
    // called after SIGHUP, on a thread that may wait for files
    std::function<void()> on_reload;
    GateLimits gate;
    ClientLimits clients;
    RateOptions rates;
};

// Returns true if the API requires keys. On loopback keys are required only if the options say so,
// or if a proxy forwards other clients.
bool keys_required(const ServerOptions& options);

}  // namespace moex::net
