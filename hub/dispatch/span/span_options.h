// The options of spans: layers that one worker computes whole (hub/engine/span_backend.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>

#include "hub/base/clock.h"
#include "hub/dispatch/span/span_trust.h"
#include "protocol/span_messages.h"

namespace moex {

class SpanBoard;

struct SpanOptions {
    bool on = false;
    // Returns the blob of a layer (protocol/span_layer.h); nullopt while it is not known yet, or if
    // no worker may compute the layer whole.
    std::function<std::optional<SpanAssign::Layer>(std::uint32_t layer)> layer_of;
    // The newest version of these blobs. Workers that do not know it get no spans.
    std::uint16_t layer_version = 1;
    std::uint32_t kv_size = 0;  // num_kv_heads * head_dim
    // The layers that have a gated delta rule, [num_layers], or empty if there are none. The next
    // two are those of such a layer: the sizes of q, k, v, b and a, which it keeps of a row
    // (SpanAnswer), and the floats of its state (SpanState).
    std::vector<std::uint8_t> layer_is_delta;
    std::vector<std::size_t> delta_row_parts;
    std::uint64_t state_floats = 0;

    bool is_delta(std::uint32_t layer) const {
        return !layer_is_delta.empty() && layer_is_delta[layer] != 0;
    }
    std::uint32_t num_delta(std::uint32_t first_layer, std::uint32_t end_layer) const {
        std::uint32_t count = 0;
        for (std::uint32_t layer = first_layer; layer < end_layer; ++layer)
            count += is_delta(layer) ? 1 : 0;
        return count;
    }
    // Return the sizes of the parts that a layer keeps of a row, and the number of their values.
    std::vector<std::size_t> row_parts(std::uint32_t layer) const {
        return is_delta(layer) ? delta_row_parts : std::vector<std::size_t>{kv_size, kv_size};
    }
    std::uint32_t row_values(std::uint32_t layer) const {
        if (!is_delta(layer)) return 2 * kv_size;
        return static_cast<std::uint32_t>(
            std::accumulate(delta_row_parts.begin(), delta_row_parts.end(), std::size_t{0}));
    }
    std::uint32_t context_tokens = 0;
    // The hub itself computes this many layers at the begin and at the end: an embedding row gives
    // its word away by a look-up.
    std::uint32_t first_here = 2, last_here = 1;
    // How far an honest answer may differ from the hub's own (span_residual.h). Beside an int8 hub
    // the largest of 1,568 honest answers was 0.30 (bench/results/span_residuals.*).
    double tolerance = 0.5;
    SpanCheckRule check;
    // This machine can read the weights of all experts, though it does not compute with them
    // otherwise. Then this share of the checks of proven workers is computed here, and the others
    // by the hub's own way, whose time is measured.
    bool has_weights = false;
    double checks_with_weights = 7.0 / 8;
    // Seed of the draw that chooses which steps are checked. It must be secret in a hub that
    // strangers can join.
    std::uint64_t seed = 1;
    // A span is used if it is predicted to take at most this share of the hub's own time.
    double worth = 0.9;
    // How often a span that is not used is measured: at first, and at most.
    Duration probe_min = 500ms, probe_max = 30s;
    // Bounds on the wait for an answer; between them it is four times the expected time.
    Duration late_min = 250ms, late_max = 2s;
    // The most bytes of keys and values that are sent to a worker before a step, and to a standby,
    // which gets them once it lacks `standby_rows` rows of a sequence.
    std::uint64_t kv_bytes_at_once = 8u << 20, standby_bytes_at_once = 1u << 20;
    // The most bytes of recurrent states that are sent to a worker before a step. They are sent all
    // at once, and wait in the worker's outbox with everything else (64 MiB).
    std::uint64_t state_bytes_at_once = 44u << 20;
    // The most checks of a worker with recurrent states that are in flight, and their bytes here.
    std::uint32_t checks_at_once = 8;
    std::uint64_t check_bytes_at_once = 64u << 20;
    std::uint32_t standby_rows = 16;
    // How long a worker may keep what it has of a sequence that has ended, for a text that
    // continues it.
    Duration kept_after_end = std::chrono::minutes(10);
    // The clock of the engine's side, and what it shares with the strand; null: the strand makes
    // it. A simulation has its own.
    std::function<TimePoint()> now = now_steady;
    std::shared_ptr<SpanBoard> board;
};

}  // namespace moex
