#include "hub/net/health/round_trace.h"

#include <algorithm>

#include "protocol/messages.h"

namespace moex::net {
namespace {

// The most open requests that are remembered. Some requests are never answered: they were
// cancelled, or their worker hangs.
constexpr std::size_t asked_max = 4096;

// The fields of a group's header (PROTOCOL.md). The answer's frame was not checked yet, so the
// values are used only to draw the trace.
struct GroupHeader {
    std::uint16_t layer = 0, num_experts = 0;
    std::uint32_t num_tokens = 0, num_pairs = 0;
    std::uint8_t flags = 0;
};
GroupHeader group_header_of(ByteView frame) {
    ByteReader in(frame.subspan(frame_header_bytes));
    GroupHeader header;
    header.layer = in.u16();
    header.num_experts = in.u16();
    header.num_tokens = in.u32();
    in.u16();  // hidden_dim
    in.u8();   // dtype
    header.flags = in.u8();
    header.num_pairs = in.u32();
    return header;
}

std::uint64_t us_of(Duration duration) {
    return static_cast<std::uint64_t>(duration / std::chrono::microseconds(1));
}

}  // namespace

void RoundTrace::note_hints(ByteView frame, TimePoint queued_at) {
    ByteReader in(frame.subspan(frame_header_bytes));
    const std::uint16_t count = in.u16();
    in.u16();  // zero
    for (std::uint16_t i = 0; i < count && !in.overrun(); ++i) {
        Hinted& hinted = hinted_.try_emplace(in.u16(), Hinted{.at = queued_at}).first->second;
        ++hinted.experts;
        in.take(sizeof(std::uint16_t) * 2 + 2);  // skips expert, deadline, confidence and a zero
    }
}

// Removes and returns the hints of `layer`. If `layer` is not above the previous requested layer, a
// new token has begun; then older hints whose experts were not requested are dropped.
RoundTrace::Hinted RoundTrace::take_hints(std::uint16_t layer, TimePoint queued_at) {
    if (layer <= last_layer_)
        std::erase_if(hinted_, [this](const auto& one) { return one.second.at < last_asked_; });
    last_layer_ = layer;
    last_asked_ = queued_at;
    const auto hinted = hinted_.extract(layer);
    return hinted ? hinted.mapped() : Hinted{};
}

void RoundTrace::sent(ByteView head, std::uint64_t frame_bytes, TimePoint queued_at) {
    // The hub made the frame, so it is well formed. The frame is longer than `head`.
    ByteReader in(head);
    in.take(6);  // magic, version
    const auto type = static_cast<FrameType>(in.u16());
    in.u32();  // payload_bytes
    const std::uint32_t sequence_id = in.u32();
    if (type == FrameType::prefetch) return note_hints(head, queued_at);
    if (type != FrameType::group_dispatch) return;
    if (asked_.size() >= asked_max) asked_.clear();
    asked_[sequence_id] = {queued_at, now_steady(), frame_bytes,
                           take_hints(group_header_of(head).layer, queued_at)};
}

void RoundTrace::received(std::uint64_t worker, ByteView frame) {
    Trace* trace = Trace::on();
    const auto header = decode_frame_header(frame);
    if (trace == nullptr || !header.ok() || header->type != FrameType::group_result) return;
    const auto asked = asked_.extract(header->sequence_id);
    if (!asked) return;

    const TimePoint begin = asked.mapped().queued_at, end = now_steady();
    const GroupHeader group = group_header_of(frame);
    RoundTimes times;
    if ((group.flags & flag_times) != 0 && frame.size() >= group_result_times_bytes) {
        ByteReader last(frame.last(group_result_times_bytes));
        times = {.worker_us = last.u32(), .gpu_us = last.u32()};
    }

    const std::uint32_t id = header->sequence_id;
    if (const Hinted& hinted = asked.mapped().hinted; hinted.experts > 0)
        trace->worker_span(worker, id, "hinted", hinted.at, std::max(begin, hinted.at),
                           {{"layer", group.layer}, {"experts", hinted.experts}});
    trace->worker_span(worker, id, "round", begin, end,
                       {{"layer", group.layer},
                        {"experts", group.num_experts},
                        {"rows", group.num_tokens},
                        {"pairs", group.num_pairs},
                        {"bytes_out", asked.mapped().bytes},
                        {"bytes_in", frame.size()},
                        {"in_outbox_us", us_of(asked.mapped().written_at - begin)},
                        {"worker_us", times.worker_us},
                        {"gpu_us", times.gpu_us}});
    const auto in_the_middle = [&](const char* name, std::uint32_t told_us) {
        if (told_us == 0) return;
        const Duration length = std::min<Duration>(std::chrono::microseconds(told_us), end - begin);
        const TimePoint from = begin + (end - begin - length) / 2;
        trace->worker_span(worker, id, name, from, from + length);
    };
    in_the_middle("worker", times.worker_us);
    in_the_middle("GPU", std::min(times.gpu_us, times.worker_us));
}

void OnDemandTrace::received(ByteView frame, const WorkerView& worker, std::uint64_t blob_bytes,
                             std::uint64_t tokens) {
    Trace* trace = Trace::on();
    const auto header = decode_frame_header(frame);
    if (trace == nullptr || !header.ok()) return;

    if (header->type == FrameType::ready) {
        const auto in = [&](UnitTier tier) { return worker.tiers[static_cast<std::size_t>(tier)]; };
        if (in(UnitTier::slot) + in(UnitTier::memory) + in(UnitTier::store) > 0)
            trace->worker_counts(worker.id, "experts ready in", now_steady(),
                                 {{"slot", in(UnitTier::slot)},
                                  {"memory", in(UnitTier::memory)},
                                  {"store", in(UnitTier::store)}});
    }
    if (header->type != FrameType::slots) return;

    const SlotFigures& told = worker.slots;
    trace->worker_counts(worker.id, "experts on demand", now_steady(),
                         {{"hits", told.hits},
                          {"late", told.late},
                          {"misses", told.misses()},
                          {"foreseen", told.foreseen}});
    trace->worker_counts(worker.id, "wasted bytes", now_steady(),
                         {{"bytes", told.wasted * blob_bytes}});
    if (tokens > tokens_)
        trace->worker_counts(worker.id, "misses of 1000 tokens", now_steady(),
                             {{"misses", 1000 * (told.misses() - misses_) / (tokens - tokens_)}});
    misses_ = told.misses();
    tokens_ = tokens;
}

}  // namespace moex::net
