// The commands of a step: the part of DecoderOps that appends kernels for a number of rows.
#include "web-worker/decoder/decoder_ops.h"

#include <utility>

#include "web-worker/decoder/step_rows.h"

namespace moex {
namespace {

namespace kernels = gpu::kernels;

constexpr std::uint32_t tile_rows = kernels::matvec_bf16_8::tile_rows;

}  // namespace

void DecoderOps::append(std::vector<gpu::Command>& commands, const Op& op, std::uint32_t x,
                        std::uint32_t y, std::uint32_t z, bool same_stage) {
    gpu::Command command;
    command.same_stage = same_stage;
    command.pipeline = op.pipeline;
    command.bind_group = op.group;
    command.workgroups = {x, y, z};
    commands.push_back(command);
}

void DecoderOps::append(std::vector<gpu::Command>& commands, const Product& product,
                        std::uint32_t num_rows, bool same_stage) {
    if (num_rows == 1)
        append(commands, *product.row, product.row_groups, 1, 1, same_stage);
    else
        append(commands, *product.tile, product.tile_groups, ceil_div(num_rows, tile_rows), 1,
               same_stage);
}

void DecoderOps::append_input_norm(std::vector<gpu::Command>& commands, const Layer& layer,
                                   std::uint32_t num_rows, bool is_whole) const {
    append(commands, is_whole ? *layer.input_norm_whole : *layer.input_norm, 1, num_rows);
}

void DecoderOps::append_attention_begin(std::vector<gpu::Command>& commands, std::uint32_t index,
                                        std::uint32_t num_rows, bool is_whole) const {
    const Layer& layer = layers_[index];
    append_input_norm(commands, layer, num_rows, is_whole);
    append(commands, layer.qkv, num_rows);
    append(commands, *layer.rope, model_.num_heads + 2 * model_.num_kv_heads, num_rows);
}

void DecoderOps::append_attend(std::vector<gpu::Command>& commands, std::uint32_t index,
                               std::uint32_t num_rows, std::uint32_t num_pages) const {
    const std::uint32_t blocks = ceil_div(model_.num_heads / model_.num_kv_heads,
                                          kernels::attend_page::block_heads);
    append(commands, *layers_[index].attend_page, model_.num_kv_heads * blocks, num_pages,
           num_rows);
}

void DecoderOps::append_attention_end(std::vector<gpu::Command>& commands, std::uint32_t index,
                                      std::uint32_t num_rows) const {
    const Layer& layer = layers_[index];
    append(commands, *layer.attend_merge, model_.num_heads, num_rows);
    if (layer.gate_attended != nullptr) {
        append(commands, layer.output_gate, num_rows);
        append(commands, *layer.gate_attended,
               ceil_div(model_.q_size(), kernels::output_gate::threads), num_rows);
    }
    append(commands, layer.o, num_rows);
    append(commands, *layer.post_attention_norm, 1, num_rows);
    append_ffn(commands, index, num_rows);
}

void DecoderOps::append_kept(std::vector<gpu::Command>& commands, std::uint32_t index,
                             std::uint32_t num_rows) const {
    append(commands, *layers_[index].delta_kept,
           ceil_div(model_.delta_channels() / 2 + model_.delta_value_heads,
                    kernels::delta_kept::threads),
           num_rows);
}

void DecoderOps::append_recurrence(std::vector<gpu::Command>& commands, const Layer& layer,
                                   std::uint32_t num_runs) const {
    append(commands, *layer.delta_conv,
           ceil_div(model_.delta_channels(), kernels::delta_conv::threads), num_runs);
    // Columns of a head's matrix for each workgroup.
    const std::uint32_t columns = kernels::delta_rule::threads /
                                  ceil_div(model_.delta_key_dim, kernels::delta_rule::key_rows);
    append(commands, *layer.delta_rule, model_.delta_value_heads,
           ceil_div(model_.delta_value_dim, columns), num_runs);
}

void DecoderOps::append_delta_rule(std::vector<gpu::Command>& commands, const Layer& layer,
                                   std::uint32_t num_rows, std::uint32_t num_runs,
                                   bool is_whole) const {
    append_input_norm(commands, layer, num_rows, is_whole);
    append(commands, layer.qkv, num_rows);
    append(commands, layer.delta_gates, num_rows, true);
    if (model_.is_span)
        append_kept(commands, static_cast<std::uint32_t>(&layer - layers_.data()), num_rows);
    append_recurrence(commands, layer, num_runs);
    append(commands, *layer.delta_gate, model_.delta_value_heads, num_rows);
    append(commands, layer.o, num_rows);
    append(commands, *layer.post_attention_norm, 1, num_rows);
}

void DecoderOps::append_layer(std::vector<gpu::Command>& commands, std::uint32_t index,
                              std::uint32_t num_rows, std::uint32_t num_pages,
                              std::uint32_t num_runs, bool is_whole) const {
    if (model_.is_delta(index)) {
        append_delta_rule(commands, layers_[index], num_rows, num_runs, is_whole);
        return append_ffn(commands, index, num_rows);
    }
    append_attention_begin(commands, index, num_rows, is_whole);
    append_attend(commands, index, num_rows, num_pages);
    append_attention_end(commands, index, num_rows);
}

void DecoderOps::append_ffn(std::vector<gpu::Command>& commands, std::uint32_t index,
                            std::uint32_t num_rows) const {
    const Layer& layer = layers_[index];
    const bool moe = model_.is_moe(index);
    if (moe) {
        append(commands, layer.router, num_rows);
        append(commands, *layer.route, 1, num_rows);
        if (model_.experts_elsewhere) return;
    }

    append_experts(commands, layer, num_rows, addends_of(index).count,
                   moe ? model_.experts_routed_to() : 1);
    if (!moe) append(commands, layer.dense_down, num_rows);
}

void DecoderOps::append_shared(std::vector<gpu::Command>& commands, std::uint32_t index,
                               std::uint32_t num_rows) const {
    const Layer& layer = layers_[index];
    if (layer.shared_gate != nullptr)
        append(commands, *layer.shared_gate, ceil_div(num_rows, kernels::shared_gate::threads), 1);
    append_experts(commands, layer, num_rows, 1, 1);
}

void DecoderOps::append_experts(std::vector<gpu::Command>& commands, const Layer& layer,
                                std::uint32_t num_rows, std::uint32_t routes_per_row,
                                std::uint32_t num_experts) const {
    std::uint32_t tiles = num_rows * routes_per_row;
    if (num_rows > 1) {
        append(commands, *layer.group_pairs, 1, 1);
        tiles = DecoderMemory::tiles_max(tiles, num_experts);
    }
    for (const std::vector<Product>* const products : {&layer.gate_up, &layer.down})
        for (const Product& one : *products) {
            const bool same_stage = &one != &products->front();
            if (num_rows == 1)
                append(commands, *one.row, one.row_groups, tiles, 1, same_stage);
            else
                append(commands, *one.tile, one.tile_groups, tiles, 1, same_stage);
        }
}

void DecoderOps::append_pass(std::vector<gpu::Command>& commands, std::uint32_t num_rows,
                             std::uint32_t num_pages, std::uint32_t num_logits) const {
    append_embed(commands, num_rows);
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        append_layer(commands, layer, num_rows, num_pages);
    append_head(commands, num_logits);
}

void DecoderOps::append_embed(std::vector<gpu::Command>& commands, std::uint32_t num_rows) const {
    for (const Op* op : embed_)
        append(commands, *op, ceil_div(model_.hidden_size, kernels::embed_bf16::threads), num_rows,
               1, op != embed_.front());
}

void DecoderOps::append_final_norm(std::vector<gpu::Command>& commands,
                                   std::uint32_t num_rows) const {
    append(commands, *final_norm_all_, 1, num_rows);
}

void DecoderOps::append_head(std::vector<gpu::Command>& commands, std::uint32_t num_logits,
                             bool is_normed) const {
    if (num_logits == 0) return;
    append(commands, is_normed ? *final_norm_again_ : *final_norm_, 1, num_logits);
    for (const Product& shard : head_)
        append(commands, shard, num_logits, &shard != &head_.front());
}

void DecoderOps::append_likeliest(std::vector<gpu::Command>& commands,
                                  std::uint32_t num_rows) const {
    for (const auto& [op, workgroups] : likeliest_) append(commands, *op, workgroups, num_rows);
}

void DecoderOps::append_choice(std::vector<gpu::Command>& commands) const {
    append(commands, *argmax_part_,
           ceil_div(model_.vocab_size, kernels::argmax_part::stretch_tokens), 1);
    append(commands, *argmax_take_, 1, 1);
}

void DecoderOps::append_end_of_span(std::vector<gpu::Command>& commands,
                                    std::uint32_t num_rows) const {
    append(commands, *final_norm_, 1, num_rows);
}

void DecoderOps::append_addition(std::vector<gpu::Command>& commands, std::uint32_t index,
                                 std::uint32_t num_rows, bool is_whole) const {
    if (!is_whole) append(commands, *layers_[index].input_norm, 1, num_rows);
}

void DecoderOps::append_kv_gather(std::vector<gpu::Command>& commands, std::uint32_t num_rows,
                                  std::uint32_t first_layer, std::uint32_t end_layer) const {
    append_kv_copies(commands, &Layer::kv_gather, num_rows, first_layer, end_layer);
}

void DecoderOps::append_kv_scatter(std::vector<gpu::Command>& commands, std::uint32_t num_rows,
                                   std::uint32_t first_layer, std::uint32_t end_layer) const {
    append_kv_copies(commands, &Layer::kv_scatter, num_rows, first_layer, end_layer);
}

// Appends the copies of those layers that have keys and values.
void DecoderOps::append_kv_copies(std::vector<gpu::Command>& commands, const Op* Layer::*copy,
                                  std::uint32_t num_rows, std::uint32_t first_layer,
                                  std::uint32_t end_layer) const {
    bool is_first = true;
    for (std::uint32_t layer = first_layer; layer < end_layer; ++layer)
        if (layers_[layer].*copy != nullptr)
            append(commands, *(layers_[layer].*copy), 2 * model_.num_kv_heads, num_rows, 1,
                   !std::exchange(is_first, false));
}

}  // namespace moex
