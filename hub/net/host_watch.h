// Looks at the certificate and at the disk of the state folder every few seconds, on the disk
// thread, and posts the result to the hub's HostBoard. Writes one log line per cause and minute.
// Returns free memory to the system once a minute, on that thread, too.
#pragma once

#include <atomic>

#include "hub/net/hub_context.h"

namespace moex::net {

class HostWatch {
  public:
    explicit HostWatch(HubContext& hub) : hub_(hub), timer_(hub.swarm_strand) {}
    void start();  // any thread
    void stop();   // any thread
    // The certificate that new connections get from now on; 0: none. Any thread.
    void serve_certificate_until(std::int64_t end_s) { certificate_end_s_ = end_s; }
    // Looks once. Called on the disk thread, or before the server runs.
    void look();

  private:
    void tick();

    HubContext& hub_;
    asio::steady_timer timer_;
    std::atomic<std::int64_t> certificate_end_s_{0};
    CertificateReminder reminder_;  // used by look()
    bool stopped_ = false;          // swarm strand
    std::uint32_t looks_ = 0;       // swarm strand
};

}  // namespace moex::net
