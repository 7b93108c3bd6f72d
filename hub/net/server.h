// The hub's door: listens, gates requests, serves pages, blobs
// and the API, upgrades /worker. Wires the swarm to sockets.
//
// Routes stand in routes.cpp, one row each; /openapi.json tells them to tools.
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
    // Binds at once; throws std::runtime_error with a sentence when it
    // cannot (busy port, bad certificate, open address without TLS).
    Server(ServerOptions options, std::shared_ptr<const ModelPackage> package, Registry& registry);
    ~Server();
    std::uint16_t port() const;
    std::string base_url() const;  // http://127.0.0.1:8080
    std::string join_url() const;  // .../join.html#token=...
    // A link to the admin page that opens it once, until the hub ends. Makes the one before it
    // void.
    std::string make_admin_url() const;
    SwarmHost& swarm_host();  // its strand lives in this server; usable before run()
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
    // `spin_max`: so long each of them looks for what comes before it sleeps
    // (protocol/spin_wait.h).
    void run(std::size_t num_threads, Duration spin_max = {});
    // What LiveOptions has of `options` holds from now on. Any thread.
    void change(const ServerOptions& options);
    // From any thread or a signal: drains (health 503, no new work, streams
    // end, workers get DRAIN, then 1001); a second call stops at once.
    void stop();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex::net
