#include "web-worker/decoder/decoder_options.h"

#include <algorithm>

#include "web-worker/decoder/decoder_memory.h"
#include "web-worker/decoder/step_rows.h"

namespace moex {
namespace {

// The limit of rows with logits in a batch of several sequences.
constexpr std::uint32_t batch_logit_rows = 64;

std::uint32_t whole_tiles(std::uint32_t rows) { return (rows + 7) / 8 * 8; }

// Slots that stage evicted pages, for a number of slots in all; and the fewest slots: a step's rows
// are in at most two pages.
std::uint32_t staging_slots(std::uint32_t slots) { return std::clamp(slots / 4, 1u, 8u); }
constexpr std::uint32_t slots_min = 4;

}  // namespace

DecoderSizes decoder_sizes_of(const gpu::AdapterInfo& adapter, const DecoderModel& model,
                              const GpuDecoderOptions& options) {
    DecoderSizes sizes;
    sizes.binding_bytes = std::min(adapter.max_binding_bytes, adapter.max_buffer_bytes);
    sizes.weight_buffer_bytes = options.weight_buffer_bytes
                                    ? std::min(sizes.binding_bytes, options.weight_buffer_bytes)
                                    : sizes.binding_bytes;
    const std::uint32_t context = options.context_tokens ? options.context_tokens
                                                         : model.context_tokens;
    sizes.row_pages = (context + kv_page_tokens - 1) / kv_page_tokens;
    sizes.pages = sizes.row_pages;
    sizes.table_entries = sizes.row_pages;
    if (options.evicted != nullptr && options.slots > 0 && options.slots < sizes.row_pages &&
        slots_min < sizes.row_pages) {
        sizes.pages = std::max(options.slots, slots_min);
        sizes.staging_pages = staging_slots(sizes.pages);
    }
    sizes.rows = whole_tiles(options.rows_max);
    sizes.logit_rows = options.every_logit ? sizes.rows
                       : options.draft_rows > 1
                           ? std::min(sizes.rows, whole_tiles(options.draft_rows))
                           : 1;
    sizes.ring_ids = options.ring_ids;
    sizes.kv_kind = options.kv_kind;
    sizes.spread = options.spread.value_or(!adapter.software);
    sizes.likeliest = options.likeliest;
    sizes.reads_rows = options.reads_rows && !model.is_span;
    if (options.pages > 0) {  // for several sequences
        sizes.pages = options.pages;
        sizes.row_pages = std::min(sizes.row_pages, sizes.pages);
        sizes.table_entries = sizes.rows * sizes.row_pages;
        sizes.logit_rows = std::min(sizes.rows, batch_logit_rows);
        sizes.likeliest = !model.is_span;
        sizes.window_slots = options.window_slots;
        sizes.lanes = std::max(1u, options.lanes);
        sizes.sends_layers = options.sends_layers && model.head_dim % 8 == 0;
    }
    if (model.has_delta() && options.journals > 0) {
        sizes.state_slots = options.state_slots;
        sizes.journals = options.pages > 0 ? options.journals : 1;
    }
    sizes.part_slots = DecoderMemory::part_slots_of(sizes.binding_bytes, model, sizes.rows,
                                                    sizes.row_pages);
    return sizes;
}

}  // namespace moex
