#include "hub/dispatch/swarm_types.h"

namespace moex {

const char* worker_state_name(WorkerState state) {
    switch (state) {
        case WorkerState::connecting: return "connecting";
        case WorkerState::loading: return "loading";
        case WorkerState::active: return "active";
        case WorkerState::reserve: return "reserve";
        case WorkerState::unhealthy: return "unhealthy";
        case WorkerState::draining: return "draining";
    }
    return "unknown";
}

}  // namespace moex
