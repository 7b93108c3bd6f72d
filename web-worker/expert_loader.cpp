#include "web-worker/expert_loader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "web-worker/device_keeper.h"

namespace moex {
namespace {
// READY frames are gathered for this time before one is sent.
constexpr double announce_every_ms = 20;
constexpr double retry_ms_min = 500, retry_ms_max = 30000;
constexpr std::size_t ready_units_max = 1024;  // a frame
}  // namespace

ExpertLoader::~ExpertLoader() {
    if (announce_timer_ != 0) platform_.clear_timer(announce_timer_);
    platform_.cancel_fetches();
}

void ExpertLoader::runner_ready() {
    runner_ready_ = true;
    cache_.runner_ready();
    announce();
}

void ExpertLoader::stop_fetching() {
    ++fetch_number_;
    platform_.cancel_fetches();
    cache_.fetches_cancelled();
    fetching_.clear();
    num_later_ = 0;
    report_.status.bytes_to_fetch = report_.status.bytes_fetched;
}

void ExpertLoader::begin_connection() {
    set_later(0);
    ++num_assignments_;
    assigned_.clear();
    unannounced_.clear();
}

std::uint32_t ExpertLoader::num_ready() const {
    const std::pair now{num_assignments_, cache_.num_changes()};
    if (std::exchange(counted_at_, now) != now)
        num_ready_ = static_cast<std::uint32_t>(
            std::count_if(assigned_.begin(), assigned_.end(),
                          [this](const auto& unit) { return cache_.holds(unit.first); }));
    return num_ready_;
}

std::uint32_t ExpertLoader::num_assigned_outside(std::uint32_t first_layer,
                                                 std::uint32_t end_layer) const {
    return static_cast<std::uint32_t>(
        std::count_if(assigned_.begin(), assigned_.end(), [&](const auto& one) {
            return one.first.layer < first_layer || one.first.layer >= end_layer;
        }));
}

// From the first ASSIGN on, the progress also includes the experts that the hub will assign later.
void ExpertLoader::set_later(std::uint32_t num_units) {
    report_.status.bytes_to_fetch += blob_bytes_ * num_units;
    report_.status.bytes_to_fetch -= blob_bytes_ * num_later_;
    num_later_ = num_units;
}

void ExpertLoader::assign(const Assign& message) {
    set_later(message.num_later);
    std::vector<Unit> beyond;
    for (const AssignedUnit& unit : message.units) {
        const Unit name{unit.layer, unit.expert};
        if (assigned_.size() < cache_.capacity() || assigned_.contains(name) ||
            store_.is_lent(name)) {
            ++num_assignments_;
            assigned_[name] = unit.blob;
        } else {
            beyond.push_back(name);
        }
    }

    if (!beyond.empty()) events_.beyond(beyond);

    if (const Status made = store_.reserve(num_planned()); !made.ok()) return lost(made.error());
    if (runner_ready_)
        if (const Status prepared = runner_.prepare(); !prepared.ok())
            return lost(prepared.error());

    for (const AssignedUnit& one : message.units) {
        const Unit unit{one.layer, one.expert};
        if (!assigned_.contains(unit)) continue;
        if (cache_.holds(unit)) {
            unannounced_.push_back(unit);
            continue;
        }
        if (!fetching_.insert(unit).second) continue;
        report_.status.bytes_to_fetch += blob_bytes_;
        fetch(unit, 0);
    }

    announce();
    events_.changed();
}

void ExpertLoader::lost(const Error& error) {
    const auto handler = events_.lost;  // the `lost` handler may destroy this loader
    handler(gpu::loss_of(error));
}

void ExpertLoader::fetch(Unit unit, std::uint32_t failures) {
    platform_.fetch_blob(
        assigned_.at(unit), blob_bytes_, false,
        [this, life = life_.watch()](std::uint64_t bytes, bool from_network) {
            if (!life.alive()) return;
            report_.status.bytes_fetched += bytes;
            if (from_network) report_.status.bytes_downloaded += bytes;
            report_.changed();
        },

        [this, unit, failures, life = life_.watch(), number = fetch_number_](Result<Bytes> blob) {
            if (!life.alive() || number != fetch_number_) return;
            if (blob.ok() || !assigned_.contains(unit)) return store_blob(unit, std::move(blob));

            // The fetch failed: the hub or the connection may be busy. The expert stays assigned
            // and is fetched again.
            ++report_.status.errors;
            report_.status.detail = text("An expert could not be fetched and is tried again: ",
                                         blob.error().message);
            report_.changed();

            const double delay_ms =
                std::min(retry_ms_max, retry_ms_min * std::pow(2.0, std::min(failures, 10u))) *
                (0.5 + platform_.random());
            platform_.set_timer(delay_ms, [this, unit, failures, life, number] {
                if (!life.alive() || number != fetch_number_) return;
                if (assigned_.contains(unit)) return fetch(unit, failures + 1);
                done_fetching(unit);  // released meanwhile
                events_.changed();
            });
        });
}

void ExpertLoader::done_fetching(Unit unit) {
    fetching_.erase(unit);
    if (fetching_.empty())
        report_.status.bytes_to_fetch = report_.status.bytes_fetched + blob_bytes_ * num_later_;
}

void ExpertLoader::store_blob(Unit unit, Result<Bytes> blob) {
    done_fetching(unit);
    if (!assigned_.contains(unit)) return events_.changed();  // released meanwhile

    const Sha256& hash = assigned_.at(unit);
    Status kept = cache_.keep(unit, hash, *blob);
    if (!kept.ok() && kept.error().code == ErrorCode::no_space && drop_unassigned())
        kept = cache_.keep(unit, hash, *blob);
    if (!kept.ok()) return lost(kept.error());

    unannounced_.push_back(unit);
    announce();
    events_.changed();
}

// Releases one held expert that the hub has not assigned. Returns false if there is no such expert.
// Experts of an earlier connection stay until their room is needed, since the next ASSIGN mostly
// names them again.
bool ExpertLoader::drop_unassigned() {
    for (const Unit& held : cache_.units())
        if (!assigned_.contains(held)) {
            cache_.forget(held);
            return true;
        }
    return false;
}

// Reports the held experts to the hub. A delay of 20 ms gathers several experts into one READY, and
// is short enough that serving begins early.
void ExpertLoader::announce() {
    if (!runner_ready_ || !hub_.online() || unannounced_.empty() || announce_timer_ != 0) return;

    announce_timer_ = platform_.set_timer(announce_every_ms, [this] {
        announce_timer_ = 0;
        if (!hub_.online() || unannounced_.empty()) return;
        for (std::size_t first = 0; first < unannounced_.size(); first += ready_units_max) {
            const std::size_t last = std::min(unannounced_.size(), first + ready_units_max);
            const std::vector<Unit> units(unannounced_.begin() + static_cast<std::ptrdiff_t>(first),
                                          unannounced_.begin() + static_cast<std::ptrdiff_t>(last));
            std::vector<UnitTier> tiers;
            for (const Unit& unit : units)
                if (reports_tiers_) tiers.push_back(cache_.tier_of(unit));
            hub_.send(encode_ready(units, tiers));
        }

        unannounced_.clear();
        events_.changed();
    });
}

void ExpertLoader::let_go(Unit unit) {
    ++num_assignments_;
    assigned_.erase(unit);
    std::erase(unannounced_, unit);
    cache_.forget(unit);
}

std::vector<Unit> ExpertLoader::end_lending(std::uint64_t owner, bool is_readable) {
    std::vector<Unit> lost = cache_.end_lending(owner, is_readable);
    std::erase_if(lost, [this](Unit unit) { return !assigned_.contains(unit); });
    for (const Unit unit : lost) let_go(unit);
    return lost;
}

void ExpertLoader::release(const std::vector<Unit>& units) {
    for (const Unit& unit : units) let_go(unit);
    events_.changed();
}

Result<std::vector<Unit>> ExpertLoader::resize(std::uint64_t budget_bytes) {
    const std::uint32_t capacity = cache_.capacity_for(budget_bytes);
    for (const Unit& held : cache_.units())
        if (cache_.num_units() > capacity && !assigned_.contains(held)) cache_.forget(held);

    std::vector<Unit> order;
    for (const auto& [unit, blob] : assigned_)
        if (!cache_.holds(unit)) order.push_back(unit);
    const std::vector<Unit> held = cache_.units_from_the_end();
    std::copy_if(held.begin(), held.end(), std::back_inserter(order),
                 [this](Unit unit) { return assigned_.contains(unit); });
    order.resize(assigned_.size() > capacity ? assigned_.size() - capacity : 0);
    for (const Unit& unit : order) let_go(unit);

    MOEX_TRY(cache_.resize(budget_bytes));
    if (runner_ready_) MOEX_TRY(runner_.prepare());
    return order;
}

}  // namespace moex
