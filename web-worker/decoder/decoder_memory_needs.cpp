// The bytes of a decoder's buffers: the part of DecoderMemory that allocates nothing.
#include <algorithm>

#include "web-worker/decoder/decoder_memory.h"
#include "web-worker/decoder/step_rows.h"

namespace moex {

std::uint64_t DecoderMemory::part_slots_of(std::uint64_t binding_bytes, const DecoderModel& model,
                                           std::uint32_t rows, std::uint32_t row_pages) {
    // Limit the buffer of attention parts: with a long context it is the largest buffer of a step.
    constexpr std::uint64_t parts_bytes_max = 64ull << 20;
    const std::uint64_t most = std::min(parts_bytes_max, binding_bytes) / part_slot_bytes(model);
    return std::clamp<std::uint64_t>(most, std::uint64_t{8} * row_pages,
                                     std::uint64_t{rows} * row_pages);
}

std::uint64_t DecoderMemory::kv_page_bytes(const DecoderModel& model, KvKind kind) {
    const std::uint64_t heads = std::uint64_t{2} * model.num_kv_heads * kv_page_tokens,
                        scale_zero_bytes = 4;
    switch (kind) {
        case KvKind::f32: return heads * model.head_dim * 4;
        case KvKind::f16: return heads * model.head_dim * 2;
        case KvKind::u8: break;
    }
    return heads * (model.head_dim + scale_zero_bytes);
}

std::vector<std::uint32_t> DecoderMemory::likeliest_lists(std::uint32_t vocab_size) {
    namespace part = gpu::kernels::likeliest_part;
    namespace merge = gpu::kernels::likeliest_merge;
    std::vector<std::uint32_t> lists = {(vocab_size + part::sorted_places - 1) /
                                        part::sorted_places};
    while (lists.back() > 1)
        lists.push_back((lists.back() + merge::merged_lists - 1) / merge::merged_lists);
    return lists;
}

std::uint64_t DecoderMemory::likeliest_bytes(const DecoderModel& model, const DecoderSizes& sizes) {
    if (!sizes.likeliest) return 0;
    std::uint64_t lists = 0;
    for (const std::uint32_t count : likeliest_lists(model.vocab_size)) lists += count;
    return lists * sizes.logit_rows * sizeof(LikeliestList);
}

DecoderMemory::Needs DecoderMemory::needs_of(const DecoderModel& model, const DecoderSizes& sizes) {
    const auto matrix = [&](WeightKind kind, std::uint64_t num_out, std::uint64_t num_in) {
        return matrix_layout(kind, static_cast<std::uint32_t>(num_out),
                             static_cast<std::uint32_t>(num_in), model.group_size)
            .size_bytes;
    };
    const std::uint64_t hidden = model.hidden_size, rows = sizes.rows, word = sizeof(float);
    Needs bytes;
    bytes.weights = (model.tied_embeddings ? 1 : 2) *
                    matrix(model.table_kind, model.vocab_size, hidden);
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer) {
        bytes.weights += matrix(model.attention_kind, model.mixer_rows(layer), hidden) +
                         matrix(model.attention_kind, hidden, model.mixed_size(layer));
        if (model.is_delta(layer)) {
            bytes.weights += word * 2 * model.delta_value_heads * hidden;
            bytes.states += state_bytes(model) * sizes.state_slots +
                            journal_bytes(model) * sizes.journals;
        } else {
            bytes.kv += kv_page_bytes(model, sizes.kv_kind) * pages_of(model, sizes, layer);
            if (model.output_gate)
                bytes.weights += matrix(model.attention_kind, model.q_size(), hidden);
        }
        if (model.is_moe(layer))
            bytes.weights += matrix(model.router_kind, model.router_rows(), hidden) +
                             shared_blob_bytes(model);
        if (holds_ffn(model, layer))
            bytes.weights += (model.is_moe(layer) ? model.num_experts : 1) *
                             expert_blob_layout(model.ffn_shape(layer),
                                                expert_dtype_of(model.ffn_kind(layer)))
                                 .size_bytes;
    }
    if (model.is_span || sizes.sends_layers)
        bytes.step += span_kv_at(model, model.num_layers, rows);
    bytes.step +=
        sizes.part_slots * part_slot_bytes(model) + word * sizes.logit_rows * model.vocab_size +
        likeliest_bytes(model, sizes) +
        word * rows *
            (2 * hidden + model.mixer_rows_max() + model.q_size() +
             std::uint64_t{model.mixed_size_max()} + (model.output_gate ? model.q_size() : 0) +
             (model.has_delta() ? model.delta_values() + 2 * model.delta_value_heads : 0) +
             inner_size(model) + shared_inner_size(model)) +
        word * rows * sizes.lanes * (1 + addends_max(model) + (shared_is_apart(model) ? 1 : 0)) *
            hidden +
        word * sizes.row_pages * kv_page_tokens * model.rotated();
    if (model.has_delta())
        bytes.step += word * mixed_rows(sizes) * model.delta_channels() +
                      (sizes.journals > 0 ? sizeof(DeltaRun) * rows * sizes.lanes : 0);
    return bytes;
}

std::uint64_t DecoderMemory::span_kv_at(const DecoderModel& model, std::uint32_t layer,
                                        std::uint64_t num_rows) {
    constexpr std::uint64_t alignment = 256;
    std::uint64_t at = 0;
    for (std::uint32_t before = 0; before < layer; ++before)
        at += (span_kv_layer_bytes(model, before, num_rows) + alignment - 1) / alignment *
              alignment;
    return at;
}

std::uint64_t DecoderMemory::state_bytes(const DecoderModel& model) {
    return sizeof(float) *
           (model.delta_state_size() + std::uint64_t{model.conv_taps - 1} * model.delta_channels());
}

std::uint64_t DecoderMemory::journal_bytes(const DecoderModel& model) {
    return sizeof(float) * std::uint64_t{DeltaRun::journal_rows} *
           (model.delta_channels() + 2 * model.delta_value_heads);
}

std::uint32_t DecoderMemory::tiles_max(std::uint32_t num_pairs, std::uint32_t num_experts) {
    // The sum counts all full tiles, and one partly filled tile for each expert.
    return std::min(num_pairs, num_pairs / gpu::kernels::group_pairs::tile_rows + num_experts);
}

}  // namespace moex
