#include "web-worker/decoder/decoder_ops.h"

#include "protocol/text.h"
#include "web-worker/decoder/step_rows.h"

namespace moex {
namespace {

// Uses a builtin, because the toolchain that builds the tab's WASM has no std::bit_cast.
std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
std::uint32_t epsilon_bits(const DecoderModel& model) {
    return bits_of(static_cast<float>(model.rms_norm_eps));
}

namespace kernels = gpu::kernels;

const char* kind_name(WeightKind kind) {
    switch (kind) {
        case WeightKind::bf16: return "bf16";
        case WeightKind::f32: return "f32";
        case WeightKind::int4: return "int4";
        case WeightKind::mxfp4: break;
    }
    return "mxfp4";
}
// Returns true if the weights are codes, whose input rows are transposed.
bool has_codes(WeightKind kind) { return kind == WeightKind::int4 || kind == WeightKind::mxfp4; }

std::string kv_kernel(const char* name, KvKind kind) {
    return text(name, kind == KvKind::f16 ? "_f16" : kind == KvKind::u8 ? "_u8" : "");
}

constexpr std::uint32_t chunk_inputs = kernels::matvec_int4_1::chunk_inputs;
std::uint32_t chunks_per_group_log2(std::uint32_t group_size) {
    return static_cast<std::uint32_t>(std::countr_zero(group_size / chunk_inputs));
}

// Up to this number of outputs, a matrix product spreads the outputs over more lanes. Above it, the
// GPU is busy even if lanes share several outputs, and they then read x fewer times.
constexpr std::uint32_t spread_outputs_max = 16384;

static_assert(kernels::group_pairs::tile_rows == kernels::expert_gate_up_int4_4::tile_rows);
static_assert(kernels::matvec_bf16_1::outputs_per_group ==
                  kernels::matvec_int4_8::outputs_per_group,
              "products of all kinds are dispatched alike");

}  // namespace

DecoderOps::DecoderOps(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes,
                       const DecoderMemory& memory, std::uint32_t lane)
    : device_(device),
      model_(model),
      sizes_(sizes),
      memory_(memory),
      lane_(memory.lanes[lane]) {
    layers_.resize(model.num_layers);
    Addends addends;
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer) {
        add_layer(layer, addends);
        addends = addends_of(layer);
    }
    if (model.is_span) {
        add_span(addends);
        return;
    }
    add_tables(addends);
    if (sizes.likeliest) add_likeliest();
    if (sizes.sends_layers && lane == 0)
        add_kv_copies(memory.copied_rows, memory.copied_pages, memory.copied_window_pages);
}

DecoderOps::~DecoderOps() {
    for (const Op& op : ops_) device_.destroy_bind_group(op.group);
}

const DecoderOps::Op* DecoderOps::add(std::string kernel,
                                      std::vector<gpu::KernelConstant> constants,
                                      std::vector<gpu::Binding> bindings) {
    ops_.push_back({std::move(kernel), std::move(constants), std::move(bindings), {}, {}});
    return &ops_.back();
}

DecoderOps::Addends DecoderOps::addends_of(std::uint32_t layer) const {
    const bool has_experts = model_.is_moe(layer) && !model_.experts_elsewhere;
    return {has_experts ? model_.routes_per_row() : 1, model_.shared_is_apart(layer)};
}

const DecoderOps::Op* DecoderOps::add_norm(const gpu::Binding& weight, Addends addends,
                                           bool for_head) {
    std::vector<gpu::Binding> bindings = {{lane_.rows}, {lane_.x},   {lane_.addends},
                                          weight,       {memory_.y}, {memory_.y_transposed}};
    if (addends.has_shared) bindings.push_back({lane_.shared});
    return add(addends.has_shared ? "add_norm_shared" : "add_norm",
               {{"hidden_size", model_.hidden_size},
                {"num_addends", addends.count},
                {"for_head", for_head ? 1u : 0u},
                {"epsilon_bits", epsilon_bits(model_)},
                {"factor_bits", bits_of(model_.residual_multiplier)}},
               std::move(bindings));
}

DecoderOps::MatrixRef DecoderOps::matrix(gpu::BufferId buffer, WeightKind kind,
                                         std::uint32_t num_out, std::uint32_t num_in,
                                         const gpu::Binding* bias) const {
    const MatrixLayout layout = matrix_layout(kind, num_out, num_in, model_.group_size);
    return {buffer, 0, layout.scale_zero_bytes_at, kind, num_out, num_in, bias};
}

gpu::Binding DecoderOps::input_for(WeightKind kind) const {
    return {has_codes(kind) ? memory_.y_transposed : memory_.y};
}

DecoderOps::Product DecoderOps::add_product(const MatrixRef& matrix, gpu::Binding x, gpu::Binding y,
                                            std::uint32_t y_stride) {
    std::vector<gpu::KernelConstant> constants = {{"num_in", matrix.num_in},
                                                  {"num_out", matrix.num_out},
                                                  {"y_stride", y_stride},
                                                  {"has_bias", matrix.bias ? 1u : 0u}};
    std::vector<gpu::Binding> bindings = {
        {matrix.buffer, matrix.codes_at}, x, matrix.bias ? *matrix.bias : memory_.no_bias, y};
    if (matrix.kind == WeightKind::int4) {
        constants.push_back({"chunks_per_group_log2", chunks_per_group_log2(model_.group_size)});
        bindings.push_back({matrix.buffer, matrix.scale_zero_at});
    }
    const std::string name = text("matvec_", kind_name(matrix.kind));
    const bool spread = sizes_.spread && matrix.num_out <= spread_outputs_max;
    return {add(name + (spread ? "_spread" : "_1"), constants, bindings),
            add(name + "_8", constants, bindings),
            ceil_div(matrix.num_out, spread ? kernels::matvec_bf16_spread::outputs_per_group
                                            : kernels::matvec_bf16_1::outputs_per_group),
            ceil_div(matrix.num_out, kernels::matvec_bf16_8::outputs_per_group)};
}

void DecoderOps::add_layer(std::uint32_t index, Addends addends) {
    Layer& layer = layers_[index];
    const DecoderMemory::Layer& memory = memory_.layers[index];
    layer.input_norm = add_norm(memory.input_norm, addends, false);
    if (sizes_.sends_layers) layer.input_norm_whole = add_norm(memory.input_norm, {0}, false);
    if (model_.is_delta(index))
        add_delta_rule(index, layer);
    else
        add_attention(index, layer);
    layer.post_attention_norm = add_norm(memory.post_attention_norm, {1}, false);
    add_ffn(index, layer);
}

void DecoderOps::add_attention(std::uint32_t index, Layer& layer) {
    const DecoderMemory::Layer& memory = memory_.layers[index];
    const gpu::BufferId page_table = model_.window(index) > 0 ? lane_.window_table
                                                              : lane_.page_table;
    const WeightKind kind = model_.attention_kind;
    layer.qkv = add_product(matrix(memory.qkv, kind, model_.qkv_size(), model_.hidden_size,
                                   model_.qkv_bias ? &memory.qkv_bias : nullptr),
                            input_for(kind), {memory_.qkv}, model_.qkv_size());
    layer.rope = add(kv_kernel("rope_store", sizes_.kv_kind),
                     {{"num_heads", model_.num_heads},
                      {"num_kv_heads", model_.num_kv_heads},
                      {"head_dim", model_.head_dim},
                      {"rotary_size", model_.rotated()},
                      {"has_qk_norm", model_.qk_norm ? 1u : 0u},
                      {"norms_all_heads", model_.qk_norm_all_heads ? 1u : 0u},
                      {"epsilon_bits", epsilon_bits(model_)}},
                     {{lane_.rows},
                      {memory_.qkv},
                      memory.qk_norms,
                      {memory_.cos_sin},
                      {page_table},
                      {memory_.q},
                      {memory.kv}});
    layer.attend_page = add(
        kv_kernel("attend_page", sizes_.kv_kind),
        {{"num_heads", model_.num_heads},
         {"num_kv_heads", model_.num_kv_heads},
         {"head_dim", model_.head_dim},
         {"window", model_.window(index)},
         {"scale_bits", bits_of(model_.attention_scale)}},
        {{lane_.rows}, {page_table}, {memory_.q}, {memory.kv}, {memory_.parts}, {memory_.peaks}});
    std::vector<gpu::Binding> merged = {
        {lane_.rows}, {memory_.parts}, {memory_.peaks}, {memory_.attended}};
    if (model_.sinks) merged.push_back(memory.sinks);
    layer.attend_merge = add(model_.sinks ? "attend_merge_sinks" : "attend_merge",
                             {{"num_heads", model_.num_heads},
                              {"head_dim", model_.head_dim},
                              {"transposes", kind == WeightKind::int4 ? 1u : 0u},
                              {"window", model_.window(index)}},
                             std::move(merged));
    if (model_.output_gate) add_output_gate(memory, layer);
    layer.o = add_product(matrix(memory.o, kind, model_.hidden_size, model_.q_size(),
                                 model_.o_bias ? &memory.o_bias : nullptr),
                          {memory_.attended}, {lane_.addends}, model_.hidden_size);
}

void DecoderOps::add_output_gate(const DecoderMemory::Layer& memory, Layer& layer) {
    const WeightKind kind = model_.attention_kind;
    layer.output_gate = add_product(
        matrix(memory.output_gate, kind, model_.q_size(), model_.hidden_size, nullptr),
        input_for(kind), {memory_.output_gates}, model_.q_size());
    layer.gate_attended = add(
        "output_gate",
        {{"size", model_.q_size()}, {"transposes", kind == WeightKind::int4 ? 1u : 0u}},
        {{memory_.output_gates}, {memory_.attended}});
}

void DecoderOps::add_delta_rule(std::uint32_t index, Layer& layer) {
    const DecoderMemory::Layer& memory = memory_.layers[index];
    const WeightKind kind = model_.attention_kind;
    const std::uint32_t num_inputs = model_.mixer_rows(index), heads = model_.delta_value_heads;
    layer.qkv = add_product(matrix(memory.qkv, kind, num_inputs, model_.hidden_size, nullptr),
                            input_for(kind), {memory_.qkv}, num_inputs);
    layer.delta_gates = add_product(
        matrix(memory.delta_gates, WeightKind::f32, 2 * heads, model_.hidden_size, nullptr),
        input_for(WeightKind::f32), {memory_.delta_gates}, 2 * heads);
    add_recurrence(index, layer);
    layer.delta_gate = add(
        "delta_gate",
        {{"value_heads", heads},
         {"value_dim", model_.delta_value_dim},
         {"input_stride", num_inputs},
         {"z_at", model_.delta_channels()},
         {"transposes", kind == WeightKind::int4 ? 1u : 0u},
         {"epsilon_bits", epsilon_bits(model_)}},
        {{memory_.delta_values}, {memory_.qkv}, memory.delta_norm, {memory_.attended}});
    layer.o = add_product(
        matrix(memory.o, kind, model_.hidden_size, model_.delta_values(), nullptr),
        {memory_.attended}, {lane_.addends}, model_.hidden_size);
}

// Adds the kernels that read and write what a sequence remembers: for one sequence, or for the runs
// of several.
void DecoderOps::add_recurrence(std::uint32_t index, Layer& layer) {
    const DecoderMemory::Layer& memory = memory_.layers[index];
    const bool several = sizes_.journals > 0;
    const gpu::Binding order = {several ? lane_.runs : lane_.rows};
    std::vector<gpu::KernelConstant> of_conv = {{"channels", model_.delta_channels()},
                                                {"taps", model_.conv_taps},
                                                {"input_stride", model_.mixer_rows(index)}};
    std::vector<gpu::Binding> conv = {
        order, {memory_.qkv}, memory.delta_conv, {memory.columns}, {memory_.mixed}};
    std::vector<gpu::Binding> rule = {order,
                                      {memory_.mixed},
                                      {memory_.delta_gates},
                                      memory.delta_a_log,
                                      memory.delta_dt_bias,
                                      {memory.state},
                                      {memory_.delta_values}};
    if (several) {
        of_conv.push_back({"value_heads", model_.delta_value_heads});
        conv.push_back({memory.journal});
        rule.push_back({memory.journal});
    }
    layer.delta_conv = add(several ? "delta_conv_runs" : "delta_conv", std::move(of_conv),
                           std::move(conv));
    layer.delta_rule = add(several ? "delta_rule_runs" : "delta_rule",
                           {{"key_heads", model_.delta_key_heads},
                            {"value_heads", model_.delta_value_heads},
                            {"key_dim", model_.delta_key_dim},
                            {"value_dim", model_.delta_value_dim}},
                           std::move(rule));
}

void DecoderOps::add_router(const DecoderMemory::Layer& memory, Layer& layer) {
    layer.router = add_product(
        matrix(memory.router, model_.router_kind, model_.router_rows(), model_.hidden_size,
               model_.router_bias ? &memory.router_bias : nullptr),
        input_for(model_.router_kind), {memory_.router_logits}, model_.router_rows());
    std::vector<gpu::KernelConstant> constants = {
        {"num_experts", model_.num_experts},
        {"top_k", model_.top_k},
        {"norm_topk_prob", model_.norm_topk_prob ? 1u : 0u},
        {"logit_stride", model_.router_rows()},
        {"route_stride", model_.routes_per_row()},
        {"has_shared_gate", model_.shared_gate ? 1u : 0u}};
    if (!model_.sigmoid_router) {
        layer.route = add("route", constants, {{memory_.router_logits}, {memory_.routes}});
        return;
    }
    constants.insert(constants.end(), {{"num_groups", model_.router_groups},
                                       {"groups_kept", model_.groups_kept},
                                       {"scaling_bits", bits_of(model_.router_scaling)}});
    layer.route = add("route_sigmoid", constants,
                      {{memory_.router_logits}, {memory_.routes}, memory.correction_bias});
}

// Adds the products of the experts in one arena.
void DecoderOps::add_experts(const ArenaOps& of, Layer& layer) {
    const ExpertBlobLayout blob = expert_blob_layout(of.shape, expert_dtype_of(of.kind));
    const auto words = [](const BlobSection& section) {
        return static_cast<std::uint32_t>(section.offset_bytes / 4);
    };
    std::vector<gpu::KernelConstant> constants = {
        {"hidden_size", model_.hidden_size},
        {"moe_intermediate_size", of.shape.moe_intermediate_size},
        {"top_k", of.routes_per_row},
        {"down_codes_word", words(blob.down_codes)},
        {"gate_up_scale_zero_word", words(blob.gate_up_scale_zero)},
        {"down_scale_zero_word", words(blob.down_scale_zero)}};
    if (of.shape.has_bias)
        constants.insert(constants.end(), {{"gate_up_bias_word", words(blob.gate_up_bias)},
                                           {"down_bias_word", words(blob.down_bias)},
                                           {"limit_bits", bits_of(of.shape.clamp)}});
    if (has_codes(of.kind))
        constants.push_back({"chunks_per_group_log2", chunks_per_group_log2(model_.group_size)});

    const auto add_both = [&](const char* kernel, gpu::Binding in, gpu::Binding out,
                              std::uint32_t row_groups, std::uint32_t tile_groups) {
        const std::string name = text(kernel, of.shape.has_bias ? "clamped_" : "",
                                      kind_name(of.kind));
        std::vector<gpu::Binding> bindings = {
            of.routes, {of.arena.buffer}, in, out, of.arena.place};
        if (has_codes(of.kind)) bindings.push_back({of.arena.buffer});
        const Op* const row = add(name + (sizes_.spread ? "_spread" : "_1"), constants, bindings);
        bindings.front() = {memory_.tiles};
        return Product{row, add(name + "_4", constants, bindings), row_groups, tile_groups};
    };
    const std::uint32_t inner = of.shape.moe_intermediate_size, outer = model_.hidden_size;
    layer.gate_up.push_back(
        add_both("expert_gate_up_", input_for(of.kind), {of.intermediate},
                 inner / (sizes_.spread ? kernels::expert_gate_up_int4_spread::outputs_per_group
                                        : kernels::expert_gate_up_int4_1::outputs_per_group),
                 inner / kernels::expert_gate_up_int4_4::outputs_per_group));
    if (!of.has_down) return;
    layer.down.push_back(
        add_both("expert_down_", {of.intermediate}, {of.y},
                 outer / (sizes_.spread ? kernels::expert_down_int4_spread::outputs_per_group
                                        : kernels::expert_down_int4_1::outputs_per_group),
                 outer / kernels::expert_down_int4_4::outputs_per_group));
}

void DecoderOps::add_ffn(std::uint32_t index, Layer& layer) {
    const DecoderMemory::Layer& memory = memory_.layers[index];
    const bool moe = model_.is_moe(index);
    const WeightKind kind = model_.ffn_kind(index);
    const ExpertShape shape = model_.ffn_shape(index);
    const gpu::Binding routes{moe ? memory_.routes : memory_.dense_routes};
    const std::uint32_t routes_per_row = moe ? model_.routes_per_row() : 1;

    if (moe) add_router(memory, layer);
    if (moe && model_.experts_elsewhere) return add_shared(memory, layer);

    layer.group_pairs = add(
        "group_pairs",
        {{"num_experts", moe ? model_.experts_routed_to() : 1}, {"top_k", routes_per_row}},
        {{lane_.rows}, routes, {memory_.tiles}});
    for (const DecoderMemory::Arena& arena : memory.arenas)
        add_experts(
            {arena, shape, kind, routes, routes_per_row, memory_.intermediate, lane_.addends, moe},
            layer);
    for (const DecoderMemory::Arena& arena : memory.shared)
        add_experts({arena, model_.shared_shape(), model_.shared_kind, routes, routes_per_row,
                     memory_.shared_intermediate, lane_.addends},
                    layer);
    if (moe) return;

    const ExpertBlobLayout blob = expert_blob_layout(shape, expert_dtype_of(kind));
    MatrixRef down;
    down.buffer = memory.arenas.front().buffer;
    down.codes_at = blob.down_codes.offset_bytes;
    down.scale_zero_at = blob.down_scale_zero.offset_bytes;
    down.kind = kind;
    down.num_out = model_.hidden_size;
    down.num_in = shape.moe_intermediate_size;
    layer.dense_down = add_product(down, {memory_.intermediate}, {lane_.addends},
                                   model_.hidden_size);
}

// Adds the kernels of a shared expert that is computed while the routed experts are elsewhere. Its
// route is that of a dense layer if it has no gate.
void DecoderOps::add_shared(const DecoderMemory::Layer& memory, Layer& layer) {
    if (model_.shared_size == 0) return;
    const gpu::Binding routes{model_.shared_gate ? memory_.shared_routes : memory_.dense_routes};
    if (model_.shared_gate)
        layer.shared_gate = add("shared_gate", {{"num_experts", model_.num_experts}},
                                {{lane_.rows}, {memory_.router_logits}, routes});
    layer.group_pairs = add("group_pairs", {{"num_experts", 1}, {"top_k", 1}},
                            {{lane_.rows}, routes, {memory_.tiles}});
    add_experts({memory.shared.front(), model_.shared_shape(), model_.shared_kind, routes, 1,
                 memory_.shared_intermediate, lane_.shared},
                layer);
}

void DecoderOps::add_tables(Addends addends) {
    const WeightKind kind = model_.table_kind;
    std::vector<gpu::KernelConstant> constants = {
        {"hidden_size", model_.hidden_size}, {"factor_bits", bits_of(model_.embedding_multiplier)}};
    if (kind == WeightKind::int4) constants.push_back({"group_size", model_.group_size});
    for (const DecoderMemory::Shard& shard : memory_.embeddings)
        embed_.push_back(add(text("embed_", kind_name(kind)), constants,
                             {{lane_.rows}, {shard.buffer}, {lane_.x}, shard.place}));

    final_norm_ = add_norm(memory_.final_norm, addends, true);
    if (sizes_.reads_rows) {
        final_norm_all_ = add_norm(memory_.final_norm, addends, false);
        final_norm_again_ = add_norm(memory_.final_norm, {0}, true);
    }
    for (const DecoderMemory::Shard& shard : memory_.head)
        head_.push_back(add_product(
            matrix(shard.buffer, kind, shard.num_rows, model_.hidden_size, nullptr),
            input_for(kind), {memory_.logits, sizeof(float) * std::uint64_t{shard.first_row}},
            model_.vocab_size));

    argmax_part_ = add("argmax_part", {{"vocab_size", model_.vocab_size}},
                       {{memory_.logits}, {memory_.best}});
    argmax_take_ = add(
        "argmax_take",
        {{"num_stretches", ceil_div(model_.vocab_size, kernels::argmax_part::stretch_tokens)},
         {"ring_ids", sizes_.ring_ids},
         {"vocab_size", model_.vocab_size},
         {"row_pages", sizes_.row_pages}},
        {{memory_.best}, {lane_.rows}, {memory_.ids}});
}

void DecoderOps::add_span(Addends addends) {
    // Only the addition of this norm is used; its output is not read.
    final_norm_ = add_norm(memory_.final_norm, addends, false);
    add_kv_copies(lane_.rows, lane_.page_table, lane_.window_table);
}

void DecoderOps::add_kv_copies(gpu::BufferId rows, gpu::BufferId page_table,
                               gpu::BufferId window_table) {
    for (std::uint32_t index = 0; index < model_.num_layers; ++index) {
        const gpu::Binding kept = {memory_.span_kv,
                                   DecoderMemory::span_kv_at(model_, index, sizes_.rows)};
        if (model_.is_delta(index)) {
            layers_[index].delta_kept = add("delta_kept",
                                            {{"channels", model_.delta_channels()},
                                             {"value_heads", model_.delta_value_heads},
                                             {"input_stride", model_.mixer_rows(index)}},
                                            {{memory_.qkv}, {memory_.delta_gates}, kept});
            continue;
        }
        const auto add_copy = [&](const char* kernel) {
            return add(kv_kernel(kernel, sizes_.kv_kind),
                       {{"num_kv_heads", model_.num_kv_heads}, {"head_dim", model_.head_dim}},
                       {{rows},
                        {model_.window(index) > 0 ? window_table : page_table},
                        {memory_.layers[index].kv},
                        kept});
        };
        layers_[index].kv_gather = add_copy("kv_gather");
        layers_[index].kv_scatter = add_copy("kv_scatter");
    }
}

void DecoderOps::add_likeliest() {
    const std::vector<std::uint32_t> lists = DecoderMemory::likeliest_lists(model_.vocab_size);
    likeliest_.emplace_back(
        add("likeliest_part", {{"vocab_size", model_.vocab_size}, {"num_stretches", lists[0]}},
            {{memory_.logits}, {memory_.likeliest}}),
        lists[0]);
    std::uint32_t from = 0;
    for (std::size_t i = 1; i < lists.size(); ++i) {
        const std::uint32_t to = from + lists[i - 1] * sizes_.logit_rows *
                                            kernels::likeliest_merge::list_words;
        likeliest_.emplace_back(
            add("likeliest_merge",
                {{"num_lists", lists[i - 1]}, {"from_word", from}, {"to_word", to}},
                {{memory_.likeliest}}),
            lists[i]);
        from = to;
    }
    likeliest_at_ = sizeof(std::uint32_t) * std::uint64_t{from};
}

// Requests all kernels at once, because a browser compiles several at the same time.
void DecoderOps::create(std::function<void(Status)> done) {
    struct Making {
        std::size_t left = 0;
        Status problem;  // the first one
        std::function<void(Status)> done;
    };
    const auto making = std::make_shared<Making>(Making{ops_.size(), {}, std::move(done)});
    for (Op& op : ops_)
        device_.create_pipeline(
            op.kernel, op.constants,
            [this, &op, making, life = life_.watch()](Result<gpu::PipelineId> made) {
                if (!life.alive()) return;
                if (made.ok())
                    op.pipeline = *made;
                else if (making->problem.ok())
                    making->problem = Error{made.error().code,
                                            text("kernel ", op.kernel, ": ", made.error().message)};
                if (--making->left > 0) return;
                making->done(making->problem.ok() ? make_groups() : making->problem);
            });
}

Status DecoderOps::make_groups() {
    for (Op& op : ops_) {
        MOEX_ASSIGN(group, device_.create_bind_group(op.pipeline, op.bindings));
        op.group = group;
    }
    return {};
}

}  // namespace moex
