#include "web-worker/decoder/decoder_sizes.h"

#include <algorithm>

#include "web-worker/decoder/step_rows.h"

namespace moex {

std::uint64_t part_slot_bytes(const DecoderModel& model) {
    return std::uint64_t{model.num_heads} * model.head_dim * sizeof(float);
}

bool holds_ffn(const DecoderModel& model, std::uint32_t layer) {
    return !model.is_moe(layer) || !model.experts_elsewhere;
}

std::uint64_t inner_size(const DecoderModel& model) {
    std::uint64_t inner = 0;
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer)
        if (holds_ffn(model, layer))
            inner = std::max<std::uint64_t>(
                inner, std::uint64_t{model.ffn_shape(layer).moe_intermediate_size} *
                           (model.is_moe(layer) ? model.routes_per_row() : 1));
    return inner;
}

std::uint64_t shared_inner_size(const DecoderModel& model) {
    return std::uint64_t{model.shared_size} *
           (model.routes_to_shared() ? model.routes_per_row() : 1);
}

bool shared_is_apart(const DecoderModel& model) {
    return model.shared_size > 0 && !model.routes_to_shared();
}

std::uint64_t mixed_rows(const DecoderSizes& sizes) {
    return std::uint64_t{sizes.rows} + sizes.journals * DeltaRun::replayed_max;
}

std::uint64_t shared_blob_bytes(const DecoderModel& model) {
    if (model.shared_size == 0) return 0;
    return expert_blob_layout(model.shared_shape(), expert_dtype_of(model.shared_kind)).size_bytes;
}

std::uint64_t qk_norm_size(const DecoderModel& model) {
    return model.qk_norm_all_heads ? model.q_size() + model.kv_size()
                                   : std::uint64_t{2} * model.head_dim;
}

std::uint64_t addends_max(const DecoderModel& model) {
    return model.experts_elsewhere ? 1 : std::max(1u, model.routes_per_row());
}

}  // namespace moex
