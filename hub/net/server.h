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
//   {"running","waiting","steps","steps_multi_sequence","steps_stopped","preempted","rows","prompt_tokens","generated_tokens","kv_pages_used","kv_pages","decode_tokens_per_s"},
//   "calls":
//   {"rounds","calls","remote","local","groups_sent","groups_answered","hedges_sent","hedges_won","redispatched","timeouts","late","bad_answers",
//             "bytes_sent","bytes_received","frames_sent","frames_received","p50_ms","p99_ms"},
//   "workers":
//   [{"id","state","nickname","client","backend","vendor","description","software","published_peer","units_assigned","units_ready","in_flight",
//                "groups_answered","pairs_answered","timeouts","errors","bad_answers","bytes_sent","bytes_received","p50_ms","p99_ms","connected_s"}],
//   "join_url"                      // with its token; only for admin or loopback
// }
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hub/api/api.h"
#include "hub/dispatch/swarm_backend.h"
#include "hub/net/server_options.h"
#include "hub/registry/registry.h"

namespace moex::net {

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

}  // namespace moex::net
