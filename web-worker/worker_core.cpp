#include "web-worker/worker_core.h"

#include <algorithm>
#include <limits>

#include "web-worker/call_queue.h"
#include "web-worker/device_keeper.h"
#include "web-worker/expert_loader.h"
#include "web-worker/span_host.h"

namespace moex {
namespace {

// Name of the capability of a hub that understands BUDGET.
constexpr const char* budget_cap = "budget";
// Capability: the first READY reports the experts that need no download, and the hub waits for this
// READY.
constexpr const char* held_cap = "held";

// The part of the memory limit for calls in flight; the rest is for weights. The split is reported
// before the model is known, so the lanes are made to fit.
std::uint64_t lanes_bytes(std::uint64_t limit_bytes) {
    return std::min<std::uint64_t>(limit_bytes / 4, 256ull << 20);
}
std::uint64_t weights_bytes(std::uint64_t limit_bytes) {
    return limit_bytes - lanes_bytes(limit_bytes);
}

// The time in which a worker that leaves its hub hands its experts over.
constexpr std::uint32_t leave_within_ms = 10'000;

// After a move that ended at another hub, the worker follows no further one for this time.
constexpr double moves_pause_ms = 60'000;

// Keys and values get the memory for spans divided by this.
constexpr std::uint64_t span_kv_share = 4;

std::string size_text(std::uint64_t bytes) {
    return bytes < 10'000'000 ? text(bytes / 1000, " kB") : text(bytes / 1'000'000, " MB");
}

bool same_model(const Welcome& a, const Welcome& b) {
    return a.arithmetic == b.arithmetic && !a.package_sha256.empty() &&
           a.package_sha256 == b.package_sha256 && a.expert_shape == b.expert_shape &&
           a.limits.num_tokens_max == b.limits.num_tokens_max &&
           a.limits.num_pairs_max == b.limits.num_pairs_max && a.dtype == b.dtype;
}

// The parts that exist for one model on one device. They are destroyed together when the model or
// the device changes.
struct Model {
    Model(Platform& platform, StatusReport& report, HubConnection& hub, Compute& compute,
          Welcome given, SlotCache::Options slots, ExpertLoader::Events events)
        : welcome(std::move(given)),
          parts(compute.make(welcome, weights_bytes(report.status.budget_bytes),
                             lanes_bytes(report.status.budget_bytes))),
          store(*parts.store),
          runner(*parts.runner),
          cache(platform, report, store, runner, welcome.expert_blob_bytes, std::move(slots)),
          loader(platform, report, hub, store, runner, cache, welcome.expert_blob_bytes,
                 std::move(events)),
          calls(platform, report, hub, runner, cache, welcome) {}

    Welcome welcome;
    Compute::Parts parts;
    UnitStore& store;
    GroupRunner& runner;
    SlotCache cache;
    ExpertLoader loader;
    CallQueue calls;
    // The part that computes spans; null if this worker or the hub has no spans. It is destroyed
    // before the other parts.
    std::unique_ptr<SpanHost> spans;
    std::uint64_t span_bytes = 0;  // memory that is kept free of experts for a span
    bool runner_ready = false;
    // True if all planned experts are held: from then on rounds create no buffer.
    bool warm = false;

    // The slot counters at the begin of this connection, and the slot figures that were last sent
    // on it.
    SlotCounters slots_before;
    SlotFigures slots_sent;
    LifeGuard life;

    bool hub_takes(const char* cap) const {
        return std::count(welcome.caps.begin(), welcome.caps.end(), cap) > 0;
    }
};

}  // namespace

struct WorkerCore::State {
    State(Platform& on, WorkerOptions with)
        : platform(on),
          options(std::move(with)),
          report(on, [this](WorkerStatus& status) { gather(status); }),
          hub(on, report),
          keeper(on, report, options,
                 {.opened = [this] { report.enter(WorkerPhase::warming); },
                  .ready = [this] { connect(); },
                  .lost = [this](const gpu::Loss& loss) { lost(loss); },
                  .failed = [this](std::string reason) { fail(std::move(reason)); }}) {
        report.status.budget_bytes = options.budget_bytes;
        report.status.power_percent = options.power_percent;
    }

    Platform& platform;
    WorkerOptions options;
    StatusReport report;
    HubConnection hub;
    DeviceKeeper keeper;
    std::unique_ptr<Model> model;
    bool paused = false;
    bool leaves = false;  // DRAIN was sent
    std::uint64_t leave_timer = 0;
    bool connect_when_closed = false;
    std::string moves_to;  // id of the hub that the next connection goes to; empty: no move
    double moves_after_ms = std::numeric_limits<double>::lowest();  // earlier moves are ignored
    std::uint64_t move_timer = 0;
    bool has_chosen_hub = false;       // the worker has joined its first hub of a fleet
    std::uint64_t reported_bytes = 0;  // the budget that the newest HELLO or BUDGET reported
    // The worker has failed, was refused or was stopped: no further events.
    bool over = false;

    void gather(WorkerStatus& status) {
        if (Compute* compute = keeper.compute()) status.device = compute->counters();
        status.units_assigned = model ? model->loader.num_planned() : 0;
        status.units_ready = model ? model->loader.num_ready() : 0;
        status.units_resident = model ? model->store.num_units() : 0;
        status.weights_bytes = model ? model->store.weights_bytes() : 0;
        const SpanLayers layers = model && model->spans ? model->spans->layers() : SpanLayers{};
        status.layers_first = layers.first;
        status.layers_end = layers.end;
    }

    const char* here() const {
        return keeper.compute()->gpu() != nullptr ? "This GPU" : "This machine";
    }

    // ---- The following functions end the worker.

    void end(WorkerPhase phase, std::string detail) {
        over = true;
        for (std::uint64_t* timer : {&leave_timer, &move_timer})
            if (*timer != 0) platform.clear_timer(std::exchange(*timer, 0));
        model.reset();  // destroying the model ends its downloads and frees its memory
        hub.stop_retrying();
        keeper.close();
        report.close();
        report.status.phase = phase;
        report.status.detail = std::move(detail);
        report.show();
    }
    void fail(std::string reason) {
        if (hub.greeted()) hub.hang_up("this device cannot serve");
        end(WorkerPhase::failed, std::move(reason));
    }

    // ---- The following functions change the phase.

    // Enters the phase that matches the state, after experts or the connection have changed.
    void settle() {
        if (over || !hub.online()) return;
        if (!model->runner_ready) return report.enter(WorkerPhase::warming);
        const bool complete = model->loader.complete();
        if (!complete) model->warm = false;

        if (!complete && model->cache.num_units() == 0)
            return report.enter(WorkerPhase::downloading);

        if (model->loader.num_planned() == 0)
            return report.enter(WorkerPhase::serving,
                                "The hub has given this worker no experts yet.");

        if (complete && !std::exchange(model->warm, true)) {
            report.status.device_at_warm = keeper.compute()->counters();
            report.status.rounds_at_warm = report.status.groups_answered;
        }

        // The worker serves the experts that it holds while it downloads the others.
        if (complete)
            report.enter(WorkerPhase::serving);
        else
            report.enter(WorkerPhase::downloading,
                         "Serving what is here already; the rest is on its way.");
    }

    void lost(const gpu::Loss& loss) {
        if (over) return;
        const std::uint64_t least_bytes = model ? model->welcome.expert_blob_bytes : 0;
        hub.stop_retrying();
        hub.hang_up("GPU lost");
        model.reset();

        if (least_bytes == 0 || loss.kind != gpu::LossKind::out_of_memory)
            return keeper.reopen(loss.reason);
        if (weights_bytes(report.status.budget_bytes / 2) < least_bytes)
            return fail(text(here(), " has too little free memory (", loss.reason.substr(0, 200),
                             "). Close other pages that use it, then start again."));
        report.status.budget_bytes /= 2;  // the next HELLO reports the smaller budget
        keeper.reopen_smaller(loss.reason, report.status.budget_bytes);
    }

    void connect() {
        if (over || paused || hub.online()) return;
        hub.stop_retrying();
        report.enter(WorkerPhase::connecting);
        hub.connect();
    }
    void reconnect_later(std::string why) {
        hub.retry_later(std::move(why), [this] { connect(); });
    }
    // Leaves this hub politely, as leave() does, and joins the hub of a HUBS after that. The
    // weights stay where they are.
    void move_to(const HubPlace& to) {
        if (leaves || move_timer != 0 || platform.now_ms() < moves_after_ms ||
            !platform.move_to(to))
            return;
        moves_to = to.id;
        connect_when_closed = true;
        hub.send(encode_drain(leave_within_ms));
        report.enter(report.status.phase, "This worker moves to a hub that needs it more.");
        move_timer = platform.set_timer(leave_within_ms, [this] {
            move_timer = 0;
            hang_up("moves to another hub");
        });
    }
    // A balancer, or the list of hubs, may have led the worker elsewhere. Then the hub would repeat
    // the hint after each connection; the pause limits how often the worker drains for nothing.
    void end_move(const std::string& arrived_at) {
        if (!moves_to.empty() && moves_to != arrived_at)
            moves_after_ms = platform.now_ms() + moves_pause_ms;
        moves_to.clear();
    }

    void hang_up(std::string_view why) {
        if (model) model->calls.clear();
        hub.hang_up(why);
    }

    // ---- The following functions send and handle frames.

    void send_hello() {
        const Compute& compute = *keeper.compute();
        const gpu::AdapterInfo& adapter = compute.adapter();
        reported_bytes = model ? model->cache.bytes_max()
                               : std::max(options.keep_bytes,
                                          std::min(weights_bytes(report.status.budget_bytes),
                                                   compute.weights_bytes_max()));

        Hello hello{.token = options.token,
                    .dtypes = {Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::f32},
                    .caps = {"group", held_cap, x_int8_cap, clamped_cap, mxfp4_cap, hubs_cap},
                    .kernel_version = compute.kernel_version(),
                    .nickname = options.nickname,
                    .client = options.client,
                    .worker_key = options.worker_key,
                    .arithmetic = compute.arithmetic(),
                    .speed = report.status.speed};

        if (options.keep_bytes > 0) hello.caps.push_back(on_demand_cap);

        hello.device = {.backend = adapter.backend,
                        .vendor = adapter.vendor,
                        .architecture = adapter.architecture,
                        .description = adapter.description,
                        .software = adapter.software,
                        .budget_bytes = reported_bytes,
                        .max_buffer_bytes = adapter.max_buffer_bytes,
                        .max_binding_bytes = adapter.max_binding_bytes};
        if (options.keep_bytes > 0) {
            hello.device.slot_bytes = std::min(weights_bytes(report.status.budget_bytes),
                                               compute.weights_bytes_max());
            hello.device.store_bytes = options.keep_bytes;
        }
        if (offers_spans()) {
            for (const char* cap : {span_cap, span2_cap, span3_cap}) hello.caps.push_back(cap);
            hello.span_kv_bytes = spans_bytes() / span_kv_share;
            hello.span_bytes = spans_bytes() - hello.span_kv_bytes;
        }
        hub.greet(hello);
    }

    // Returns true if this worker can hold spans. A worker that holds more experts than its memory
    // has room for has no memory for a span.
    bool offers_spans() const {
        return options.make_spans && keeper.compute()->gpu() != nullptr && options.keep_bytes == 0;
    }

    // Returns the limit of the memory for spans: a part of that for weights. The rest stays for
    // experts.
    std::uint64_t spans_bytes() const {
        return std::min(weights_bytes(report.status.budget_bytes) / 8 * 7, options.spans_bytes_max);
    }

    // Makes the part for spans where the hub has the capability.
    void open_spans() {
        if (model->spans) return model->spans->begin_connection();
        if (!offers_spans() || !model->hub_takes(span_cap)) return;
        model->spans = options.make_spans(
            {.platform = platform,
             .hub = hub,
             .device = *keeper.compute()->gpu(),
             .welcome = model->welcome,
             .bytes_max = spans_bytes(),
             .reserve =
                 [this](std::uint64_t bytes) {
                     if (model && std::exchange(model->span_bytes, bytes) != bytes) resize();
                 },
             .changed = [this] { report.changed(); },
             .lost = [this](const gpu::Loss& loss) { lost(loss); }});
    }

    // The device was tested with plain experts when it was opened. If this model has experts of
    // another form, their known answers are computed before the first call.
    void test_form() {
        const ExpertForm form = model->welcome.expert_shape.form();
        if (form == ExpertForm::plain) return runner_ready();
        keeper.test_form(form, [this, life = model->life.watch()](Status tested) {
            if (!life.alive()) return;
            if (tested.ok()) return runner_ready();
            if (tested.error().code == ErrorCode::device_lost)
                return lost(gpu::loss_of(tested.error()));
            fail(tested.error().message);
        });
    }

    void runner_ready() {
        model->runner_ready = true;
        model->calls.open();
        model->loader.runner_ready();
        settle();
    }

    void on_welcome(Welcome welcome) {
        const WorkerArithmetic arithmetic = arithmetic_of(welcome, *keeper.compute());
        if (!keeper.compute()->computes(arithmetic))
            return hub.protocol_error(
                Error{ErrorCode::unsupported,
                      text("this worker does not answer in ", worker_arithmetic_name(arithmetic))});
        hub.welcomed(welcome.heartbeat_ms);
        end_move(welcome.hub);
        if (!welcome.hub.empty())
            platform.knows_hubs({welcome.hub, "", welcome.need}, welcome.hubs);
        const bool may_choose = !welcome.hub.empty() && !std::exchange(has_chosen_hub, true);
        report.status.worker_id = welcome.worker_id;
        report.status.model_name = welcome.model_name;
        report.status.nonce = welcome.nonce;
        platform.serves_model(welcome.package_sha256.empty() ? welcome.model_name
                                                             : welcome.package_sha256);
        if (model && same_model(model->welcome, welcome)) {
            model->welcome = std::move(welcome);
            model->loader.begin_connection();
        } else {
            model.reset();
            model = std::make_unique<Model>(
                platform, report, hub, *keeper.compute(), std::move(welcome),
                SlotCache::Options{
                    .keep_bytes = options.keep_bytes,
                    .policy = options.eviction,
                    .lost = [this](const Error& error) { lost(gpu::loss_of(error)); }},
                ExpertLoader::Events{
                    .changed = [this] { settle(); },
                    .beyond = [this](const std::vector<Unit>& units) { no_room_for(units); },
                    .lost = [this](const gpu::Loss& loss) { lost(loss); }});
            if (!has_slots()) return fail(no_room());
            model->runner.create([this](Status made) {
                if (!made.ok() && (made.error().code == ErrorCode::device_lost ||
                                   made.error().code == ErrorCode::no_space))
                    return lost(gpu::loss_of(made.error()));
                if (!made.ok())
                    return fail(
                        text("This GPU cannot run the expert kernels: ", made.error().message));
                test_form();
            });
        }
        model->loader.report_tiers(model->hub_takes(tiers_cap));
        model->slots_before = report.status.slots;
        model->slots_sent = {};
        // Report the experts of the same model that stayed on this GPU when the connection broke.
        if (model->hub_takes(held_cap)) hub.send(encode_ready(model->cache.units()));
        open_spans();

        if (report.status.power_percent != power_percent_max) send_power();

        // The size of a blob was unknown when HELLO reported the budget, and whole blobs may not
        // fill the arenas. Or the limit has changed since HELLO.
        if (reported_bytes / model->welcome.expert_blob_bytes != model->cache.capacity())
            send_budget({});
        settle();
        // The status shows the nonce at once, so that it is signed before there is work to count.
        if (!report.status.nonce.empty()) report.show();
        if (may_choose) platform.choose_hub();
    }

    // ---- The following functions apply the memory limit.

    // Reports the new limit, and in `dropped` the assigned experts that are not held any more.
    void send_budget(const std::vector<Unit>& dropped) {
        if (!hub.online()) return;  // the HELLO of the next connection reports the limit
        if (!model->hub_takes(budget_cap)) {
            hang_up("memory limit changed");
            connect_when_closed = true;
            return report.enter(WorkerPhase::connecting);
        }
        reported_bytes = model->cache.bytes_max();
        for (std::size_t first = 0; first == 0 || first < dropped.size();) {
            const std::size_t last = std::min(dropped.size(), first + budget_units_max);
            // This frame's limit has room for the dropped units that later frames will name.
            const std::uint64_t still_named = dropped.size() - last;
            hub.send(encode_budget(
                {.budget_bytes = reported_bytes + still_named * model->welcome.expert_blob_bytes,
                 .dropped = {dropped.begin() + static_cast<std::ptrdiff_t>(first),
                             dropped.begin() + static_cast<std::ptrdiff_t>(last)}}));
            if (dropped.empty()) return;
            first = last;
        }
    }

    void send_power() {
        if (hub.online() && model->hub_takes(power_cap))
            hub.send(encode_power(report.status.power_percent));
    }

    // Sends the counters of the slots, if they have changed since they were last sent.
    void send_slots() {
        const bool is_asked = model && hub.online() && model->cache.on_demand() &&
                              model->hub_takes(slots_cap);
        if (!is_asked) return;
        const SlotCounters now = report.status.slots, &before = model->slots_before;
        const auto us = [](double ms) { return static_cast<std::uint64_t>(1e3 * ms); };
        const SlotFigures figures{.slots = model->cache.slots(),
                                  .asked = now.asked - before.asked,
                                  .hits = now.resident - before.resident,
                                  .late = now.late - before.late,
                                  .foreseen = now.foreseen - before.foreseen,
                                  .lead_us = us(now.lead_ms - before.lead_ms),
                                  .loads = now.loads - before.loads,
                                  .load_us = us(now.load_ms - before.load_ms),
                                  .brought = now.brought - before.brought,
                                  .wasted = now.wasted - before.wasted,
                                  .expired = now.expired - before.expired};
        if (figures == model->slots_sent) return;
        model->slots_sent = figures;
        hub.send(encode_slots(figures, model->hub_takes(tiers_cap)));
    }

    // Refuses `units`: the hub sent ASSIGN before it received BUDGET, or the hub counts
    // differently.
    void no_room_for(const std::vector<Unit>& units) {
        if (model->hub_takes(budget_cap)) return send_budget(units);
        hub.send_error(
            no_sequence_id,
            {ErrorCode::no_space, text(units.size(), " experts more than there is room for")},
            false, text("at most ", model->cache.capacity()));
    }

    void resize() {
        const std::uint64_t limit_bytes = report.status.budget_bytes;
        const auto dropped = model->loader.resize(
            weights_bytes(limit_bytes) - std::min(model->span_bytes, weights_bytes(limit_bytes)));
        if (!dropped.ok()) return lost(gpu::loss_of(dropped.error()));
        if (!has_slots()) return fail(no_room());

        model->runner.refit(model->welcome, lanes_bytes(limit_bytes), [this](Status made) {
            if (!made.ok()) return lost(gpu::loss_of(made.error()));
            model->warm = false;
            model->calls.resume();
            settle();
        });
        // A refit that found no memory may have destroyed the model.
        if (!model) return;
        model->warm = false;
        send_budget(*dropped);
        settle();
    }

    // Returns true if there is at least a slot for one expert, or for all experts of a token if the
    // worker holds more experts than slots.
    bool has_slots() const {
        const std::uint32_t slots = model->store.slots_max();
        return slots >= (model->cache.capacity() > slots ? model->welcome.top_k : 1u);
    }
    std::string no_room() const {
        const std::uint64_t blob_bytes = model->welcome.expert_blob_bytes,
                            binding_bytes = keeper.compute()->adapter().max_binding_bytes;
        if (blob_bytes > binding_bytes)
            return text("One expert of this model takes ", size_text(blob_bytes),
                        ", this GPU takes at most ", size_text(binding_bytes), " in one piece.");
        if (model->store.slots_max() > 0)
            return text("The memory limit of ", size_text(report.status.budget_bytes),
                        " has room for ", model->store.slots_max(),
                        " experts of this model, and a token asks for ", model->welcome.top_k,
                        ". Raise the limit, or keep no experts beyond it, then start again.");
        return text("The memory limit of ", size_text(report.status.budget_bytes),
                    " has no room for one expert of this model, which takes ",
                    size_text(blob_bytes), ". Raise the limit, then start again.");
    }

    // Handles a frame. `around`: memory that ends with the frame and may be overwritten; empty if
    // none may be.
    void on_frame(ByteView frame, std::span<std::byte> around) {
        ++report.status.frames_received;
        report.status.bytes_received += frame.size();
        const auto header = decode_frame_header(frame);
        if (!header.ok()) return hub.protocol_error(header.error());
        hub.heard();

        if (header->type == FrameType::welcome && !hub.online()) {
            auto message = decode_welcome(frame);
            return message.ok() ? on_welcome(std::move(*message))
                                : hub.protocol_error(message.error());
        }
        if (header->type == FrameType::heartbeat) {
            const Status empty = decode_heartbeat(frame);
            if (!empty.ok()) return hub.protocol_error(empty.error());
            hub.send(encode_heartbeat(header->sequence_id));
            return send_slots();
        }
        if (header->type == FrameType::error) return on_error(frame);
        if (!model || !hub.online())
            return hub.protocol_error(Error{
                ErrorCode::unknown_type, text(frame_type_name(header->type), " before WELCOME")});
        if (header->type == FrameType::group_dispatch) return model->calls.on_group(frame, around);
        on_model_frame(*header, frame);
    }

    void on_error(ByteView frame) {
        ++report.status.errors;
        const auto message = decode_error(frame);
        if (!message.ok()) return;
        if (message->fatal) hub.failed_by_hub(message->code);
        report.status.detail = text("The hub reports ", message->code,
                                    message->found.empty() ? "" : ": ", message->found);
    }

    // Handles a hint. If every expert has a slot, there is nothing to bring. A call of that layer
    // arrives soon in any case, and the GPU is kept awake for it: half of the hint's deadline is
    // twice the usual time from the hint to the call.
    void prefetch(std::vector<PrefetchHint> hints) {
        std::stable_sort(hints.begin(), hints.end(),
                         [](const PrefetchHint& a, const PrefetchHint& b) {
                             return a.confidence > b.confidence;
                         });
        std::vector<Unit> units;
        std::vector<std::uint16_t> deadlines_ms;
        constexpr double unknown_ms = 40;
        double within_ms = 0;
        for (const PrefetchHint& hint : hints) {
            within_ms = std::max(within_ms,
                                 hint.deadline_ms > 0 ? hint.deadline_ms / 2.0 : unknown_ms);
            units.push_back(hint.unit);
            deadlines_ms.push_back(hint.deadline_ms);
        }
        if (gpu::Device* gpu = keeper.compute()->gpu(); gpu != nullptr && !units.empty())
            gpu->expect_work(within_ms);
        model->cache.prefetch(units, deadlines_ms);
    }

    // Handles a frame that concerns the model of WELCOME.
    void on_model_frame(const FrameHeader& header, ByteView frame) {
        const WireLimits& limits = model->welcome.limits;
        switch (header.type) {
            case FrameType::assign: {
                const auto message = decode_assign(frame, limits);
                return message.ok() ? model->loader.assign(*message)
                                    : hub.protocol_error(message.error());
            }
            case FrameType::weight_sync: {
                const auto one = decode_weight_sync(frame, limits);
                return one.ok()
                           ? model->loader.assign({.units = {{one->layer, one->expert, one->blob}}})
                           : hub.protocol_error(one.error());
            }
            case FrameType::release: {
                const auto units = decode_units(frame, limits);
                return units.ok() ? model->loader.release(*units)
                                  : hub.protocol_error(units.error());
            }
            case FrameType::dispatch: return model->calls.on_single(frame);
            case FrameType::cancel: {
                const Status empty = decode_cancel(frame);
                return empty.ok() ? model->calls.on_cancel(header.sequence_id)
                                  : hub.protocol_error(empty.error());
            }
            case FrameType::drain: {
                const auto deadline_ms = decode_drain(frame);
                return deadline_ms.ok()
                           ? report.enter(
                                 WorkerPhase::offline,
                                 "The hub is shutting down. This worker comes back when it does.")
                           : hub.protocol_error(deadline_ms.error());
            }
            case FrameType::hubs: {
                const auto change = decode_hubs(frame);
                if (!change.ok()) return hub.protocol_error(change.error());
                if (moves_to.empty())
                    platform.knows_hubs({model->welcome.hub, "", model->welcome.need},
                                        change->hubs);
                if (change->move) move_to(change->hubs.front());
                return;
            }
            case FrameType::prefetch: {
                const auto hints = decode_prefetch(frame, limits);
                return hints.ok() ? prefetch(*hints) : hub.protocol_error(hints.error());
            }
            case FrameType::span_assign:
            case FrameType::span_release:
            case FrameType::span_step:
            case FrameType::span_kv:
            case FrameType::span_end:
            case FrameType::span_state:
                if (model->spans) return model->spans->on_frame(header, frame);
                return hub.protocol_error(
                    Error{ErrorCode::unknown_type, "this worker computes no spans"});
            case FrameType::welcome:
                return hub.protocol_error(Error{ErrorCode::unknown_type, "a second WELCOME"});
            default:
                return hub.protocol_error(
                    Error{ErrorCode::unknown_type,
                          text(frame_type_name(header.type), " is not for a worker")});
        }
    }
};

WorkerCore::WorkerCore(Platform& platform, WorkerOptions options)
    : state_(std::make_unique<State>(platform, std::move(options))) {}
WorkerCore::~WorkerCore() = default;

void WorkerCore::start() {
    state_->report.enter(WorkerPhase::starting);
    state_->report.show();
    state_->keeper.open();
}

// A paused worker answers no calls: it leaves the hub, which requests its experts from other
// workers at once, and keeps its weights.
void WorkerCore::pause() {
    State& s = *state_;
    if (s.over || std::exchange(s.paused, true)) return;
    s.report.pause();
    if (!s.keeper.ready()) return;  // a paused worker does not connect when the GPU becomes ready
    s.hub.stop_retrying();
    if (s.hub.greeted()) s.hang_up("paused by the contributor");
    if (s.model) s.model->loader.stop_fetching();
}
void WorkerCore::resume() {
    State& s = *state_;
    if (s.over || !std::exchange(s.paused, false)) return;
    s.report.resume();
    if (!s.keeper.ready()) return;  // the worker connects when the GPU becomes ready
    if (!s.hub.closing()) return s.connect();
    s.connect_when_closed = true;
    s.report.enter(WorkerPhase::connecting);
}

void WorkerCore::set_budget(std::uint64_t budget_bytes) {
    State& s = *state_;
    if (s.report.status.budget_bytes == budget_bytes) return;
    s.report.status.budget_bytes = budget_bytes;
    s.report.changed();
    if (s.model && s.model->spans && !s.over) s.model->spans->set_bytes_max(s.spans_bytes());
    if (s.model && !s.over) s.resize();
}

void WorkerCore::set_keep(std::uint64_t keep_bytes) {
    State& s = *state_;
    if (std::exchange(s.options.keep_bytes, keep_bytes) == keep_bytes || !s.model || s.over) return;
    s.model->cache.set_keep(keep_bytes);
    s.resize();
}

void WorkerCore::set_power(std::uint32_t percent) {
    State& s = *state_;
    percent = std::clamp(percent, power_percent_min, power_percent_max);
    if (std::exchange(s.report.status.power_percent, percent) == percent || s.over) return;
    s.report.changed();
    s.send_power();
}

void WorkerCore::identify(std::uint64_t worker_id, const Identity& identity) {
    State& s = *state_;
    // A signature for an earlier connection is not valid on this one.
    const WorkerStatus& status = s.report.status;
    if (s.hub.online() && worker_id == status.worker_id && !status.nonce.empty())
        s.hub.send(encode_identity(identity));
}

void WorkerCore::on_network_back() {
    if (!state_->over && state_->hub.retrying()) {
        state_->hub.stop_retrying();
        state_->connect();
    }
}

void WorkerCore::leave() {
    State& s = *state_;
    if (s.over || s.paused || !s.hub.online()) return stop();
    if (std::exchange(s.leaves, true)) return;

    s.hub.send(encode_drain(leave_within_ms));
    s.report.enter(s.report.status.phase,
                   "This worker serves until others hold its experts, then it stops.");
    s.report.show();
    s.leave_timer = s.platform.set_timer(leave_within_ms, [this] {
        state_->leave_timer = 0;
        stop();
    });
}

void WorkerCore::stop() {
    State& s = *state_;
    if (s.report.status.phase == WorkerPhase::stopped) return;
    s.platform.close(1001, "the contributor left");
    if (!s.over) s.end(WorkerPhase::stopped, {});
}

void WorkerCore::on_open() {
    State& s = *state_;
    s.hub.opened();
    if (s.over || s.paused || !s.keeper.ready()) return s.platform.close(1001, "not serving");
    s.send_hello();
}

void WorkerCore::on_frame(ByteView frame) {
    if (!state_->over && state_->hub.listening()) state_->on_frame(frame, {});
}

void WorkerCore::on_frame_in_place(std::span<std::byte> memory, std::size_t frame_bytes) {
    if (!state_->over && state_->hub.listening())
        state_->on_frame(memory.last(frame_bytes), memory);
}

void WorkerCore::on_text() {
    if (!state_->over && state_->hub.listening())
        state_->hub.protocol_error(Error{ErrorCode::unknown_type, "frames are binary messages"},
                                   CloseCode::text_frame);
}

void WorkerCore::on_closed(std::uint16_t code, std::string_view reason) {
    State& s = *state_;
    const HubConnection::End end = s.hub.closed(code);
    const bool connect_now = std::exchange(s.connect_when_closed, false);
    if (s.move_timer != 0) s.platform.clear_timer(std::exchange(s.move_timer, 0));
    if (s.model) s.model->calls.clear();
    if (s.leaves && !s.over) return s.end(WorkerPhase::stopped, {});
    // The worker connects when the GPU becomes ready.
    if (s.over || s.paused || !s.keeper.ready()) return;
    if (connect_now) return s.connect();
    if (end.refused)
        return s.end(WorkerPhase::refused,
                     text("The hub refused this worker", reason.empty() ? "" : ": ", reason, ".",
                          end.bad_token ? " Ask the host for a fresh join link." : ""));
    s.reconnect_later(reason.empty()
                          ? std::string("The hub is not there. Trying again.")
                          : text("The hub closed the connection (", reason, "). Trying again."));
}

void WorkerCore::on_better_hub(const HubPlace& hub) {
    if (!state_->over && state_->hub.online()) state_->move_to(hub);
}

void WorkerCore::on_other_hub(std::string reason) {
    if (!state_->over) state_->end(WorkerPhase::refused, std::move(reason));
}

const WorkerStatus& WorkerCore::status() const { return state_->report.status; }

}  // namespace moex
