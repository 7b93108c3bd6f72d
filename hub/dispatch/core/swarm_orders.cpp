// Orders of the operator for one worker: drain it without a gap in service, pin it (it keeps its
// units), or ban it. Also news of the hubs that the worker may join.
#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/core/swarm_state.h"

namespace moex {

Status SwarmCore::on_order(TimePoint now, WorkerId id, WorkerOrder order,
                           std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    EventContext context{state, now, actions};
    Worker* const worker = state.pool.find(id);
    if (worker == nullptr || !worker->welcomed())
        return Error{ErrorCode::not_found, text("no worker ", id, " is connected")};

    switch (order) {
        case WorkerOrder::drain:
        case WorkerOrder::use:
            state.placement.set_drained(context, *worker, order == WorkerOrder::drain);
            break;

        case WorkerOrder::pin:
        case WorkerOrder::unpin: state.placement.pin(*worker, order == WorkerOrder::pin); break;

        case WorkerOrder::ban:
            if (worker->worker_key.empty())
                return Error{ErrorCode::invalid_argument,
                             text("worker ", id,
                                  " has no key that could be banned; a new join "
                                  "link keeps out all who do not have it")};
            if (!state.options.closed_for) state.checks.ban(*worker, now);
            state.sessions.refuse(context, *worker,
                                  {ErrorCode::unauthorized,
                                   "the operator of this hub does not accept this "
                                   "worker for now"},
                                  CloseCode::policy);
            break;
    }
    state.end_event(context);
    return {};
}

Status SwarmCore::on_hubs(TimePoint now, WorkerId id, const HubsChange& change,
                          std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    EventContext context{state, now, actions};
    Worker* const worker = state.pool.find(id);
    if (worker == nullptr || !worker->welcomed())
        return Error{ErrorCode::not_found, text("no worker ", id, " is connected")};
    if (!worker->reads_hubs)
        return Error{ErrorCode::unsupported, text("worker ", id, " does not read HUBS")};
    context.send(*worker, encode_hubs(change));
    state.end_event(context);
    return {};
}

TrustRecord SwarmCore::trust_record(std::string_view worker_key) const {
    return state_->checks.trust_record(worker_key);
}

void SwarmCore::set_trust_record(TimePoint now, std::string_view worker_key,
                                 const TrustRecord& record) {
    state_->checks.set_trust_record(now, worker_key, record);
}

}  // namespace moex
