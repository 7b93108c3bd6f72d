// The part of a worker that computes spans (protocol/span_messages.h). The worker's core passes it
// the frames of spans and owns it; web-worker/spans implements it. A worker without this part is
// asked for experts only.
#pragma once

#include <functional>
#include <memory>

#include "protocol/span_messages.h"
#include "web-worker/gpu/device.h"
#include "web-worker/session/hub_connection.h"
#include "web-worker/unit_store.h"

namespace moex {

// What a SpanHost uses of the worker that owns it. All references outlive the host.
struct SpanContext {
    Platform& platform;
    HubConnection& hub;
    gpu::Device& device;
    Welcome welcome;
    std::uint64_t bytes_max = 0;  // limit for all memory of spans
    // Called before the memory of a span is allocated, and with 0 after it was freed: the worker
    // keeps `bytes` of its memory limit free of experts. The call may destroy the host.
    std::function<void(std::uint64_t bytes)> reserve;
    // Experts of the span's layers that the worker holds take memory once. held() returns how many
    // of the layers [first, end) it holds in slots, and room() the memory that a span of these
    // layers can take without any other expert that is assigned giving way. lend() makes the worker
    // compute with the experts in a buffer of the span, and frees their slots, whose memory counts
    // as the span's from then on. Before a load ends, end_lending() makes the worker go on without
    // it. If the buffers are still there (`is_readable`), the worker takes over those that it
    // needs.
    std::function<std::uint32_t(std::uint32_t first_layer, std::uint32_t end_layer)> held;
    std::function<std::uint64_t(std::uint32_t first_layer, std::uint32_t end_layer)> room;
    std::function<Status(const LentUnits& units)> lend;
    std::function<void(std::uint64_t load, bool is_readable)> end_lending;
    std::function<void()> changed;  // called when layers() changes
    // Called when the GPU is lost or out of memory. The handler destroys the host.
    std::function<void(const gpu::Loss& loss)> lost;
};

// Layers that a worker computes whole: from `first` up to, and without, `end`.
struct HeldLayers {
    std::uint32_t first = 0, end = 0;
};

class SpanHost {
  public:
    virtual ~SpanHost() = default;
    // Handles one of the frames of spans that a hub sends. A frame that breaks the protocol ends
    // the connection.
    virtual void on_frame(const FrameHeader& header, ByteView frame) = 0;
    // The connection was lost or is new: all sequences have ended. A loaded span stays, and is
    // ready at once when the hub assigns the same layers again.
    virtual void begin_connection() = 0;
    // Returns the layers of the span that is ready; none if no span is.
    virtual HeldLayers layers() const = 0;
    // Changes the limit for all memory of spans. A span that needs more is dropped.
    virtual void set_bytes_max(std::uint64_t bytes_max) = 0;
};

}  // namespace moex
