#include "hub/commands/gpu/gpu_sizes.h"

#include <algorithm>

#include "hub/commands/gpu/gpu_device.h"

namespace moex {
namespace {

// Largest share of the GPU's memory that the hub uses; drivers and other programs need the
// remaining memory.
constexpr double memory_share_max = 0.95;
// The KV cache has room by default for this number of tokens of each sequence, within this share of
// the memory that the weights leave free. A contributor on the same GPU needs the rest.
constexpr std::uint32_t usual_tokens = 8192;
constexpr double kv_share_default = 0.25;

std::uint64_t pages_of(std::uint32_t tokens) {
    return (std::uint64_t{tokens} + kv_page_tokens - 1) / kv_page_tokens;
}

}  // namespace

Result<GpuDecoderOptions> GpuSizes::decoder() const {
    const KvKind kv_kind = kv_kind_of(options_.kv_dtype);
    const std::uint64_t page_layer_bytes = DecoderMemory::kv_page_bytes(model_, kv_kind),
                        page_bytes = page_layer_bytes * num_kv_layers(),
                        slot_bytes = page_layer_bytes * num_window_layers(),
                        binding_bytes = std::min(adapter_.max_binding_bytes,
                                                 adapter_.max_buffer_bytes);
    const std::uint64_t bindable = binding_bytes / page_layer_bytes;
    const std::uint64_t there = bytes_there();
    GpuDecoderOptions decoder{.rows_max = options_.step_rows_max,
                              .reads_rows = true,
                              .sends_layers = options_.sends_layers,
                              .lanes = options_.lanes,
                              .state_slots = options_.slots.sequences_max > 0
                                                 ? options_.slots.num_slots() + slots_to_send()
                                                 : 0,
                              .journals = options_.slots.sequences_max,
                              .kv_kind = kv_kind};
    const auto needs_with = [&](std::uint64_t pages) {
        decoder.pages = static_cast<std::uint32_t>(pages);
        decoder.window_slots = slots_with(pages);
        return DecoderMemory::needs_of(model_, decoder_sizes_of(adapter_, model_, decoder));
    };
    std::uint64_t pages = options_.num_pages;  // the engine relies on the pages of the first device
    const std::uint64_t states = options_.slots.all_bytes(),
                        kv_max = options_.kv_bytes_max - std::min(states, options_.kv_bytes_max);
    if (pages == 0 && options_.kv_bytes_max > 0)
        pages = std::min({pages_of(options_.context_tokens) * options_.sequences_max, bindable,
                          pages_within(kv_max, page_bytes, slot_bytes)});
    else if (pages == 0)
        pages = default_pages(bindable, there, needs_with);
    if (pages == 0)
        return Error{ErrorCode::no_space,
                     text("a key/value budget of ", options_.kv_bytes_max, " bytes is below ",
                          states > 0 ? text(states, " of recurrent states and ") : "",
                          "one page of ", page_bytes, " bytes on the GPU")};

    MOEX_TRY(check_memory(adapter_, needs_with(pages), there));
    return decoder;
}

// Returns the bytes of the GPU's memory that the hub may use; 0: unknown.
std::uint64_t GpuSizes::bytes_there() const {
    const auto there = static_cast<std::uint64_t>(static_cast<double>(adapter_.memory_bytes) *
                                                  memory_share_max);
    const std::uint64_t most = options_.memory_bytes_max;
    return there > 0 && most > 0 ? std::min(there, most) : std::max(there, most);
}

// A state that is sent to a worker is computed in a slot of its own.
std::uint32_t GpuSizes::slots_to_send() const { return options_.sends_layers ? 1 : 0; }

std::uint64_t GpuSizes::num_kv_layers() const {
    std::uint64_t count = 0;
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        count += !model_.is_delta(layer);
    return count;
}

StateSlotSizes GpuSizes::state_slots() const {
    const std::uint64_t layers = model_.num_layers - num_kv_layers();
    StateSlotSizes slots{.sequences_max = options_.sequences_max,
                         .slot_bytes = layers * DecoderMemory::state_bytes(model_),
                         .journal_bytes = layers * DecoderMemory::journal_bytes(model_)};
    if (!options_.keeps_states) return slots;
    const std::uint64_t copy_bytes = options_.state_bytes_max > 0 ? options_.state_bytes_max
                                                                  : options_.kv_bytes_max / 4;
    slots.copies_max = copy_bytes > 0 ? static_cast<std::uint32_t>(copy_bytes / slots.slot_bytes)
                                      : options_.sequences_max;
    // By default, copies take at most a quarter of what all but copies and pages leave free.
    if (const std::uint64_t there = bytes_there(); copy_bytes == 0 && there > 0) {
        const GpuDecoderOptions least{.rows_max = options_.step_rows_max,
                                      .pages = 1,
                                      .lanes = options_.lanes,
                                      .state_slots = slots.num_slots() - slots.copies_max,
                                      .journals = slots.sequences_max};
        const DecoderSizes sizes = decoder_sizes_of(adapter_, model_, least);
        const std::uint64_t others = DecoderMemory::needs_of(model_, sizes).all(),
                            free = there - std::min(there, others);
        slots.copies_max = static_cast<std::uint32_t>(
            std::min<std::uint64_t>(slots.copies_max, free / 4 / slots.slot_bytes));
    }
    // A layer's states are in one buffer.
    const std::uint64_t bindable = std::min(adapter_.max_binding_bytes, adapter_.max_buffer_bytes) /
                                   DecoderMemory::state_bytes(model_);
    const std::uint64_t others = slots.num_slots() - slots.copies_max + slots_to_send();
    slots.copies_max = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(slots.copies_max, bindable > others ? bindable - others : 0));
    return slots;
}

std::uint64_t GpuSizes::num_window_layers() const {
    std::uint64_t count = 0;
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        count += !model_.is_delta(layer) && model_.window(layer) > 0;
    return count;
}

// Returns the number of slots for pages of layers with a window, beside `pages` pages. Each of
// `sequences_max` sequences has the pages that a window sees and those of a step; as many
// again, but not more than half of the pages, keep windows for texts that begin alike. 0: no
// layer has a window, or slots would save nothing.
std::uint32_t GpuSizes::slots_with(std::uint64_t pages) const {
    if (options_.window_slots > 0) return options_.window_slots;  // the engine relies on them
    std::uint32_t window = 0;
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        if (!model_.is_delta(layer)) window = std::max(window, model_.window(layer));
    if (window == 0) return 0;
    const std::uint64_t seen = pages_of(window + options_.step_rows_max) + 1,
                        least = seen * options_.sequences_max,
                        wanted = std::min(2 * least, std::max(least, pages / 2));
    return wanted < pages ? static_cast<std::uint32_t>(wanted) : 0;
}

// Returns the number of pages that fit into `bytes`, with their slots.
std::uint64_t GpuSizes::pages_within(std::uint64_t bytes, std::uint64_t page_bytes,
                                     std::uint64_t slot_bytes) const {
    const std::uint64_t whole = bytes / page_bytes, most = std::uint64_t{1} << 32,
                        slots = slots_with(most), first_bytes = page_bytes - slot_bytes;
    if (slots == 0 || slots * page_bytes >= bytes) return whole;
    return first_bytes == 0 ? most : (bytes - slots * slot_bytes) / first_bytes;
}

// Returns the number of KV pages for `sequences_max` sequences of the usual length, and for at
// least one sequence of the whole context, or fewer if they exceed the default share of the
// free memory. `bindable`: the limit of the device; `there`: bytes that the hub may use, 0:
// unknown; `needs_with` returns the decoder's needs with a number of pages.
std::uint64_t GpuSizes::default_pages(std::uint64_t bindable, std::uint64_t there,
                                      const NeedsWith& needs_with) const {
    const std::uint64_t usual = pages_of(std::min(options_.context_tokens, usual_tokens));
    std::uint64_t pages = std::min(
        std::max(usual * options_.sequences_max, pages_of(options_.context_tokens)), bindable);
    const auto is_too_much = [&] {
        const DecoderMemory::Needs needs = needs_with(pages);
        const std::uint64_t others = needs.weights + needs.states + needs.step;
        const std::uint64_t free = there > others ? there - others : 0;
        return static_cast<double>(needs.kv) > static_cast<double>(free) * kv_share_default;
    };
    while (there > 0 && pages > 1 && is_too_much()) pages = pages * 15 / 16;
    return pages;
}

}  // namespace moex
