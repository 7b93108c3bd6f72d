#include "hub/net/housekeeping.h"

#include <algorithm>
#include <ctime>

#include "hub/base/log.h"

namespace moex::net {
namespace {

// A worker without work is recorded in the registry again after this number of ticks (seconds).
constexpr std::uint32_t see_idle_every_ticks = 60;
constexpr std::uint32_t coverage_every_ticks = 10;
// A hub renews its lease as often.
constexpr std::uint32_t copies_every_ticks = 3;
constexpr std::size_t speed_samples = 6;  // one sample a second: they span five seconds

}  // namespace

Housekeeping::Housekeeping(HubContext& hub)
    : hub_(hub),
      timer_(hub.swarm_strand),
      trust_(hub),
      random_(std::random_device{}()) {}

void Housekeeping::start() {
    asio::post(hub_.swarm_strand, [this] { tick(); });
}

void Housekeeping::stop() {
    asio::post(hub_.swarm_strand, [this] {
        stopped_ = true;
        timer_.cancel();
    });
}

void Housekeeping::tick() {
    if (stopped_) return;

    if (Engine* engine = hub_.engine) {
        tokens_.emplace_back(now_steady(), engine->counters().generated_tokens);
        if (tokens_.size() > speed_samples) tokens_.pop_front();

        const auto& [first_at, first_tokens] = tokens_.front();
        const auto& [last_at, last_tokens] = tokens_.back();
        const double seconds = std::chrono::duration<double>(last_at - first_at).count();
        hub_.decode_tokens_per_s = seconds > 0
                                       ? static_cast<double>(last_tokens - first_tokens) / seconds
                                       : 0.0;
    }

    {
        const std::shared_lock attached(hub_.attached_mutex);
        if (Api* api = hub_.api) api->sweep_streams();
    }

    ++ticks_;
    record();
    watch_minute();
    look_at_fleet();
    timer_.expires_after(1s);
    timer_.async_wait([this](NetError error) {
        if (!error) tick();
    });
}

void Housekeeping::finish() {
    record();
    end_minute();
    minute_ = {};
}

void Housekeeping::watch_minute() {
    SwarmBackend* swarm = hub_.swarm;
    if (!swarm || !hub_.engine) return;

    const std::int64_t now_s = std::time(nullptr), minute_s = now_s - now_s % 60;
    const bool is_new = minute_s != minute_.minute_s;
    if (is_new) {
        end_minute();
        minute_ = {.minute_s = minute_s};
    }

    std::uint64_t active = 0;
    for (const WorkerView& worker : swarm->core().workers()) active += could_serve(worker.state);
    minute_.workers = std::max(minute_.workers, active);
    if (!is_new && ticks_ % coverage_every_ticks != 0) return;

    const Coverage coverage = swarm->core().coverage();
    minute_.covered = is_new ? coverage.covered
                             : std::min<std::uint64_t>(minute_.covered, coverage.covered);
    minute_.units = coverage.units;
}

// Completes the record of the current minute with the increases since the end of the previous
// minute, and passes it to the registry.
void Housekeeping::end_minute() {
    SwarmBackend* swarm = hub_.swarm;
    Engine* engine = hub_.engine;
    if (!swarm || !engine || minute_.minute_s == 0) return;

    const auto since = [](std::uint64_t now, std::uint64_t& before) {
        return now - std::exchange(before, now);
    };
    const SwarmCounters calls = swarm->core().counters();
    minute_.answer_tokens = since(engine->counters().generated_tokens, tokens_before_);
    minute_.answers = since(hub_.answers_begun, answers_before_);
    minute_.first_token_us = since(hub_.first_token_us, first_us_before_);
    if (since(calls.groups_answered, calls_before_) > 0) {
        const auto us_of = [](double ms) { return static_cast<std::uint64_t>(ms * 1e3); };
        minute_.call_p50_us = us_of(calls.group_p50_ms);
        minute_.call_p99_us = us_of(calls.group_p99_ms);
        minute_.call_p999_us = us_of(calls.group_p999_ms);
    }
    hub_.registry.record_minute(minute_);
}

void Housekeeping::record() {
    SwarmBackend* swarm = hub_.swarm;
    Engine* engine = hub_.engine;
    if (!swarm || !engine) return;

    const auto add = [&](const char* name, std::uint64_t value) {
        std::uint64_t& last = counters_[name];
        if (value > last) hub_.registry.add_to_counter(name, value - last);
        last = value;
    };

    const EngineCounters tokens = engine->counters();
    const SwarmCounters calls = swarm->core().counters();
    add("prompt_tokens", tokens.prompt_tokens);
    add("generated_tokens", tokens.generated_tokens);
    add("rounds", calls.rounds);
    add("calls_remote", calls.calls_remote);
    add("calls_local", calls.calls_local);
    add("bad_answers", calls.bad_answers);

    const std::int64_t now_s = std::time(nullptr);
    std::map<WorkerId, Seen> seen_now;
    for (const WorkerView& worker : swarm->core().workers()) {
        hub_.contributors.count(worker, swarm->core().options().checks.on);
        const auto known = workers_.find(worker.id);
        const Seen last = known == workers_.end() ? Seen{} : known->second;
        const Seen now{worker.pairs_credited, worker.bytes_received, worker.bad_answers};
        seen_now[worker.id] = now;
        const bool is_idle = known != workers_.end() && now == last;
        if (is_idle && ticks_ % see_idle_every_ticks != 0) continue;

        hub_.registry.record_worker({worker.worker_key, worker.nickname, worker.device.description,
                                     worker.pairs_credited - last.pairs_credited,
                                     worker.bytes_received - last.bytes_received,
                                     worker.bad_answers - last.bad_answers, now_s, now_s});
    }
    workers_ = std::move(seen_now);
    hub_.workers_connected = static_cast<std::uint32_t>(workers_.size());
    trust_.record();
}

void Housekeeping::on_worker_event(const WorkerEvent& event) {
    using Kind = WorkerEvent::Kind;
    if (event.kind == Kind::joined) return trust_.joined(event.view->worker_key);
    if (event.kind == Kind::left || event.kind == Kind::removed || event.kind == Kind::lied)
        trust_.write(event.view->worker_key);
}

std::set<WorkerId> Housekeeping::leaving() const {
    std::set<WorkerId> ids;
    for (const auto& [id, tick] : asked_)
        if (ticks_ - tick < MovePause::leave_looks_max) ids.insert(id);
    return ids;
}

void Housekeeping::count_copies() {
    const UnitCopies copies = hub_.swarm.load()->core().copies(leaving());
    hub_.units = copies.units;
    hub_.units_missing = copies.missing;
    hub_.units_thin = copies.thin;
}

// Sends the workers the hubs that live, once these or what they need have changed.
void Housekeeping::tell_hubs(const FleetPlaces& places) {
    if (!told_hubs_.changes(places.others, ticks_)) return;
    SwarmBackend* swarm = hub_.swarm;
    for (const WorkerView& worker : swarm->core().workers())
        if (worker.reads_hubs) (void)swarm->tell_hubs(worker.id, {places.others, false});
    log_info("fleet: workers know the other hubs", kv("hubs", places.others.size()));
}

void Housekeeping::look_at_fleet() {
    SwarmBackend* swarm = hub_.swarm;
    if (!swarm || !hub_.registry.is_shared()) return;
    if (ticks_ % copies_every_ticks == 1) count_copies();
    std::erase_if(asked_, [&](const auto& asked) { return !swarm->core().worker(asked.first); });
    pause_.look(!leaving().empty());

    const auto fleet = hub_.registry.fleet();
    // Members of a view that no one renews do not change when workers move, so that all hubs would
    // send workers to the same hub again and again.
    if (hub_.registry.store_is_away() || !fleet->is_fresh(now_steady())) return;
    tell_hubs(places_of(fleet->self, fleet->members));
    if (pause_.is_over()) move_worker(*fleet);
}

void Housekeeping::move_worker(const FleetView& fleet) {
    SwarmBackend* swarm = hub_.swarm;
    const SwarmCore& core = swarm->core();
    std::set<WorkerId> asked;
    for (const auto& [id, tick] : asked_) asked.insert(id);
    const std::vector<WorkerView> workers = core.workers();
    const UnitCopies copies = core.copies(leaving());
    const MoveChoice choice = choose_move(
        {.self = fleet.self,
         .members = fleet.members,
         .workers = workers,
         .copies = copies,
         .asked = asked,
         .computes_experts = core.options().local_fallback,
         .uniform = std::generate_canonical<double, 32>(random_)});
    if (choice.keeps_holders)
        log_rarely(LogLevel::info,
                   "fleet: no worker is sent to another hub, which would leave experts or layers "
                   "in use without a holder here",
                   kv("workers", workers.size()));
    // A probability decides once in ten seconds, whatever the answer.
    pause_.decided();
    if (!choice.move) return;
    const WorkerMove& move = *choice.move;
    if (!swarm->tell_hubs(move.worker, {{move.hub}, true}).ok()) return;
    asked_[move.worker] = ticks_;
    log_info("fleet: a worker is asked to join a hub that needs it more", kv("worker", move.worker),
             kv("hub", move.hub.id), kv("missing", move.hub.need.missing),
             kv("thin", move.hub.need.thin));
}

}  // namespace moex::net
