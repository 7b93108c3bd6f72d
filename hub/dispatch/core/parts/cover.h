// Which workers compute the open slices of a round: asks the router for a cover, sends the groups.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "hub/dispatch/core/event_context.h"
#include "hub/dispatch/round/router.h"

namespace moex {

class SwarmCover : public SwarmPart {
  public:
    using SwarmPart::SwarmPart;

    bool eligible(const Worker& worker, TimePoint now) const;
    // Gives `open` slices to workers, few frames first; what found nobody stays in `open`. A hedge
    // goes to idle ones.
    void plan_cover(EventContext& context, Round& round, std::vector<std::uint32_t>& open,
                    bool hedge);
    std::span<const std::uint32_t> slice_pairs_max(std::uint32_t layer);

  private:
    // Nobody who holds the unit serves: those are asked who are ejected.
    bool in_need(std::uint32_t unit) const;
    bool can_take(const Worker& worker, const CallSlice& slice) const;
    std::optional<std::uint32_t> route_of(Worker& worker, Dtype dtype, bool idle_only,
                                          TimePoint now);
    void prefer_proven();
    void prefer_resident(std::uint32_t unit, TimePoint now);
    void send_group(EventContext& context, Round& round, Worker& worker,
                    std::vector<std::uint32_t> slices, bool hedge,
                    std::vector<std::uint32_t>& unsent);

    // Scratch, reused.
    Router router_;
    std::vector<Worker*> routed_;  // as the router numbers them
    std::vector<Duration> loads_;  // of each, for what only it and others that load it can take
    std::vector<std::uint32_t> takers_;
    std::vector<std::uint32_t> pairs_max_of_;  // [num_experts]
    std::uint64_t mark_ = 0;
};

}  // namespace moex
