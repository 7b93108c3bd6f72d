// Keeps the lease of this hub in a shared store.
#include "hub/base/log.h"
#include "hub/registry/registry.h"
#include "hub/registry/registry_state.h"

namespace moex {
namespace {

// A look at a store that hangs takes two seconds, so a life has room for two of them.
constexpr Duration lease_life = 9s, renew_every = lease_life / 3;

}  // namespace

Status Registry::join_fleet(std::function<Member()> describe) {
    const std::lock_guard lock(state_->member_mutex);
    state_->member = describe();
    state_->member.keys_seen = to_hex(state_->keys_digest());
    MOEX_ASSIGN(fence, state_->membership->enter(state_->member, lease_life));
    state_->member.fence = fence;
    state_->describe_member = std::move(describe);
    state_->read_members();
    state_->renew_at = now_steady() + renew_every;
    log_info("fleet: this hub has entered", kv("hub", state_->member.hub_id), kv("fence", fence));
    return {};
}

std::int64_t Registry::incarnation() const {
    const std::lock_guard lock(state_->member_mutex);
    return state_->member.fence;
}

std::shared_ptr<const FleetView> Registry::fleet() const {
    const std::lock_guard lock(state_->fleet_mutex);
    return state_->fleet;
}

// The caller holds member_mutex. A store that is away leaves the members as they were.
void RegistryState::read_members() {
    const TimePoint fresh_until = now_steady() + lease_life;
    auto found = membership->watch();
    if (!found.ok()) return;
    auto view = std::make_shared<const FleetView>(
        FleetView{member, *std::move(found), fresh_until});
    const std::lock_guard lock(fleet_mutex);
    fleet = std::move(view);
}

// The view stays as it is, for pages, and is old.
void RegistryState::end_view() {
    const std::lock_guard lock(fleet_mutex);
    fleet = std::make_shared<const FleetView>(FleetView{fleet->self, fleet->members});
}

void Registry::leave_fleet() { state_->leave_fleet(); }

void RegistryState::renew_membership(bool at_once) {
    const std::lock_guard lock(member_mutex);
    if (!describe_member || is_away || (!at_once && now_steady() < renew_at)) return;
    const std::int64_t fence = member.fence;
    member = describe_member();
    member.fence = fence;
    member.keys_seen = to_hex(keys_digest());
    renew_at = now_steady() + renew_every;

    const Status renewed = membership->renew(member, lease_life);
    if (renewed.ok()) return read_members();
    if (renewed.error().code == ErrorCode::cancelled) {
        log_error(
            "fleet: another process entered as this hub, so no hub sends requests here; was a "
            "state "
            "folder copied?",
            kv("error", renewed.error().message));
        describe_member = nullptr;
        end_view();
        return;
    }
    if (renewed.error().code == ErrorCode::not_found) {
        if (const auto entered = membership->enter(member, lease_life); entered.ok()) {
            member.fence = *entered;
            log_warn("fleet: the store had lost this hub, which has entered again",
                     kv("fence", *entered));
            return;
        }
    }
    renew_at = {};  // at the next look
}

void RegistryState::leave_fleet() {
    const std::lock_guard lock(member_mutex);
    if (!std::exchange(describe_member, nullptr)) return;
    (void)membership->renew(member, Duration{});
}

}  // namespace moex
