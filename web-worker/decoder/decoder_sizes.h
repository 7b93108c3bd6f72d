// The capacities of a decoder, and the sizes that follow from them and the model.
#pragma once

#include <cstdint>

#include "web-worker/decoder/decoder_model.h"

namespace moex {

// The capacities of a decoder's buffers: of a step, and of the cache of keys and values.
struct DecoderSizes {
    std::uint32_t lanes = 1;       // limit of batches in flight at once
    std::uint32_t rows = 0;        // row limit of a step, a multiple of 8
    std::uint32_t logit_rows = 0;  // limit of rows with logits in a step: 1, or a multiple of 8
    std::uint32_t pages = 0;       // pages of keys and values, over all sequences
    // Slots for pages of layers with a window, over several sequences; 0: such layers have `pages`
    // as all others.
    std::uint32_t window_slots = 0;
    std::uint32_t staging_pages = 0;  // of these, slots through which evicted pages pass
    std::uint32_t row_pages = 0;      // page limit of one sequence
    std::uint32_t table_entries = 0;  // capacity of a step's page tables, in entries
    std::uint64_t part_slots = 0;     // limit of (row, page) pairs in a step's attention
    // Of a model with a gated delta rule: places for a state, and for a journal of rows that may be
    // rolled back (wgsl/decoder/delta_runs.wgsl). 0 journals: a single sequence, whose one
    // state each step changes.
    std::uint32_t state_slots = 1, journals = 0;
    KvKind kv_kind = KvKind::f32;
    bool spread = false;              // GpuDecoderOptions
    bool likeliest = false;           // true: make buffers to find the likeliest tokens
    bool reads_rows = false;          // true: rows after the final norm may be read
    bool sends_layers = false;        // true: others may compute layers whole
    std::uint32_t ring_ids = 0;       // limit of chosen tokens that the host has not read
    std::uint64_t binding_bytes = 0;  // size limit of a kernel's binding
    // Size limit of the buffer for a part of a table, or for an arena of experts.
    std::uint64_t weight_buffer_bytes = 0;
};

std::uint64_t part_slot_bytes(const DecoderModel& model);
bool holds_ffn(const DecoderModel& model, std::uint32_t layer);
// Returns the number of floats that one row needs in the buffer `intermediate`.
std::uint64_t inner_size(const DecoderModel& model);
// Returns the number of floats that one row needs in the buffer `shared_intermediate`, where a
// route has the index that it has among all routes.
std::uint64_t shared_inner_size(const DecoderModel& model);
bool shared_is_apart(const DecoderModel& model);
// Returns the number of rows of a pass in layers with a gated delta rule, replayed ones included.
std::uint64_t mixed_rows(const DecoderSizes& sizes);
std::uint64_t shared_blob_bytes(const DecoderModel& model);
// Returns the number of floats in a layer's norms of q and k.
std::uint64_t qk_norm_size(const DecoderModel& model);
// Returns the number of rows that the next add_norm adds to one row of the residual stream.
std::uint64_t addends_max(const DecoderModel& model);

}  // namespace moex
