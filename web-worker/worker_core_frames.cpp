// The frames that a worker sends and receives. The protocol is in PROTOCOL.md.
#include <algorithm>

#include "web-worker/worker_core_state.h"

namespace moex {
namespace {

// Capability: the first READY reports the experts that need no download, and the hub waits for this
// READY.
constexpr const char* held_cap = "held";

// Keys and values get the memory for spans divided by this.
constexpr std::uint64_t span_kv_share = 4;

bool same_model(const Welcome& a, const Welcome& b) {
    return a.arithmetic == b.arithmetic && !a.package_sha256.empty() &&
           a.package_sha256 == b.package_sha256 && a.expert_shape == b.expert_shape &&
           a.limits.num_tokens_max == b.limits.num_tokens_max &&
           a.limits.num_pairs_max == b.limits.num_pairs_max && a.dtype == b.dtype;
}

}  // namespace

void WorkerCoreState::send_hello() {
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
        for (const char* cap : {span_cap, span2_cap, span3_cap, span_once_cap})
            hello.caps.push_back(cap);
        hello.span_kv_bytes = spans_bytes() / span_kv_share;
        hello.span_bytes = spans_bytes() - hello.span_kv_bytes;
    }
    hub.greet(hello);
}

void WorkerCoreState::on_welcome(Welcome welcome) {
    const WorkerArithmetic arithmetic = arithmetic_of(welcome, *keeper.compute());
    if (!keeper.compute()->computes(arithmetic))
        return hub.protocol_error(
            Error{ErrorCode::unsupported,
                  text("this worker does not answer in ", worker_arithmetic_name(arithmetic))});
    hub.welcomed(welcome.heartbeat_ms);
    end_move(welcome.hub);
    if (!welcome.hub.empty()) platform.knows_hubs({welcome.hub, "", welcome.need}, welcome.hubs);
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
        model = std::make_unique<WorkerModel>(
            platform, report, hub, *keeper.compute(), std::move(welcome),
            SlotCache::Options{.keep_bytes = options.keep_bytes,
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
                return fail(text("This GPU cannot run the expert kernels: ", made.error().message));
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

void WorkerCoreState::send_power() {
    if (hub.online() && model->hub_takes(power_cap))
        hub.send(encode_power(report.status.power_percent));
}

void WorkerCoreState::send_slots() {
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

void WorkerCoreState::on_frame(ByteView frame, std::span<std::byte> around) {
    ++report.status.frames_received;
    report.status.bytes_received += frame.size();
    const auto header = decode_frame_header(frame);
    if (!header.ok()) return hub.protocol_error(header.error());
    hub.heard();

    if (header->type == FrameType::welcome && !hub.online()) {
        auto message = decode_welcome(frame);
        return message.ok() ? on_welcome(std::move(*message)) : hub.protocol_error(message.error());
    }
    if (header->type == FrameType::heartbeat) {
        const Status empty = decode_heartbeat(frame);
        if (!empty.ok()) return hub.protocol_error(empty.error());
        hub.send(encode_heartbeat(header->sequence_id));
        return send_slots();
    }
    if (header->type == FrameType::error) return on_error(frame);
    if (!model || !hub.online())
        return hub.protocol_error(
            Error{ErrorCode::unknown_type, text(frame_type_name(header->type), " before WELCOME")});
    if (header->type == FrameType::group_dispatch) return model->calls.on_group(frame, around);
    on_model_frame(*header, frame);
}

void WorkerCoreState::on_error(ByteView frame) {
    ++report.status.errors;
    const auto message = decode_error(frame);
    if (!message.ok()) return;
    if (message->fatal) hub.failed_by_hub(message->code);
    report.status.detail = text("The hub reports ", message->code,
                                message->found.empty() ? "" : ": ", message->found);
}

void WorkerCoreState::prefetch(std::vector<PrefetchHint> hints) {
    std::stable_sort(hints.begin(), hints.end(), [](const PrefetchHint& a, const PrefetchHint& b) {
        return a.confidence > b.confidence;
    });
    std::vector<Unit> units;
    std::vector<std::uint16_t> deadlines_ms;
    constexpr double unknown_ms = 40;
    double within_ms = 0;
    for (const PrefetchHint& hint : hints) {
        within_ms = std::max(within_ms, hint.deadline_ms > 0 ? hint.deadline_ms / 2.0 : unknown_ms);
        units.push_back(hint.unit);
        deadlines_ms.push_back(hint.deadline_ms);
    }
    if (gpu::Device* gpu = keeper.compute()->gpu(); gpu != nullptr && !units.empty())
        gpu->expect_work(within_ms);
    model->cache.prefetch(units, deadlines_ms);
}

void WorkerCoreState::on_model_frame(const FrameHeader& header, ByteView frame) {
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
            return units.ok() ? model->loader.release(*units) : hub.protocol_error(units.error());
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
                platform.knows_hubs({model->welcome.hub, "", model->welcome.need}, change->hubs);
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

}  // namespace moex
