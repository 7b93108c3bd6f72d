#include "hub/dispatch/core/worker_pool.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "hub/dispatch/placement/placement.h"

namespace moex {
namespace {
constexpr Duration cancelled_kept = 60s;  // how long an id stays live after its CANCEL
// most cancelled ids that are kept; beyond this number the oldest one is forgotten
constexpr std::size_t cancelled_kept_max = 65536;
// with fewer samples the mean is not used for a timeout
constexpr std::uint32_t latency_samples_min = 8;
constexpr Duration estimate_half_life = 30s, work_half_life = 10s;
constexpr std::uint32_t no_bound = std::numeric_limits<std::uint32_t>::max();
constexpr double pair_cost_guess_ms = 0.5;  // assumed time per pair until the first answer arrives

// Returns what is left of 1 after `elapsed`, by exponential decay. Most calls have a very small
// `elapsed`, for which a linear approximation is enough.
double left_after(Duration elapsed, Duration half_life) {
    const double halvings = to_ms(elapsed) / to_ms(half_life);
    constexpr double ln_2 = 0.6931471805599453, line_until = 1.0 / 256;
    return halvings < line_until ? 1 - ln_2 * halvings : std::exp2(-halvings);
}
}  // namespace

std::size_t size_class_of(std::uint32_t num_pairs) {
    return num_pairs <= 8 ? 0 : num_pairs <= 64 ? 1 : num_pairs <= 512 ? 2 : 3;
}

std::size_t SizeCounts::class_of(std::uint64_t bytes) {
    const std::uint64_t at_least_4 = std::max<std::uint64_t>(bytes, 4);
    const auto width = static_cast<std::size_t>(std::bit_width(at_least_4));
    const std::size_t quarter = (at_least_4 >> (width - 3)) & 3;
    return std::min(4 * (width - 3) + quarter, num_classes - 1);
}

void SizeCounts::add(std::uint64_t bytes) {
    const std::size_t i = class_of(bytes);
    ++counts_[i];
    present_[i / word_bits] |= std::uint64_t{1} << i % word_bits;
}

void SizeCounts::remove(std::uint64_t bytes) {
    const std::size_t i = class_of(bytes);
    if (--counts_[i] == 0) present_[i / word_bits] &= ~(std::uint64_t{1} << i % word_bits);
}

std::uint64_t SizeCounts::max() const {
    for (std::size_t word = present_.size(); word-- > 0;) {
        if (present_[word] == 0) continue;
        const auto i = word * word_bits + static_cast<std::size_t>(std::bit_width(present_[word])) -
                       1;
        return ((std::uint64_t{4} + i % 4 + 1) << (i / 4)) - 1;
    }
    return 0;
}

std::uint32_t SequenceIds::issue(AttemptId attempt, std::uint64_t answer_bytes,
                                 const GroupShape& asked) {
    std::uint32_t id = next_;
    while (id == no_sequence_id || find_live(id) != nullptr || cancelled_.contains(id)) ++id;

    next_ = id + 1;
    if (next_ <= id) wrapped_ = true;

    live_.push_back({.id = id, .attempt = attempt, .answer_bytes = answer_bytes});
    asked_->add(id, asked);
    answer_sizes_.add(answer_bytes);
    return id;
}

AttemptId* SequenceIds::find_live(std::uint32_t id) {
    for (Live& live : live_)
        if (live.id == id) return &live.attempt;
    return nullptr;
}

void SequenceIds::release(std::uint32_t id) {
    const auto found = std::find_if(live_.begin(), live_.end(),
                                    [&](const Live& live) { return live.id == id; });
    if (found == live_.end()) return;

    asked_->remove(id);
    answer_sizes_.remove(found->answer_bytes);
    live_.erase(found);
}

void SequenceIds::cancel(std::uint32_t id, TimePoint sent_at, std::uint32_t num_pairs,
                         TimePoint now) {
    const auto found = std::find_if(live_.begin(), live_.end(),
                                    [&](const Live& live) { return live.id == id; });
    if (found == live_.end()) return;

    cancelled_[id] = {.sent_at = sent_at,
                      .expires_at = now + cancelled_kept,
                      .num_pairs = num_pairs,
                      .answer_bytes = found->answer_bytes};

    asked_->remove(id);
    live_.erase(found);
    cancel_order_.emplace_back(id, now + cancelled_kept);
    expire(now);
}

const SequenceIds::Cancelled* SequenceIds::find_cancelled(std::uint32_t id) const {
    const auto found = cancelled_.find(id);
    return found == cancelled_.end() ? nullptr : &found->second;
}

void SequenceIds::release_cancelled(std::uint32_t id) {
    const auto found = cancelled_.find(id);
    if (found == cancelled_.end()) return;

    answer_sizes_.remove(found->second.answer_bytes);
    cancelled_.erase(found);
}

bool SequenceIds::was_issued(std::uint32_t id) const {
    if (id == no_sequence_id) return false;
    return wrapped_ || id - first_ < next_ - first_;
}

void SequenceIds::expire(TimePoint now) {
    while (!cancel_order_.empty() &&
           (cancel_order_.front().second <= now || cancel_order_.size() > cancelled_kept_max)) {
        const auto found = cancelled_.find(cancel_order_.front().first);
        if (found != cancelled_.end() && found->second.expires_at == cancel_order_.front().second)
            release_cancelled(found->first);
        cancel_order_.pop_front();
    }
}

WorkerState Worker::state() const {
    switch (health.state()) {
        case Health::connecting: return WorkerState::connecting;
        case Health::loading: return WorkerState::loading;
        case Health::healthy:
        case Health::suspect: return num_ready > 0 ? WorkerState::active : WorkerState::loading;
        case Health::silent:
        case Health::ejected:
        case Health::probing: return WorkerState::unhealthy;
        case Health::draining: return WorkerState::draining;
    }
    return WorkerState::unhealthy;
}

bool Worker::is_preferred_in(std::uint64_t pass) const {
    constexpr double whole = 1.0 / (1ull << 53);
    return power >= 1 || static_cast<double>(mix_hash(pass, id) >> 11) * whole < power;
}

bool Worker::loading_in_order() const {
    return published_peer && std::any_of(heartbeats.begin(), heartbeats.end(),
                                         [](const Heartbeat& beat) { return !beat.units.empty(); });
}

void LatencyEstimate::record(Duration latency, TimePoint now) {
    constexpr double weight = 0.2;
    double sample_ms = to_ms(latency);
    at = now;
    if (num_samples++ == 0) {
        mean_ms = sample_ms;
        deviation_ms = sample_ms / 2;
        return;
    }
    if (num_samples > latency_samples_min) sample_ms = std::min(sample_ms, 4 * mean_ms);
    deviation_ms += weight * (std::abs(sample_ms - mean_ms) - deviation_ms);
    mean_ms += weight * (sample_ms - mean_ms);
}

void Worker::record_latency(Duration elapsed, std::uint32_t num_pairs, TimePoint now) {
    const std::size_t size_class = size_class_of(num_pairs);
    auto& histogram = latency[size_class];
    if (!histogram) histogram = std::make_unique<LatencyHistogram>();
    histogram->record(elapsed);
    estimates[size_class].record(elapsed, now);
}

Duration Worker::predicted(std::uint32_t num_pairs, const LatencyEstimates& swarm,
                           TimePoint now) const {
    const std::size_t size_class = size_class_of(num_pairs);
    const LatencyEstimate& own = estimates[size_class];
    const LatencyEstimate& all = swarm[size_class];
    double ms = all.num_samples > 0 ? all.mean_ms : pair_cost_guess_ms * num_pairs;

    if (own.num_samples > 0) {
        // Weigh old samples less, so that a worker that was slow once is tried again.
        const double trust = left_after(now - own.at, estimate_half_life);
        ms += trust * (own.mean_ms - ms);
    } else if (all.num_samples > 0) {
        // Scale the swarm's mean by the worker's relative speed with groups of other sizes.
        double own_ms = 0, swarm_ms = 0;
        for (std::size_t i = 0; i < num_size_classes; ++i) {
            if (estimates[i].num_samples == 0 || swarm[i].num_samples == 0) continue;
            own_ms += estimates[i].mean_ms;
            swarm_ms += swarm[i].mean_ms;
        }
        if (swarm_ms > 0) ms *= own_ms / swarm_ms;
    }
    return Duration(static_cast<std::int64_t>(1e6 * ms));
}

void Worker::take_slots(const SlotFigures& reported) {
    if (const std::uint64_t loads = reported.loads - slots.loads; loads > 0) {
        const std::uint64_t us = (reported.load_us - slots.load_us) / loads;
        const auto longest = static_cast<std::uint64_t>(load_max / 1us);
        const Duration each = std::chrono::microseconds(std::min(us, longest));
        load = load == Duration{} ? each : (load + each) / 2;
    }
    slots = reported;
    slot_guess.set_slots(reported.slots);
}

double Worker::work_left(TimePoint now) const {
    return work * left_after(now - work_at, work_half_life);
}

void Worker::decay_work(TimePoint now) {
    work = work_left(now);
    work_at = now;
}

Duration Worker::attempt_timeout(std::uint32_t num_pairs, const SwarmOptions& options) const {
    const Duration longest = device.software
                                 ? std::max(options.timeout_max, options.software_timeout_max)
                                 : options.timeout_max;

    const LatencyEstimate& own = estimates[size_class_of(num_pairs)];
    if (own.num_samples < latency_samples_min) return longest;

    const double ms = std::max(4 * own.mean_ms, own.mean_ms + 6 * own.deviation_ms);
    const Duration usual(static_cast<std::int64_t>(1e6 * ms));
    // an answer after the usual latency of a slow worker is no failure
    const Duration slow(static_cast<std::int64_t>(2e6 * own.mean_ms));
    return std::clamp(usual, std::min(options.timeout_min, longest), std::max(longest, slow));
}

double Worker::pair_cost_ms(std::uint32_t num_pairs) const {
    const auto& histogram = latency[size_class_of(num_pairs)];
    if (!histogram || num_pairs == 0) return pair_cost_guess_ms;
    return std::max(1e-3, to_ms(histogram->p50()) / num_pairs);
}

WorkerView Worker::view() const {
    WorkerView view;
    view.id = id;
    view.state = state();
    view.health = health.state();
    view.ejections = health.ejections();
    view.device = device;
    view.nickname = nickname;
    view.client = client;
    view.arithmetic = arithmetic;
    view.power = power;
    view.worker_key = worker_key;
    view.address = address;
    view.published_peer = published_peer;
    view.units_assigned = num_planned();
    view.units_ready = num_ready;
    view.in_flight = static_cast<std::uint32_t>(ids.num_live());
    view.groups_sent = groups_sent;
    view.groups_answered = groups_answered;
    view.pairs_answered = pairs_answered;
    view.timeouts = timeouts;
    view.errors = errors;
    view.busy = busy;
    view.late = late;
    view.bad_answers = bad_answers;
    view.bytes_sent = bytes_sent;
    view.bytes_received = bytes_received;
    // Report the latencies of the size class with the most samples.
    const LatencyHistogram* busiest = nullptr;
    for (const auto& histogram : latency)
        if (histogram && (busiest == nullptr || histogram->total() > busiest->total()))
            busiest = histogram.get();
    if (busiest != nullptr) {
        view.latency_p50_ms = to_ms(busiest->p50());
        view.latency_p99_ms = to_ms(busiest->p99());
    }
    view.split = split;
    view.speed = speed;
    view.slots = slots;
    for (const auto& [unit, tier] : tiers)
        if (!units.empty() && has(unit, UnitHolder::ready))
            ++view.tiers[static_cast<std::size_t>(tier)];
    view.joined_at = joined_at;
    return view;
}

Worker& WorkerPool::add(WorkerId id, std::uint32_t first_sequence_id) {
    auto& worker = workers_[id] = std::make_unique<Worker>(id, first_sequence_id);
    index_[id] = worker.get();
    return *worker;
}

Worker* WorkerPool::find(WorkerId id) {
    const auto found = index_.find(id);
    return found == index_.end() ? nullptr : found->second;
}

const Worker* WorkerPool::find(WorkerId id) const {
    const auto found = index_.find(id);
    return found == index_.end() ? nullptr : found->second;
}

std::unique_ptr<Worker> WorkerPool::take(WorkerId id) {
    index_.erase(id);
    auto node = workers_.extract(id);
    if (!node) return nullptr;
    set_on_demand(*node.mapped(), false);
    set_pairs_max(*node.mapped(), no_bound);
    return std::move(node.mapped());
}

void WorkerPool::set_pairs_max(Worker& worker, std::uint32_t pairs) {
    num_weak_ -= worker.pairs_max != no_bound;
    worker.pairs_max = pairs;
    num_weak_ += worker.pairs_max != no_bound;
}

void WorkerPool::set_on_demand(Worker& worker, bool on) {
    num_on_demand_ -= worker.on_demand;
    worker.on_demand = on;
    num_on_demand_ += worker.on_demand;
}

Worker* WorkerPool::find_key(const std::string& worker_key, WorkerId except) {
    for (const auto& [id, worker] : workers_)
        if (id != except && worker->welcomed() && worker->worker_key == worker_key)
            return worker.get();
    return nullptr;
}

std::size_t WorkerPool::num_welcomed() const {
    return static_cast<std::size_t>(
        std::count_if(workers_.begin(), workers_.end(),
                      [](const auto& entry) { return entry.second->welcomed(); }));
}

std::size_t WorkerPool::num_welcomed_of(std::uint64_t owner) const {
    return static_cast<std::size_t>(
        std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
            return entry.second->welcomed() && entry.second->owner == owner;
        }));
}

double WorkerPool::least_work(const Worker& newcomer, TimePoint now) const {
    double least = 0;
    bool any = false;
    for (const auto& [id, worker] : workers_) {
        if (worker.get() == &newcomer || worker->state() != WorkerState::active) continue;
        const double work = worker->work_left(now);
        least = any ? std::min(least, work) : work;
        any = true;
    }
    return least;
}

}  // namespace moex
