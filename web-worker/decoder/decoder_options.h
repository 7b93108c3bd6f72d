// What the user of a decoder asks for, and the sizes that follow from it for a model and a device.
#pragma once

#include <cstdint>
#include <optional>

#include "web-worker/decoder/decoder_model.h"
#include "web-worker/decoder/decoder_sizes.h"
#include "web-worker/decoder/evicted_pages.h"
#include "web-worker/gpu/device.h"

namespace moex {

struct GpuDecoderOptions {
    std::uint32_t context_tokens = 0;  // token capacity of the cache; 0: the model's context
    std::uint32_t rows_max = 64;       // limit of prompt tokens that one step computes
    std::uint32_t ring_ids = 256;      // limit of chosen tokens not yet read; a power of two
    bool every_logit = false;          // allocate room for the logits of all rows of a step
    // Limit of rows in a step whose logits or likeliest tokens are read: drafted tokens and the
    // token before them (token_drafts.h). 8 rows are one tile of a product.
    std::uint32_t draft_rows = 1;
    bool likeliest = false;   // permit StepLogits::likeliest; always set for several sequences
    bool reads_rows = false;  // permit DecoderBatch::reads_rows
    // Permit a pass over several sequences whose layers are computed by others in part: a pass may
    // stop before any layer. Without effect if the heads' size is no multiple of 8.
    bool sends_layers = false;
    // Total pages of keys and values, if several sequences share the cache; 0 for one sequence.
    std::uint32_t pages = 0;
    // For several sequences: pages of layers with a window; 0: as many as of other layers. Such a
    // page has a number of its own, so that it is free once no window sees it.
    std::uint32_t window_slots = 0;
    std::uint32_t lanes = 1;  // limit of batches in flight, for several sequences only
    // For one sequence: the pages that fit into the GPU's memory; 0: all pages of the context. The
    // other pages are in `evicted`, which outlives the decoder (paged_steps.h). Error
    // invalid_argument: `pages` is given too, or the model has a gated delta rule.
    std::uint32_t slots = 0;
    EvictedPages* evicted = nullptr;
    // Of a model with a gated delta rule: places for states, and for journals of rows that may be
    // rolled back. At most `journals` sequences are in a batch. A decoder of one sequence may have
    // one journal; feed() then gets a run. Without it, each step changes the only state.
    std::uint32_t state_slots = 0, journals = 0;
    KvKind kv_kind = KvKind::f32;
    // The size limit of a buffer that holds a part of a table or of a layer's experts. 0: the
    // adapter's binding limit.
    std::uint64_t weight_buffer_bytes = 0;
    // If true, a step with a single row uses more lanes with fewer outputs each: the same bits,
    // faster on a GPU, slower on a processor. If unset, it is true unless the adapter is software.
    std::optional<bool> spread;
};

// Returns the sizes that GpuDecoder::create() chooses for this device, so that a caller can check
// whether they fit (DecoderMemory::needs_of()).
DecoderSizes decoder_sizes_of(const gpu::AdapterInfo& adapter, const DecoderModel& model,
                              const GpuDecoderOptions& options);

}  // namespace moex
