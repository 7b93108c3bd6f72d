// The streams of a hub in a fleet: their journals in the shared store, and the requests for streams
// of other hubs, which are passed on, or taken over. Thread-safe; it has threads of its own, so
// that neither strands nor generations wait for the store.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "hub/api/stream_fleet.h"
#include "hub/net/http/asio.h"
#include "hub/registry/registry.h"
#include "hub/registry/stream_journal.h"

namespace moex::net {

struct FleetStreamsOptions {
    std::string hub_id;
    std::string ca_file;  // of https addresses of other hubs; empty: the system's certificates
    // Called with the id of a stream of this hub that another hub has taken.
    std::function<void(const std::string& stream_id)> on_lost;
};

class FleetStreams : public StreamFleet {
  public:
    FleetStreams(Registry& registry, const FleetKey& key, FleetStreamsOptions options);
    ~FleetStreams() override;
    // Ends the work for requests; on_lost is not called any more. Journals are still written.
    void stop();

    const std::string& hub_id() const override { return options_.hub_id; }
    void begin(const std::string& stream_id, Bytes head) override;
    void add(const std::string& stream_id, Bytes token) override;
    void end(const std::string& stream_id) override;
    Result<Found> find(const std::string& stream_id, bool owner_is_gone) override;
    void leave(const std::string& stream_id) override;
    void pass_on(const std::string& address, const HttpRequest& request,
                 std::shared_ptr<HttpResponder> responder, std::function<void()> on_gone) override;
    bool run_later(std::function<void()> work) override;
    StreamJournal::Counters counters() const { return journal_.counters(); }

  private:
    class Passage;
    const FleetKey key_;
    const FleetStreamsOptions options_;
    std::mutex lost_mutex_;
    bool is_stopped_ = false;  // guarded by lost_mutex_
    StreamJournal journal_;
    std::atomic<int> num_waiting_{0};
    asio::thread_pool lookups_{1};  // one, so that a stream is taken once
    asio::io_context io_;
    std::shared_ptr<ssl::context> tls_;
    asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
    std::thread thread_;
};

}  // namespace moex::net
