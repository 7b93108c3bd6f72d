// The sizes of the decoder of a hub's GPU (gpu_steps.h): pages for keys and values, slots for
// windows and recurrent states, within the GPU's memory and the limits of the operator. Pure.
//   a GPU of 80 GB, weights of 18 GB, 16 sequences: 16 x 8,192 tokens, if these fit into a quarter
//   of the 58 GB that the hub may still use
#pragma once

#include <cstdint>
#include <functional>

#include "hub/engine/kv_cache.h"
#include "hub/engine/state_slots.h"
#include "web-worker/decoder/gpu_decoder.h"

namespace moex {

class GpuSizes {
  public:
    // The names are those of GpuStepsOptions.
    struct Options {
        std::uint32_t sequences_max = 16, step_rows_max = 256, lanes = 1, context_tokens = 0;
        std::uint64_t memory_bytes_max = 0, kv_bytes_max = 0, state_bytes_max = 0;
        bool keeps_states = true;
        bool sends_layers = false;  // workers compute layers of a pass
        KvDtype kv_dtype = KvDtype::f32;
        // What the first device got, which the engine relies on; 0: this is the first one.
        std::uint32_t num_pages = 0, window_slots = 0;
        StateSlotSizes slots;
    };
    // Both references outlive this object.
    GpuSizes(const gpu::AdapterInfo& adapter, const DecoderModel& model, Options options)
        : adapter_(adapter),
          model_(model),
          options_(options) {}

    // Returns the number of recurrent states and their sizes, for Options::slots.
    StateSlotSizes state_slots() const;
    // Returns the capacities of the decoder. The number of KV pages follows from `kv_bytes_max`, or
    // otherwise from the memory that is free.
    Result<GpuDecoderOptions> decoder() const;

  private:
    using NeedsWith = std::function<DecoderMemory::Needs(std::uint64_t pages)>;
    std::uint64_t bytes_there() const;
    std::uint32_t slots_to_send() const;
    std::uint64_t num_kv_layers() const;
    std::uint64_t num_window_layers() const;
    std::uint32_t slots_with(std::uint64_t pages) const;
    std::uint64_t pages_within(std::uint64_t bytes, std::uint64_t page_bytes,
                               std::uint64_t slot_bytes) const;
    std::uint64_t default_pages(std::uint64_t bindable, std::uint64_t there,
                                const NeedsWith& needs_with) const;

    const gpu::AdapterInfo& adapter_;
    const DecoderModel& model_;
    const Options options_;
};

}  // namespace moex
