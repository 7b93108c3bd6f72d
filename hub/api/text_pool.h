// Threads for work on texts: JSON, templates, tokenising. A client's megabyte of text then delays
// neither sockets nor the swarm, and it delays other clients by at most one text.
// There are two lanes. Short texts have a thread that long texts never use. Long texts run at a
// lower priority than the model. In each lane the clients are served round-robin, one text at a
// time. The queues are bounded in texts and bytes, for each client and for all. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "hub/api/refusal.h"

namespace moex {

struct TextPoolOptions {
    std::uint32_t long_threads = 0;  // number of threads; 0: a quarter of the cores, from 1 to 4
    std::uint64_t short_bytes_max = 16 << 10;
    std::size_t jobs_max = 1024, jobs_per_client_max = 64;  // queued jobs
    std::uint64_t bytes_max = 64u << 20, bytes_per_client_max = 16u << 20;
};

class TextPool {
  public:
    explicit TextPool(TextPoolOptions options = {});
    ~TextPool();  // calls stop()
    // Waits for running jobs, drops queued jobs, and refuses new ones. Not on a thread of the pool.
    void stop();

    // Runs `job` once, on a thread of the pool; the job works on a text of `bytes` bytes. Refuses
    // with 429 if this client has too many jobs or bytes queued, and with 503 if all clients
    // together have too many.
    Checked<void> submit(const std::string& client, std::uint64_t bytes, std::function<void()> job);
    std::size_t num_waiting() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
