// Whole tokens in the simulated swarm whose layers are computed by the hub, by rounds of experts,
// or by workers that hold several layers whole (sim_span_holder.h). The engine's side is the real
// SpanClient, which waits in simulated time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "hub/dispatch/span/span_client.h"
#include "tests/sim/sim_swarm.h"

namespace moex::sim {

// Sets the options of a swarm so that its workers may hold spans. The engine's side belongs to
// SimSpanEngine.
void allow_spans(SimOptions& options);

// The result of tokens that were computed in simulated time.
struct SpanTokens {
    std::vector<double> token_ms;
    std::uint64_t failed = 0;   // tokens that could not be computed in any way
    std::uint64_t changed = 0;  // tokens with a false row, key or value
    SpanCounters counters;      // since the engine was made

    double quantile_ms(double q) const;
};

// The engine's side of a swarm that allow_spans() has prepared. `swarm` outlives this object.
class SimSpanEngine {
  public:
    SimSpanEngine(SimSwarm& swarm, std::uint32_t num_streams);
    ~SimSpanEngine();

    // Computes tokens, each with one row of each stream. `before` is called before each token.
    SpanTokens run(std::uint32_t num_tokens,
                   const std::function<void(std::uint32_t token)>& before = {});
    // Returns the ids of the workers whose spans the newest token used.
    std::vector<WorkerId> used() const;
    // Returns the number of layers that may be in spans and are in none, while a living worker that
    // holds no span has room for one.
    std::uint32_t layers_left() const;

  private:
    class Token;
    SimSwarm& swarm_;
    const std::uint32_t num_streams_;
    std::uint32_t num_tokens_ = 0;  // of each sequence
    std::unique_ptr<SpanClient> client_;
};

}  // namespace moex::sim
