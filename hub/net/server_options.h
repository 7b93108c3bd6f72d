// The options of the HTTP server: the address, the clients that it serves, and the limits of one
// client.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/base/clock.h"
#include "hub/base/signing_key.h"
#include "hub/net/access/rate_limits.h"
#include "hub/net/http/request_gate.h"
#include "hub/registry/fleet_key.h"
#include "protocol/bytes.h"
#include "protocol/result.h"
#include "protocol/sha256.h"

namespace moex {
class ModelPackage;
}

namespace moex::net {

// Time limits of a client, and limits of the bytes that wait for the client.
struct ClientLimits {
    // time from a request's first byte to the end of its head; also for a TLS or WebSocket
    // handshake
    Duration header_within = 10s;
    Duration body_within = 30s;  // time from the end of the head to the end of the body
    Duration idle_within = 30s;  // time between two requests of one connection
    // The time for one write of at most 256 KiB. The connection of a client that stops reading is
    // closed.
    Duration write_within = 30s;
    // Time without an event, after which a stream of events sends a ping.
    Duration ping_every = 15s;
    // time without any byte from a worker, after which its connection is closed; the hub sends a
    // ping after half of this time
    Duration worker_idle_within = 30s;
    std::uint64_t stream_outbox_bytes_max = 4u << 20;
    std::uint64_t worker_outbox_bytes_max = 64u << 20;
};

// The layers that workers may compute whole (`serve --spans`). Both functions are thread-safe; they
// are empty if workers compute experts only.
struct WholeLayers {
    // Returns the blob of a layer (protocol/span_layer.h) by its hash; null if no layer has it.
    std::function<std::shared_ptr<const Bytes>(const Sha256&)> find;
    std::function<nlohmann::json()> describe;  // makes the part "spans" of /api/status
};

struct ServerOptions {
    std::string listen_address = "127.0.0.1";
    std::uint16_t listen_port = 8080;         // TCP port; 0: any free port, see Server::port()
    std::filesystem::path tls_cert, tls_key;  // both or neither
    bool insecure_http = false;  // allow a listen address other than loopback without TLS
    std::vector<std::string> cors_origins;  // exact origins
    // Further names that the Host header may carry, besides the listen address, localhost and the
    // names of the certificate.
    std::vector<std::string> hosts;
    // Addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto headers count. If there are
    // any, API keys are required.
    std::vector<std::string> trusted_proxies;
    // Folder of the pages; empty: the pages built into the binary.
    std::filesystem::path static_directory;
    std::filesystem::path access_log;  // file of the access log; empty: no log; "-": stdout
    bool access_log_json = false;      // write the access log as one JSON object per line
    std::uint32_t connections_max = 4096;
    // connections from one IPv4 address or IPv6 /64; loopback may have rates.loopback_factor times
    // as many
    std::uint32_t connections_per_address_max = 256;
    // bytes of request bodies in memory, over all connections; a request beyond this limit gets 503
    std::uint64_t body_bytes_in_flight_max = 64u << 20;
    // The most workers of one address that the swarm admits. Twice as many workers may be
    // connected, because a worker may reconnect before its old connection has timed out.
    std::uint32_t workers_per_address_max = 16;
    // The key of the hub's fleet; empty: the hub is alone.
    std::optional<FleetKey> fleet_key = {};
    Duration drain_within = 30s;
    bool test_routes = false;
    // For /api/status: the predictor whose hints are sent to workers with experts on demand; "off":
    // no hints are sent.
    std::string hints_by = "off";
    // Makes a part of /api/status; empty: no shadow runs.
    std::function<nlohmann::json()> describe_shadow;
    // Hours for which prompts are kept on disk; /health reports it. 0: none are kept.
    std::uint32_t prompts_kept_hours = 0;
    // Signs the manifest and the pages for /api/signature; null: the hub signs nothing.
    std::shared_ptr<const SigningKey> signing_key;
    bool give_model = true;  // a client with access to the API may load the whole package
    // The package that such clients load; null: the one that is served.
    std::shared_ptr<const ModelPackage> device_package;
    bool require_keys = false;  // require API keys on loopback, too; elsewhere they always are
    // If true, run() handles signals: SIGINT and SIGTERM stop the server. SIGHUP reads the
    // certificate again (its names stay those of the start), reopens the access log and calls
    // on_reload.
    bool handle_signals = true;
    // functions for the admin page; each may be empty
    std::function<nlohmann::json()> describe_settings;  // makes [{name, value, source, help}]
    std::function<std::vector<std::string>(const std::string&)> qr_rows;  // '1' is dark
    // The server calls this function after SIGHUP, on a thread that may wait for files.
    std::function<void()> on_reload;
    GateLimits gate;
    ClientLimits clients;
    RateOptions rates;
};

// Refuses an address beyond loopback without TLS, unless the operator accepts that explicitly.
Status check_address(const ServerOptions& options);

// Returns true if the API requires keys. On loopback keys are required only if the options say so,
// or if a proxy forwards other clients.
bool keys_required(const ServerOptions& options);

}  // namespace moex::net
