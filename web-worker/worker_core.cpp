#include "web-worker/worker_core.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <set>

#include "web-worker/expert_runner.h"

namespace moex {
namespace {

constexpr double self_test_nrmse_max = 1e-5;     // f32 sums come within 1e-6; a device beyond this is wrong, not imprecise
constexpr double report_every_ms = 100;
constexpr double ready_every_ms = 20;            // READY frames are gathered for this long
constexpr double retry_ms_min = 500, retry_ms_max = 30000;
constexpr std::uint32_t busy_retry_ms = 20;
constexpr std::size_t latencies_kept = 512;
constexpr double heartbeats_silent = 6;          // without a word from the hub: the line is dead
constexpr std::uint32_t reopen_failures_max = 6; // of a GPU that was there before
constexpr std::uint32_t lanes_max = 4;           // rounds in flight; more would only hold memory
constexpr const char* kernel_version = "int4-1";

}  // namespace

const char* worker_phase_name(WorkerPhase phase) {
    switch (phase) {
        case WorkerPhase::starting: return "starting";
        case WorkerPhase::connecting: return "connecting";
        case WorkerPhase::downloading: return "downloading";
        case WorkerPhase::warming: return "warming";
        case WorkerPhase::serving: return "serving";
        case WorkerPhase::paused: return "paused";
        case WorkerPhase::offline: return "offline";
        case WorkerPhase::gpu_lost: return "gpu_lost";
        case WorkerPhase::refused: return "refused";
        case WorkerPhase::failed: return "failed";
        case WorkerPhase::stopped: return "stopped";
    }
    return "unknown";
}

struct WorkerCore::State {
    State(Platform& on, WorkerOptions with) : platform(on), options(std::move(with)) { status.budget_bytes = options.budget_bytes; }

    Platform& platform;
    WorkerOptions options;
    WorkerStatus status;
    std::unique_ptr<gpu::Device> device;
    std::unique_ptr<ExpertStore> store;
    std::unique_ptr<ExpertRunner> runner;
    std::optional<Welcome> welcome;              // of the model the store holds
    bool runner_ready = false;
    bool online = false;                         // HELLO was answered
    bool warm = false;                           // everything assigned is held: from here on rounds create nothing
    bool paused = false, stopping = false, over = false;
    bool leaving = false;                        // this side closed the connection: what still comes in is not answered
    bool opening = false;                        // asked for a connection, no answer yet
    bool greeted = false;                        // HELLO was sent, with the budget of then
    bool closing = false;                        // hung up, the platform has not said so yet
    bool tested = false;                         // the device passed its known answers
    bool reopening = false;                      // the GPU went away; the retry timer opens it again
    std::uint32_t devices_opened = 0, reopen_failures = 0;
    std::uint64_t generation = 0;                // of the device: what an older one still says is dropped
    std::string fatal_code;                      // of the hub's last fatal ERROR on this connection
    std::uint32_t attempts = 0;                  // connects that failed in a row
    std::uint64_t retry_timer = 0, report_timer = 0, ready_timer = 0, silence_timer = 0;
    std::uint64_t epoch = 0;                     // of the store: answers of an older one are dropped
    std::map<Unit, Sha256> assigned;
    std::set<Unit> fetching;
    std::vector<Unit> ready_pending;             // on the GPU, not yet told to the hub
    std::deque<Bytes> queue;                     // groups that wait for a lane; bounded by the hub's queue depth
    Bytes scratch;
    GroupDispatchView view;
    std::vector<double> latencies;
    std::size_t latency_next = 0;
    std::shared_ptr<int> alive = std::make_shared<int>(0);

    // ---- what people see

    void enter(WorkerPhase phase, std::string detail = {}) {
        status.phase = phase;
        status.detail = std::move(detail);
        changed();
    }
    void changed() {
        if (report_timer == 0 && !over) report_timer = platform.set_timer(report_every_ms, [this] { report_timer = 0; report(); });
    }
    void report() {
        if (device) status.device = device->counters();
        if (store) {
            status.units_ready = static_cast<std::uint32_t>(
                std::count_if(assigned.begin(), assigned.end(), [this](const auto& unit) { return store->holds(unit.first); }));
            status.weights_bytes = store->weights_bytes();
        } else {
            status.units_ready = 0;
            status.weights_bytes = 0;
        }
        status.units_assigned = static_cast<std::uint32_t>(assigned.size());
        if (!latencies.empty()) {
            std::vector<double> sorted = latencies;
            std::sort(sorted.begin(), sorted.end());
            status.round_ms_p50 = sorted[sorted.size() / 2];
            status.round_ms_p99 = sorted[std::min(sorted.size() - 1, sorted.size() * 99 / 100)];
        }
        platform.report(status);
    }
    void fail(std::string reason) {
        over = true;
        if (std::exchange(online, false)) platform.close(1001, "this GPU cannot serve");
        for (std::uint64_t* timer : {&report_timer, &retry_timer, &silence_timer})
            if (*timer != 0) platform.clear_timer(std::exchange(*timer, 0));
        platform.cancel_fetches();
        status.phase = WorkerPhase::failed;
        status.detail = std::move(reason);
        report();
    }
    // After a change of what is held or connected: the honest phase.
    void settle() {
        if (over || stopping || !online) return;
        if (!runner_ready) return enter(WorkerPhase::warming);
        const bool all_held = fetching.empty() && std::all_of(assigned.begin(), assigned.end(), [this](const auto& unit) { return store->holds(unit.first); });
        if (!all_held) warm = false;
        if (!all_held && store->num_units() == 0) return enter(WorkerPhase::downloading);
        if (assigned.empty()) return enter(WorkerPhase::serving, "The hub has given this worker no experts yet.");
        if (all_held && !warm) {
            warm = true;
            status.device_at_warm = device->counters();
            status.rounds_at_warm = status.groups_answered;
        }
        // It serves what it holds while the rest still comes.
        enter(all_held ? WorkerPhase::serving : WorkerPhase::downloading, all_held ? "" : "Serving what is here already; the rest is on its way.");
    }

    // ---- device

    void open_device() {
        reopening = tested = false;
        platform.create_device([this, at = ++generation, guard = std::weak_ptr<int>(alive)](Result<std::unique_ptr<gpu::Device>> made) {
            if (guard.expired() || stopping || at != generation) return;
            if (!made.ok()) {
                // A browser whose GPU process has just died has no adapter for a while.
                if (devices_opened > 0 && ++reopen_failures <= reopen_failures_max) return reopen_later(made.error().message);
                return fail(made.error().message);
            }
            ++devices_opened;
            device = std::move(*made);
            status.adapter = device->adapter();
            device->on_lost([this, at, guard](std::string reason) {
                if (!guard.expired() && at == generation) lost(reason);
            });
            enter(WorkerPhase::warming);
            ExpertRunner::self_test(*device, [this, at, guard](Result<double> nrmse) {
                if (guard.expired() || stopping || at != generation || reopening) return;
                if (!nrmse.ok() && nrmse.error().code == ErrorCode::device_lost) return lost(nrmse.error().message);
                if (!nrmse.ok()) return fail(text("This GPU cannot run the expert kernels: ", nrmse.error().message));
                ++status.self_test_rounds;
                status.self_test_nrmse = *nrmse;
                if (!(*nrmse <= self_test_nrmse_max))
                    return fail(text("This GPU computes wrong results (error ", *nrmse, ", at most ", self_test_nrmse_max,
                                     " is allowed). A driver update may mend that; until then it does not serve."));
                reopen_failures = 0;
                tested = true;
                if (paused) return enter(WorkerPhase::paused);
                connect();
            });
        });
    }
    void drop_weights() {
        ++epoch;
        runner_ready = false;
        runner.reset();
        store.reset();
        fetching.clear();
        ready_pending.clear();
        platform.cancel_fetches();
    }
    void lost(const std::string& reason) {
        if (stopping || over || reopening) return;
        std::string less;
        if (reason.starts_with("out of memory")) {
            if (!welcome || status.budget_bytes / 2 < welcome->expert_blob_bytes)
                return fail(text("This GPU has too little free memory: ", reason.substr(0, 200), ". Close other pages that use it, then start again."));
            status.budget_bytes /= 2;
            less = text(" With ", status.budget_bytes >> 20, " MB for weights from now on.");
        }
        hang_up("GPU lost");
        drop_weights();
        welcome.reset();
        reopen_later(reason, less);
    }
    void reopen_later(const std::string& reason, const std::string& more = {}) {
        reopening = true;
        opening = false;
        enter(WorkerPhase::gpu_lost, text("The GPU was lost (", reason.substr(0, 200), "). Starting again.", more));
        // Not from inside the device's own callback.
        if (retry_timer != 0) platform.clear_timer(retry_timer);
        retry_timer = platform.set_timer((500 + 1000 * platform.random()) * (1 + reopen_failures), [this] {
            retry_timer = 0;
            ++generation;
            device.reset();
            open_device();
        });
    }

    // ---- connection

    void hang_up(std::string_view why) {
        leaving = true;
        closing = online || greeted;
        online = greeted = false;
        queue.clear();
        if (silence_timer != 0) platform.clear_timer(std::exchange(silence_timer, 0));
        platform.close(1001, why);
    }
    // The hub says something every heartbeat. A line that went silent without closing (sleep, a lost NAT entry) is given up.
    void watch_silence() {
        if (silence_timer != 0) platform.clear_timer(silence_timer);
        silence_timer = platform.set_timer(heartbeats_silent * std::max(500u, welcome ? welcome->heartbeat_ms : 2000u), [this] {
            silence_timer = 0;
            if (online) hang_up("the hub fell silent");
        });
    }
    void connect() {
        if (stopping || over || paused) return;
        enter(WorkerPhase::connecting);
        if (!std::exchange(opening, true)) platform.connect();
    }
    void reconnect_later(std::string why) {
        online = greeted = false;
        queue.clear();
        const double most = std::min(retry_ms_max, 2 * retry_ms_min * std::pow(2.0, std::min(attempts, 10u)));
        const double delay_ms = retry_ms_min + platform.random() * (most - retry_ms_min);
        ++attempts;
        status.retry_at_ms = platform.now_ms() + delay_ms;
        enter(WorkerPhase::offline, std::move(why));
        if (retry_timer != 0) platform.clear_timer(retry_timer);
        retry_timer = platform.set_timer(delay_ms, [this] { retry_timer = 0; connect(); });
    }
    void send(ByteView frame) {
        ++status.frames_sent;
        status.bytes_sent += frame.size();
        platform.send(frame);
        changed();
    }
    void send_error(std::uint32_t sequence_id, const Error& error, bool fatal) {
        ++status.errors;
        send(encode_error({.sequence_id = sequence_id, .code = error_code_name(error.code), .found = error.message, .fatal = fatal}));
    }
    void protocol_error(const Error& error) {
        send_error(no_sequence_id, error, true);
        leaving = true;
        platform.close(static_cast<std::uint16_t>(close_code_for(error.code)), error.message);
    }

    void send_hello() {
        Hello hello;
        hello.token = options.token;
        const gpu::AdapterInfo& adapter = device->adapter();
        const std::uint64_t budget_bytes = std::min(status.budget_bytes, ExpertStore::arenas_max * adapter.max_binding_bytes);
        hello.device = {.backend = adapter.backend, .vendor = adapter.vendor, .architecture = adapter.architecture, .description = adapter.description,
                        .software = adapter.software, .budget_bytes = budget_bytes, .max_buffer_bytes = adapter.max_buffer_bytes,
                        .max_binding_bytes = adapter.max_binding_bytes};
        hello.dtypes = {Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::f32};
        hello.kernel_version = kernel_version;
        hello.nickname = options.nickname;
        hello.client = options.client;
        hello.worker_key = options.worker_key;
        greeted = true;
        send(encode_hello(hello));
    }

    void on_welcome(Welcome message) {
        attempts = 0;
        online = true;
        status.worker_id = message.worker_id;
        status.model_name = message.model_name;
        const bool same = welcome && !message.package_sha256.empty() && welcome->package_sha256 == message.package_sha256 && welcome->expert_shape == message.expert_shape &&
                          welcome->limits.num_tokens_max == message.limits.num_tokens_max && welcome->limits.num_pairs_max == message.limits.num_pairs_max;
        assigned.clear();
        ready_pending.clear();
        if (!same || !runner) {
            drop_weights();
            welcome = message;
            store = std::make_unique<ExpertStore>(*device, message.expert_blob_bytes, status.budget_bytes);
            RunnerOptions runner_options{.limits = message.limits, .shape = message.expert_shape, .num_lanes = std::clamp(message.queue_depth, 2u, lanes_max)};
            // A lane's buffers must fit one binding each: the rows are cut, never the bindings.
            const std::uint64_t row_bytes = 4 * (std::uint64_t{std::max(message.expert_shape.hidden_size, message.expert_shape.moe_intermediate_size)} + 4);
            const auto rows_max = static_cast<std::uint32_t>(std::min<std::uint64_t>(device->adapter().max_binding_bytes / row_bytes / 2, 1u << 20));
            runner_options.tokens_max = std::min(message.limits.num_tokens_max, rows_max);
            runner_options.pairs_max = std::min(message.limits.num_pairs_max, rows_max);
            runner = std::make_unique<ExpertRunner>(*device, *store, runner_options);
            runner->create([this, guard = std::weak_ptr<int>(alive), at = epoch](Status made) {
                if (guard.expired() || at != epoch) return;
                if (!made.ok() && made.error().code == ErrorCode::device_lost) return lost(made.error().message);
                if (!made.ok()) return fail(text("This GPU cannot run the expert kernels: ", made.error().message));
                runner_ready = true;
                announce();
                settle();
            });
        } else {
            welcome = message;
        }
        settle();
    }

    // ---- weights

    void on_assign(const std::vector<AssignedUnit>& units) {
        if (!store) return;
        for (const AssignedUnit& unit : units) assigned[Unit{unit.layer, unit.expert}] = unit.blob;
        if (const Status made = store->reserve(static_cast<std::uint32_t>(assigned.size())); !made.ok()) {
            // Less memory than promised: what fits is served, READY says which.
            status.detail = made.error().message;
        }
        if (runner_ready)
            if (const Status prepared = runner->prepare(); !prepared.ok()) return lost(prepared.error().message);
        for (const AssignedUnit& one : units) {
            const Unit unit{one.layer, one.expert};
            if (store->holds(unit)) {
                ready_pending.push_back(unit);
                continue;
            }
            if (!fetching.insert(unit).second) continue;
            status.bytes_to_fetch += welcome->expert_blob_bytes;
            fetch(unit, 0);
        }
        announce();
        settle();
    }
    void fetch(Unit unit, std::uint32_t failures) {
        platform.fetch_blob(
            assigned.at(unit), welcome->expert_blob_bytes,
            [this](std::uint64_t bytes, bool from_network) {
                status.bytes_fetched += bytes;
                if (from_network) status.bytes_downloaded += bytes;
                changed();
            },
            [this, unit, failures, at = epoch, guard = std::weak_ptr<int>(alive)](Result<Bytes> blob) {
                if (guard.expired() || at != epoch) return;
                if (blob.ok() || !assigned.contains(unit)) return on_blob(unit, std::move(blob));
                // The hub may be busy, or the way to it: the expert stays assigned and is asked for again.
                ++status.errors;
                status.detail = text("An expert could not be fetched and is tried again: ", blob.error().message);
                changed();
                const double delay_ms = std::min(retry_ms_max, retry_ms_min * std::pow(2.0, std::min(failures, 10u))) * (0.5 + platform.random());
                platform.set_timer(delay_ms, [this, unit, failures, at, guard] {
                    if (guard.expired() || at != epoch) return;
                    if (assigned.contains(unit) && welcome) return fetch(unit, failures + 1);
                    fetching.erase(unit);            // released meanwhile
                    settle();
                });
            });
    }
    void on_blob(Unit unit, Result<Bytes> blob) {
        fetching.erase(unit);
        if (fetching.empty()) status.bytes_to_fetch = status.bytes_fetched;
        if (!blob.ok()) return settle();                      // released meanwhile, and not there either
        if (!assigned.contains(unit)) return settle();        // released meanwhile
        Status stored = store->put(unit, *blob);
        if (!stored.ok() && stored.error().code == ErrorCode::no_space && drop_unassigned()) stored = store->put(unit, *blob);
        if (!stored.ok()) {
            ++status.errors;
            assigned.erase(unit);
            settle();
            status.detail = stored.error().message;
            return;
        }
        if (runner_ready)
            if (const Status prepared = runner->prepare(); !prepared.ok()) return lost(prepared.error().message);
        ready_pending.push_back(unit);
        announce();
        settle();
    }
    // Experts of an earlier connection stay until their room is needed, since the next ASSIGN mostly names them again.
    bool drop_unassigned() {
        for (const Unit& held : store->units())
            if (!assigned.contains(held)) {
                store->drop(held);
                return true;
            }
        return false;
    }
    // Tells the hub what is on the GPU, gathered over a moment; the first experts go out at once so that serving begins early.
    void announce() {
        if (!runner_ready || !online || ready_pending.empty() || ready_timer != 0) return;
        ready_timer = platform.set_timer(ready_every_ms, [this] {
            ready_timer = 0;
            if (!online || ready_pending.empty()) return;
            for (std::size_t first = 0; first < ready_pending.size(); first += 1024) {
                const std::size_t last = std::min(ready_pending.size(), first + 1024);
                send(encode_ready(std::vector<Unit>(ready_pending.begin() + static_cast<std::ptrdiff_t>(first), ready_pending.begin() + static_cast<std::ptrdiff_t>(last))));
            }
            ready_pending.clear();
            settle();
        });
    }
    void on_release(const std::vector<Unit>& units) {
        for (const Unit& unit : units) {
            assigned.erase(unit);
            std::erase(ready_pending, unit);
            if (store) store->drop(unit);
        }
        settle();
    }

    // ---- calls

    void on_group(ByteView frame) {
        if (!runner_ready) return send(encode_busy(sequence_of(frame), busy_retry_ms));
        if (runner->has_free_lane() && queue.empty()) return run_group(frame, platform.now_ms());
        if (queue.size() >= 2 * std::max(1u, welcome->queue_depth)) return send(encode_busy(sequence_of(frame), busy_retry_ms));
        queue.emplace_back(frame.begin(), frame.end());
    }
    static std::uint32_t sequence_of(ByteView frame) {
        const auto header = decode_frame_header(frame);
        return header.ok() ? header->sequence_id : no_sequence_id;
    }
    void run_group(ByteView frame, double begin_ms) {
        if (const Status decoded = decode_group_dispatch_into(view, frame, welcome->limits, scratch); !decoded.ok()) return protocol_error(decoded.error());
        const Status started = runner->run_group(view, [this, sequence_id = view.sequence_id, shape = view.shape, begin_ms, at = epoch](Result<ByteView> y) {
            if (at != epoch) return;
            if (!online) return next_group();
            if (y.ok()) {
                ++status.groups_answered;
                status.pairs_answered += shape.num_pairs;
                send(encode_group_result_bytes(sequence_id, shape, *y));
                remember(platform.now_ms() - begin_ms);
            } else {
                send_error(sequence_id, y.error(), false);
            }
            next_group();
        });
        if (!started.ok()) send_error(view.sequence_id, started.error(), false);
    }
    void next_group() {
        while (!queue.empty() && runner_ready && runner->has_free_lane()) {
            const Bytes frame = std::move(queue.front());
            queue.pop_front();
            run_group(frame, platform.now_ms());
        }
    }
    void on_cancel(std::uint32_t sequence_id) {
        const auto found = std::find_if(queue.begin(), queue.end(), [&](const Bytes& frame) { return sequence_of(frame) == sequence_id; });
        if (found == queue.end()) return;            // submitted already, or unknown: no answer either way
        queue.erase(found);
        ++status.groups_cancelled;
    }
    void on_single(ByteView frame) {
        auto decoded = decode_dispatch(frame, welcome->limits);
        if (!decoded.ok()) return protocol_error(decoded.error());
        if (!runner_ready) return send(encode_busy(decoded->sequence_id, busy_retry_ms));
        const Dispatch call = std::move(*decoded);
        const double begin_ms = platform.now_ms();
        const Status started = runner->run_single(Unit{call.layer, call.expert}, call.x, [this, call, begin_ms, at = epoch](Result<ByteView> y) {
            if (at != epoch || !online) return;
            if (!y.ok()) return send_error(call.sequence_id, y.error(), false);
            ExpertResult result{.sequence_id = call.sequence_id, .layer = call.layer, .expert = call.expert, .dtype = call.dtype};
            result.y.resize(call.x.size());
            std::memcpy(result.y.data(), y->data(), y->size());
            const std::size_t hidden = welcome->limits.hidden_size;
            for (std::size_t i = 0; i < result.y.size(); ++i) result.y[i] *= half_to_float(call.gates[i / hidden]);
            ++status.groups_answered;
            status.pairs_answered += call.gates.size();
            send(encode_result(result, welcome->limits.hidden_size, false));
            remember(platform.now_ms() - begin_ms);
        });
        if (started.ok()) return;
        if (started.error().code == ErrorCode::overloaded) send(encode_busy(call.sequence_id, busy_retry_ms));
        else send_error(call.sequence_id, started.error(), false);
    }
    void remember(double round_ms) {
        if (latencies.size() < latencies_kept) latencies.push_back(round_ms);
        else latencies[latency_next++ % latencies_kept] = round_ms;
    }

    void on_frame(ByteView frame) {
        ++status.frames_received;
        status.bytes_received += frame.size();
        const auto header = decode_frame_header(frame);
        if (!header.ok()) return protocol_error(header.error());
        watch_silence();
        if (header->type == FrameType::welcome) {
            auto message = decode_welcome(frame);
            return message.ok() ? on_welcome(std::move(*message)) : protocol_error(message.error());
        }
        if (header->type == FrameType::heartbeat) return send(encode_heartbeat(header->sequence_id));
        if (header->type == FrameType::error) {
            const auto message = decode_error(frame);
            ++status.errors;
            if (message.ok() && message->fatal) fatal_code = message->code;
            if (message.ok()) status.detail = text("The hub reports ", message->code, message->found.empty() ? "" : ": ", message->found);
            return;
        }
        if (!welcome || !online) return protocol_error(Error{ErrorCode::unknown_type, text(frame_type_name(header->type), " before WELCOME")});
        switch (header->type) {
            case FrameType::assign: {
                const auto units = decode_assign(frame, welcome->limits);
                return units.ok() ? on_assign(*units) : protocol_error(units.error());
            }
            case FrameType::weight_sync: {
                const auto one = decode_weight_sync(frame, welcome->limits);
                return one.ok() ? on_assign({AssignedUnit{one->layer, one->expert, one->blob}}) : protocol_error(one.error());
            }
            case FrameType::release: {
                const auto units = decode_units(frame, welcome->limits);
                return units.ok() ? on_release(*units) : protocol_error(units.error());
            }
            case FrameType::group_dispatch: return on_group(frame);
            case FrameType::dispatch: return on_single(frame);
            case FrameType::cancel: return on_cancel(header->sequence_id);
            case FrameType::drain: return enter(WorkerPhase::offline, "The hub is shutting down. This worker comes back when it does.");
            case FrameType::prefetch: return;        // everything that is asked for is on the GPU already
            default: return protocol_error(Error{ErrorCode::unknown_type, text(frame_type_name(header->type), " is not for a worker")});
        }
    }
};

WorkerCore::WorkerCore(Platform& platform, WorkerOptions options) : state_(std::make_unique<State>(platform, std::move(options))) {}

WorkerCore::~WorkerCore() {
    state_->alive.reset();
    for (const std::uint64_t timer : {state_->retry_timer, state_->report_timer, state_->ready_timer, state_->silence_timer})
        if (timer != 0) state_->platform.clear_timer(timer);
    state_->runner.reset();
    state_->store.reset();
}

void WorkerCore::start() {
    state_->enter(WorkerPhase::starting);
    state_->report();
    state_->open_device();
}

// A paused worker is no answerer: it leaves the hub, which asks others at once, and keeps its weights.
void WorkerCore::pause() {
    State& s = *state_;
    if (s.stopping || s.over || std::exchange(s.paused, true)) return;
    if (s.reopening || !s.tested) return s.enter(WorkerPhase::paused);            // once the GPU is there, it does not connect
    if (s.retry_timer != 0) s.platform.clear_timer(std::exchange(s.retry_timer, 0));
    if (s.online || s.greeted) s.hang_up("paused by the contributor");
    s.enter(WorkerPhase::paused);
}
void WorkerCore::resume() {
    State& s = *state_;
    if (s.stopping || s.over || !std::exchange(s.paused, false)) return;
    if (s.reopening || !s.tested) return s.enter(WorkerPhase::warming);           // it connects when the GPU is there
    if (s.closing) s.enter(WorkerPhase::connecting);                              // on_closed() goes on
    else s.connect();
}

void WorkerCore::set_budget(std::uint64_t budget_bytes) {
    State& s = *state_;
    if (s.status.budget_bytes == budget_bytes) return;
    s.status.budget_bytes = budget_bytes;
    s.drop_weights();                                // the store is made anew; blobs come from the cache
    s.welcome.reset();
    if (s.online || s.greeted) s.hang_up("memory limit changed");
}

void WorkerCore::stop() {
    State& s = *state_;
    if (s.stopping) return;
    s.stopping = true;
    if (s.retry_timer != 0) s.platform.clear_timer(std::exchange(s.retry_timer, 0));
    s.platform.close(1001, "the contributor left");
    s.drop_weights();
    s.online = false;
    if (!s.over) {
        s.status.phase = WorkerPhase::stopped;
        s.status.detail.clear();
        s.report();
    }
}

void WorkerCore::on_open() {
    State& s = *state_;
    s.leaving = s.closing = s.opening = false;
    s.fatal_code.clear();
    if (s.over || s.stopping || s.paused) return s.platform.close(1001, "not serving");
    s.send_hello();
}

void WorkerCore::on_frame(ByteView frame) {
    if (!state_->stopping && !state_->over && !state_->leaving) state_->on_frame(frame);
}

void WorkerCore::on_closed(std::uint16_t code, std::string_view reason) {
    State& s = *state_;
    s.online = s.greeted = s.opening = false;
    const bool was_closing = std::exchange(s.closing, false);
    s.queue.clear();
    if (s.silence_timer != 0) s.platform.clear_timer(std::exchange(s.silence_timer, 0));
    if (s.stopping || s.over || s.reopening || s.paused) return;
    if (was_closing && s.status.phase == WorkerPhase::connecting) return s.connect();           // resumed meanwhile
    if (code == static_cast<std::uint16_t>(CloseCode::policy) && s.fatal_code != error_code_name(ErrorCode::timeout)) {
        s.over = true;
        s.enter(WorkerPhase::refused);
        s.status.detail = text("The hub refused this worker", reason.empty() ? "" : ": ", reason, ". Ask the host for a fresh join link.");
        s.report();
        return;
    }
    s.reconnect_later(reason.empty() ? std::string("The hub is not there. Trying again.") : text("The hub closed the connection (", reason, "). Trying again."));
}

const WorkerStatus& WorkerCore::status() const { return state_->status; }

}  // namespace moex
