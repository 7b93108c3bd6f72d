// The hub's door: listens, gates requests, serves pages, blobs
// and the API, upgrades /worker. Wires the swarm to sockets.
//
// Route table (deny by default; `server_routes()` lists it for the test that walks it):
//   GET  /  /join.html  /status.html  /css/* /js/* /wasm/* /vendor/* /favicon.svg    public: pages,
//   embedded in the binary (or from --static DIR) GET  /weights/<sha256>          public: blobs;
//   Range, ETag, immutable GET  /worker                    WebSocket upgrade; token in HELLO or as
//   Bearer GET  /health  /v1/health        public: 200 {"status":"ok",...} or 503
//   {"status":"loading"|"uncovered"|"draining", ...} GET  /v1/models                 public GET
//   /metrics                   admin key off loopback GET  /api/status                api or admin
//   key off loopback; JSON below, for the status page GET  /api/info                  public:
//   {"name","version","model","context_tokens","api_key_required","join_path"} for the pages POST
//   /v1/chat/completions  /v1/completions  /tokenize  /detokenize               api key off
//   loopback POST /api/test                  only with --test-routes (tests): {"hedge":"fixed 2"}
//   or {"local_fallback":false}
//
// /api/status: {
//   "version", "uptime_s", "model":
//   {"name","num_layers","num_moe_layers","num_experts","top_k","hidden_size","context_tokens","expert_dtype","expert_blob_bytes"},
//   "options": {"local_fallback","hedge","replicas","deterministic"},
//   "health": "ok" | "uncovered" | "draining",
//   "coverage": {"units","covered","replicas_min","replicas_mean"},
//   "replicas": [[..num_experts..], ..per layer; [] for dense layers..],
//   "engine":
//   {"running","waiting","steps","steps_multi_sequence","steps_stopped","stepped_back","rows","prompt_tokens","generated_tokens","kv_pages_used","kv_pages","decode_tokens_per_s"},
//   "calls":
//   {"rounds","calls","remote","local","groups_sent","groups_answered","hedges_sent","hedges_won","redispatched","timeouts","late","bad_answers",
//             "bytes_sent","bytes_received","frames_sent","frames_received","p50_ms","p99_ms"},
//   "workers":
//   [{"id","state","nickname","client","backend","vendor","description","software","published_only","units_assigned","units_ready","in_flight",
//                "groups_answered","pairs_answered","timeouts","errors","bad_answers","bytes_sent","bytes_received","p50_ms","p99_ms","connected_s"}],
//   "join_url"                      // with its token; only for admin or loopback
// }
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hub/api/api.h"
#include "hub/dispatch/swarm_backend.h"
#include "hub/net/http/request_gate.h"
#include "hub/net/rate_limits.h"
#include "hub/registry/registry.h"

namespace moex {

// How long a client may take, and how much may wait for it. Source: targets S5.
struct ClientLimits {
    // first byte to end of head; also a TLS or WebSocket handshake
    Duration header_within = 10s;
    Duration body_within = 30s;  // head to end of body
    Duration idle_within = 30s;  // between requests of one connection
    Duration write_within =
        30s;  // one write of at most 256 KiB: a reader that stops reading is closed
    Duration ping_every = 15s;  // silence in a stream of events
    Duration worker_idle_within =
        30s;  // without any byte from a worker; half of it in silence sends a ping
    std::uint64_t stream_outbox_bytes_max = 4u << 20;
    std::uint64_t worker_outbox_bytes_max = 64u << 20;
};

struct ServerOptions {
    std::string listen_address = "127.0.0.1";
    std::uint16_t listen_port = 8080;         // 0: any free one, see port()
    std::filesystem::path tls_cert, tls_key;  // both or none
    bool insecure_http = false;               // allow a non-loopback address without TLS
    std::vector<std::string> cors_origins;    // exact origins
    std::vector<std::string> hosts;  // further names that Host may carry (besides the listen
                                     // address, localhost and the certificate's names)
    std::vector<std::string>
        trusted_proxies;  // addresses whose X-Forwarded-For and X-Forwarded-Proto count; API keys
                          // are asked for then
    std::filesystem::path static_directory;  // empty: the pages built into the binary
    std::uint32_t connections_max = 4096;
    // of one IPv4 address or IPv6 /64; loopback: rates.loopback_factor times as many
    std::uint32_t connections_per_address_max = 256;
    // request bodies in memory, of all connections together; beyond it 503
    std::uint64_t body_bytes_in_flight_max = 64u << 20;
    std::uint32_t workers_per_address_max = 16;
    Duration drain_within = 30s;
    bool test_routes = false;
    bool require_keys = false;   // API keys on loopback too; always on elsewhere
    bool handle_signals = true;  // run(): SIGINT and SIGTERM stop, SIGHUP reads the certificate
                                 // again (its names stay those of the start)
    GateLimits gate;
    ClientLimits clients;
    RateOptions rates;
};

// Whether the API asks for keys: on loopback only when told to, or when a proxy lets others in.
bool keys_required(const ServerOptions& options);

class Server {
  public:
    // Binds at once; throws std::runtime_error with a sentence when it
    // cannot (busy port, bad certificate, open address without TLS).
    Server(ServerOptions options, std::shared_ptr<const ModelPackage> package, Registry& registry);
    ~Server();
    std::uint16_t port() const;
    std::string base_url() const;  // http://127.0.0.1:8080
    std::string join_url() const;  // .../join.html#token=...
    SwarmHost& swarm_host();       // its strand lives in this server; usable before run()
    // Everything behind the door; call once, before run().
    void attach(SwarmBackend& swarm, Engine& engine, Api& api);
    // Give it to the Api: finished requests and latencies
    // land in /metrics. Valid as long as the server.
    ApiObserver api_observer();
    // Give it to the swarm: joins, leaves and removals land in /metrics. Any thread.
    void on_worker_event(const WorkerEvent& event);
    // Serves until stop(), on `num_threads` threads (two at least) while
    // the caller waits. The swarm's strand is served until the destructor,
    // so that engine and swarm can be taken down after run() has returned.
    void run(std::size_t num_threads);
    // From any thread or a signal: drains (health 503, no new work, streams
    // end, workers get DRAIN, then 1001); a second call stops at once.
    void stop();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

struct RouteInfo {
    std::string method, path;
    bool is_public = false;  // open without a key off loopback
};
std::vector<RouteInfo> server_routes();

}  // namespace moex
