// A cover is a set of few workers that together take the open slices of a round. This part asks the
// router for a cover and sends the groups.
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
    // Sends `open` slices to workers in few frames. Slices that no worker takes remain in `open`.
    // With `hedge`, only idle workers are used, unless the round sends several copies at once.
    void plan_cover(EventContext& context, Round& round, std::vector<std::uint32_t>& open,
                    bool hedge);
    std::span<const std::uint32_t> slice_pairs_max(std::uint32_t layer);

  private:
    // Returns true if no holder of the unit is in service. Ejected holders are used too in that
    // case.
    bool in_need(std::uint32_t unit) const;
    bool can_take(const Worker& worker, const CallSlice& slice) const;
    std::optional<std::uint32_t> route_of(Worker& worker, Dtype dtype, bool idle_only,
                                          TimePoint now);
    std::optional<Duration> judge_holders(const Round& round, std::span<const std::uint32_t> open,
                                          TimePoint now);
    void prefer_proven();
    void prefer_resident(std::uint32_t unit, TimePoint now);
    void send_group(EventContext& context, Round& round, Worker& worker,
                    std::vector<std::uint32_t> slices, bool hedge,
                    std::vector<std::uint32_t>& unsent);

    // Scratch vectors that every cover reuses.
    Router router_;
    std::vector<Worker*> routed_;  // workers, indexed by their number in the router
    // load time of each worker in `routed_`, for slices that every taker would have to load first
    std::vector<Duration> loads_;
    std::vector<Worker*> judged_;  // the holders that could take a slice of this pass
    std::vector<std::uint32_t> takers_;
    std::vector<std::uint32_t> pairs_max_of_;  // [num_experts]: result of slice_pairs_max()
    std::uint64_t mark_ = 0;
};

}  // namespace moex
