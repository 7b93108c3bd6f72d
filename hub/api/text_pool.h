// Threads of their own for work on texts: JSON, templates, tokenising. So a client's
// megabyte neither holds up a socket nor the swarm, and it waits behind nobody but itself.
// Two lanes: short texts have a thread that long ones never take, and long ones run at a
// lower priority than the model. In each lane clients take turns, one text at a time.
// Bounded in texts and bytes, of all and of each client. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "hub/api/refusal.h"

namespace moex {

struct TextPoolOptions {
    std::uint32_t long_threads = 0;  // 0: a quarter of the cores, from 1 to 4
    std::uint64_t short_bytes_max = 16 << 10;
    std::size_t jobs_max = 1024, jobs_per_client_max = 64;  // that wait
    std::uint64_t bytes_max = 64u << 20, bytes_per_client_max = 16u << 20;
};

class TextPool {
  public:
    explicit TextPool(TextPoolOptions options = {});
    ~TextPool();  // as stop()
    // Waits for what runs; what waits is dropped unrun, what comes is refused. Once.
    void stop();

    // Runs `job` once, on a thread of the pool; it works on a text of `bytes`.
    // Refuses with 429 when this client has too much waiting, 503 when all have.
    Checked<void> submit(const std::string& client, std::uint64_t bytes, std::function<void()> job);
    std::size_t num_waiting() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
