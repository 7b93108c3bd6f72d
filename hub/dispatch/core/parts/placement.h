// Translates between the unit directory and frames: orders of the directory become ASSIGN,
// WEIGHT_SYNC and RELEASE, and each READY updates the directory. This part also owns hot experts,
// hints and the keys of drained workers.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "hub/dispatch/core/event_context.h"
#include "hub/dispatch/placement/hot_experts.h"
#include "hub/dispatch/placement/unit_directory.h"

namespace moex {

class SwarmPlacement : public SwarmPart {
  public:
    explicit SwarmPlacement(SwarmState& swarm);

    // ---- The following functions convert units to numbers and back.
    // The layer must be an MoE layer.
    std::uint32_t unit_of(std::uint32_t layer, std::uint32_t expert) const;
    Unit wire_unit(std::uint32_t unit) const;
    bool is_unit(const Unit& unit) const;
    // Returns the unit numbers of `named`, without units that the model does not have.
    std::vector<std::uint32_t> units_of(const std::vector<Unit>& named) const;
    // Returns the index of the layer among the MoE layers; -1 for a dense layer, and for a layer
    // that the model does not have.
    std::int32_t moe_index_of(std::uint32_t layer) const {
        return layer < moe_index_.size() ? moe_index_[layer] : -1;
    }
    std::span<const std::uint32_t> moe_layers() const { return moe_layers_; }
    const UnitDirectory& directory() const { return directory_; }
    void needs_layer(std::uint32_t layer) { directory_.needs_layer_of(unit_of(layer, 0)); }

    // ---- The following functions handle events of workers.
    // Gives the worker its share of units once the list of units that it already has (`held`) is
    // known. Acts at most once per worker.
    void place(EventContext& context, Worker& worker, std::span<const std::uint32_t> held);
    void mark_ready(EventContext& context, Worker& worker, std::span<const std::uint32_t> units);
    void on_missing_units(EventContext& context, Worker& worker, const Attempt& attempt,
                          const Round& round);
    void on_capacity(EventContext& context, Worker& worker, std::span<const std::uint32_t> dropped);
    void on_no_space(EventContext& context, Worker& worker);
    void check_loading(EventContext& context, Worker& worker);
    void leave(Worker& worker, bool may_return, TimePoint now);
    // Assigns the units of a worker that is about to leave to other workers.
    void hand_over(EventContext& context, Worker& worker);
    // Sends the pending orders. With `settles`, the directory first adds the orders that follow
    // from the events so far.
    void settle(EventContext& context, bool settles);
    void on_units_time(EventContext& context);
    std::uint32_t capacity_of(const Worker& worker) const;
    Duration holder_wait_of(std::uint32_t unit, TimePoint unheld_since) const;

    // ---- The following functions carry out the operator's orders.
    void set_drained(EventContext& context, Worker& worker, bool on);
    bool is_drained(const Worker& worker) const { return drained_.contains(ring_key_of(worker)); }
    void pin(const Worker& worker, bool on) { directory_.pin(ring_key_of(worker), on); }
    bool is_pinned(const Worker& worker) const { return directory_.is_pinned(ring_key_of(worker)); }

    // ---- The following functions give popular units extra copies (swarm_hot_experts.cpp).
    void count_requested(EventContext& context, const ExpertBatch& batch);
    void count_predicted(EventContext& context, std::span<const ExpertHint> hints);
    void update_hot_experts(EventContext& context);

    // ---- The following functions send predicted experts to workers (swarm_hints.cpp).
    void send_hints(EventContext& context, std::span<const ExpertHint> hints);

  private:
    // Turns the orders of the unit directory into frames. It is called after every event that the
    // directory receives.
    void carry_out_orders(EventContext& context);
    void send_assign(EventContext& context, Worker& worker, std::span<const std::uint32_t> units);
    void send_release(EventContext& context, Worker& worker, std::span<const std::uint32_t> units);
    std::uint16_t deadline_of(const ExpertHint& hint) const;
    // Returns the worker's place on the placement's hash ring. The place is derived from the
    // worker's own key, so a worker that returns gets the same place.
    static std::uint64_t ring_key_of(const Worker& worker);

    // [num_layers]: index of each layer among the MoE layers, -1 for dense layers
    std::vector<std::int32_t> moe_index_;
    std::vector<std::uint32_t> moe_layers_;
    UnitDirectory directory_;
    HotExperts hot_experts_;
    std::optional<TimePoint> units_timer_at_;
    std::set<std::uint64_t> drained_;  // ring keys of workers that the operator drains
};

}  // namespace moex
