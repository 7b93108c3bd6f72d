#include "web-worker/worker_core_state.h"

#include <utility>

namespace moex {
namespace {

// After a move that ended at another hub, the worker follows no further one for this time.
constexpr double moves_pause_ms = 60'000;

std::string size_text(std::uint64_t bytes) {
    return bytes < 10'000'000 ? text(bytes / 1000, " kB") : text(bytes / 1'000'000, " MB");
}

}  // namespace

WorkerModel::WorkerModel(Platform& platform, StatusReport& report, HubConnection& hub,
                         Compute& compute, Welcome given, SlotCache::Options slots,
                         ExpertLoader::Events events)
    : welcome(std::move(given)),
      parts(compute.make(welcome, weights_bytes(report.status.budget_bytes),
                         lanes_bytes(report.status.budget_bytes))),
      store(*parts.store),
      runner(*parts.runner),
      cache(platform, report, store, runner, welcome.expert_blob_bytes, std::move(slots)),
      loader(platform, report, hub, store, runner, cache, welcome.expert_blob_bytes,
             std::move(events)),
      calls(platform, report, hub, runner, cache, welcome) {}

WorkerCoreState::WorkerCoreState(Platform& on, WorkerOptions with)
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

void WorkerCoreState::gather(WorkerStatus& status) {
    if (Compute* compute = keeper.compute()) status.device = compute->counters();
    status.units_assigned = model ? model->loader.num_planned() : 0;
    status.units_ready = model ? model->loader.num_ready() : 0;
    status.units_resident = model ? model->store.num_units() : 0;
    status.weights_bytes = model ? model->store.weights_bytes() : 0;
    const HeldLayers layers = model && model->spans ? model->spans->layers() : HeldLayers{};
    status.layers_first = layers.first;
    status.layers_end = layers.end;
}

const char* WorkerCoreState::here() const {
    return keeper.compute()->gpu() != nullptr ? "This GPU" : "This machine";
}

void WorkerCoreState::end(WorkerPhase phase, std::string detail) {
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

void WorkerCoreState::fail(std::string reason) {
    if (hub.greeted()) hub.hang_up("this device cannot serve");
    end(WorkerPhase::failed, std::move(reason));
}

void WorkerCoreState::settle() {
    if (over || !hub.online()) return;
    if (!model->runner_ready) return report.enter(WorkerPhase::warming);
    const bool complete = model->loader.complete();
    if (!complete) model->warm = false;
    // An expert in the memory of a span adds its bytes to the budget as long as it is assigned. The
    // hub learns it once all of them are here.
    if (complete && model->span_bytes > 0 && model->hub_takes(budget_cap) &&
        reported_bytes != model->cache.bytes_max())
        send_budget({});

    if (!complete && model->cache.num_units() == 0) return report.enter(WorkerPhase::downloading);

    if (model->loader.num_planned() == 0)
        return report.enter(WorkerPhase::serving, "The hub has given this worker no experts yet.");

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

void WorkerCoreState::lost(const gpu::Loss& loss) {
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

void WorkerCoreState::connect() {
    if (over || paused || hub.online()) return;
    hub.stop_retrying();
    report.enter(WorkerPhase::connecting);
    hub.connect();
}

void WorkerCoreState::reconnect_later(std::string why) {
    hub.retry_later(std::move(why), [this] { connect(); });
}

void WorkerCoreState::move_to(const HubPlace& to) {
    if (leaves || move_timer != 0 || platform.now_ms() < moves_after_ms || !platform.move_to(to))
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

void WorkerCoreState::end_move(const std::string& arrived_at) {
    if (!moves_to.empty() && moves_to != arrived_at)
        moves_after_ms = platform.now_ms() + moves_pause_ms;
    moves_to.clear();
}

void WorkerCoreState::hang_up(std::string_view why) {
    if (model) model->calls.clear();
    hub.hang_up(why);
}

bool WorkerCoreState::offers_spans() const {
    return options.make_spans && keeper.compute()->gpu() != nullptr && options.keep_bytes == 0;
}

std::uint64_t WorkerCoreState::spans_bytes(std::uint64_t budget_bytes) const {
    return std::min(weights_bytes(budget_bytes) / 8 * 7, options.spans_bytes_max);
}

void WorkerCoreState::open_spans() {
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
         .held = [this](std::uint32_t first, std::uint32_t end) { return num_held(first, end); },
         .room =
             [this](std::uint32_t first, std::uint32_t end) {
                 if (!model->hub_takes(span_once_cap)) first = end;
                 const std::uint64_t all = weights_bytes(report.status.budget_bytes),
                                     others = model->loader.num_assigned_outside(first, end) *
                                              model->welcome.expert_blob_bytes;
                 return all - std::min(all, others);
             },
         .lend = [this](const LentUnits& units) { return lend(units); },
         .end_lending = [this](std::uint64_t load,
                               bool is_readable) { end_lending(load, is_readable); },
         .changed = [this] { report.changed(); },
         .lost = [this](const gpu::Loss& loss) { lost(loss); }});
}

std::uint32_t WorkerCoreState::num_held(std::uint32_t first_layer, std::uint32_t end_layer) const {
    if (!model->hub_takes(span_once_cap)) return 0;
    const std::vector<Unit> units = model->store.units();
    return static_cast<std::uint32_t>(
        std::count_if(units.begin(), units.end(), [&](const Unit& unit) {
            return unit.layer >= first_layer && unit.layer < end_layer &&
                   !model->store.is_lent(unit);
        }));
}

std::uint64_t WorkerCoreState::bytes_for_slots() const {
    const std::uint64_t bytes = weights_bytes(report.status.budget_bytes);
    return bytes - std::min(model->span_bytes, bytes);
}

Status WorkerCoreState::lend(const LentUnits& units) {
    model->lent_by = units.owner;
    if (!model->hub_takes(span_once_cap)) return {};
    const std::uint32_t capacity = model->cache.capacity();
    const std::uint64_t num_held = model->store.lend(units);
    model->span_bytes += num_held * model->welcome.expert_blob_bytes;
    const std::uint64_t slot_bytes = bytes_for_slots();
    if (model->cache.capacity_for(slot_bytes) < capacity) {
        // There are too few arenas, so that these experts keep their slots.
        MOEX_ASSIGN(dropped, model->loader.resize(slot_bytes));
        send_budget(dropped);
    }
    MOEX_TRY(model->store.resize(slot_bytes));
    return model->runner_ready ? model->runner.prepare() : Status{};
}

void WorkerCoreState::end_lending(std::uint64_t load, bool is_readable) {
    if (load == model->lent_by) model->span_bytes = 0;
    Status status = model->store.resize(bytes_for_slots());
    const std::vector<Unit> released = model->loader.end_lending(load, is_readable);
    if (status.ok() && model->runner_ready) status = model->runner.prepare();
    if (!status.ok()) return lost(gpu::loss_of(status.error()));
    // Experts may use the memory of the span again. A reserve(0) that follows changes nothing any
    // more, so that it does not report this.
    const bool is_new = reported_bytes / model->welcome.expert_blob_bytes !=
                        model->cache.capacity();
    if (is_new || !released.empty()) send_budget(released);
}

void WorkerCoreState::test_form() {
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

void WorkerCoreState::runner_ready() {
    model->runner_ready = true;
    model->calls.open();
    model->loader.runner_ready();
    settle();
}

void WorkerCoreState::send_budget(const std::vector<Unit>& dropped) {
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

void WorkerCoreState::no_room_for(const std::vector<Unit>& units) {
    if (model->hub_takes(budget_cap)) return send_budget(units);
    hub.send_error(
        no_sequence_id,
        {ErrorCode::no_space, text(units.size(), " experts more than there is room for")}, false,
        text("at most ", model->cache.capacity()));
}

void WorkerCoreState::resize() {
    const std::uint64_t limit_bytes = report.status.budget_bytes;
    const auto dropped = model->loader.resize(bytes_for_slots());
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

bool WorkerCoreState::has_slots() const {
    const std::uint32_t slots = model->store.slots_max();
    return slots >= (model->cache.capacity() > slots ? model->welcome.top_k : 1u);
}

std::string WorkerCoreState::no_room() const {
    const std::uint64_t blob_bytes = model->welcome.expert_blob_bytes,
                        binding_bytes = keeper.compute()->adapter().max_binding_bytes;
    if (blob_bytes > binding_bytes)
        return text("One expert of this model takes ", size_text(blob_bytes),
                    ", this GPU takes at most ", size_text(binding_bytes), " in one piece.");
    if (model->store.slots_max() > 0)
        return text("The memory limit of ", size_text(report.status.budget_bytes), " has room for ",
                    model->store.slots_max(), " experts of this model, and a token asks for ",
                    model->welcome.top_k,
                    ". Raise the limit, or keep no experts beyond it, then start again.");
    return text("The memory limit of ", size_text(report.status.budget_bytes),
                " has no room for one expert of this model, which takes ", size_text(blob_bytes),
                ". Raise the limit, then start again.");
}

}  // namespace moex
