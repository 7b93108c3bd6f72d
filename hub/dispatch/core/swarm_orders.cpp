// What a host orders of one worker: to go without a gap, to keep what it has, to stay out.
#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/core/swarm_state.h"

namespace moex {

Status SwarmCore::on_order(TimePoint now, WorkerId id, WorkerOrder order,
                           std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    SwarmState::EventContext context{state, now, actions};
    Worker* const worker = state.pool.find(id);
    if (worker == nullptr || !worker->welcomed())
        return Error{ErrorCode::not_found, text("no worker ", id, " is connected")};

    const std::uint64_t ring_key = SwarmState::ring_key_of(*worker);
    switch (order) {
        case WorkerOrder::drain:
        case WorkerOrder::use:
            if (order == WorkerOrder::drain)
                state.drained.insert(ring_key);
            else
                state.drained.erase(ring_key);
            if (worker->leaving()) break;
            // as if it had moved its memory limit to nothing, or back
            state.directory.on_budget(*worker, state.capacity_of(*worker), {}, now);
            state.carry_out_orders(context);
            break;

        case WorkerOrder::pin:
        case WorkerOrder::unpin: state.directory.pin(ring_key, order == WorkerOrder::pin); break;

        case WorkerOrder::ban:
            if (worker->worker_key.empty())
                return Error{ErrorCode::invalid_argument,
                             text("worker ", id,
                                  " has no key that could be banned; a new join "
                                  "link keeps out who does not have it")};
            if (!state.options.closed_for) state.trust.ban(worker->worker_key, now);
            state.refuse(context, *worker,
                         {ErrorCode::unauthorized,
                          "the host of this hub takes nothing of this "
                          "worker for now"},
                         CloseCode::policy);
            break;
    }
    state.close_drained(context);
    return {};
}

}  // namespace moex
