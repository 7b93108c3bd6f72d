// The hub's HTTP server: listens, admits or refuses requests, serves pages, blobs and the API, and
// upgrades /worker to WebSockets. Connects the swarm to sockets.
//
// The routes are rows of routes/route_table.cpp; /openapi.json describes them for tools.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hub/api/api.h"
#include "hub/dispatch/core/swarm_backend.h"
#include "hub/net/server_options.h"
#include "hub/registry/registry.h"

namespace moex::net {

class Server {
  public:
    // Binds to the address at once. Throws std::runtime_error with a sentence if this fails (busy
    // port, bad certificate, open address without TLS).
    Server(ServerOptions options, std::shared_ptr<const ModelPackage> package, Registry& registry);
    ~Server();
    std::uint16_t port() const;
    std::string base_url() const;  // http://127.0.0.1:8080
    std::string join_url() const;  // .../join.html#token=...
    // Returns a link that opens the admin page once, and is valid until the hub ends. The previous
    // link is no longer valid.
    std::string make_admin_url() const;
    // The number of requests and of workers that this server has now. Any thread may call load().
    struct Load {
        std::uint32_t requests = 0, workers = 0;
        // of a hub in a fleet, as in HubNeed
        std::uint32_t units = 0, missing = 0, thin = 0;
    };
    Load load() const;
    SwarmHost& swarm_host();  // the server owns the host's strand; usable before run()
    // Connects the rooms that answer requests. Called once, before run().
    void attach(SwarmBackend& swarm, Engine& engine, Api& api);
    // Serves whole layers to workers, and describes them in /api/status. Called once, before run().
    void give_layers(WholeLayers layers);
    // Returns an observer for the Api, which adds finished requests and latencies to /metrics.
    // The observer is valid as long as the server exists.
    ApiObserver api_observer();
    // Adds joins, leaves and removals to /metrics; the caller passes it to the swarm. Any thread
    // may call it.
    void on_worker_event(const WorkerEvent& event);
    // Serves until stop(), on `num_threads` threads (two at least), while the caller waits. The
    // swarm's strand is served until the destructor runs, so that engine and swarm can be taken
    // down after run() has returned. `spin_max` is the longest time for which each thread polls for
    // new events before it sleeps (protocol/spin_wait.h).
    void run(std::size_t num_threads, Duration spin_max = {});
    // Puts the fields of `options` that LiveOptions has into force. Any thread may call it.
    void change(const ServerOptions& options);
    // Drains the hub (health 503, no new work, streams end, workers get DRAIN, then close code
    // 1001). A second call stops at once. Called by any thread, or on a signal.
    void stop();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex::net
