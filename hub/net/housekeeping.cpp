#include "hub/net/housekeeping.h"

#include <ctime>

namespace moex::net {
namespace {

constexpr std::uint32_t record_every_ticks = 5;
constexpr std::size_t speed_samples = 6;  // the speed is that of the last five seconds

}  // namespace

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

    if (++ticks_ % record_every_ticks == 0) record();
    timer_.expires_after(1s);
    timer_.async_wait([this](NetError error) {
        if (!error) tick();
    });
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
        const Seen last = workers_[worker.id];
        seen_now[worker.id] = {worker.pairs_answered, worker.bytes_received, worker.bad_answers};
        hub_.registry.record_worker({worker.worker_key, worker.nickname, worker.device.description,
                                     worker.pairs_answered - last.pairs_answered,
                                     worker.bytes_received - last.bytes_received,
                                     worker.bad_answers - last.bad_answers, now_s, now_s});
    }
    workers_ = std::move(seen_now);
}

}  // namespace moex::net
