// The description of a model for the GPU that computes all of it: its shape, the storage format of
// its weights, and the source of the weights. The names are those of hub/model/config.h, which this
// room does not include.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "protocol/bytes.h"
#include "protocol/result.h"
#include "protocol/rope.h"
#include "protocol/tensor_format.h"
#include "web-worker/gpu/device.h"

namespace moex {

// The storage format of weights. int4 has groups of weights as in an expert's blob, and so has
// mxfp4, which only experts have; f32 and bf16 are plain rows.
enum class WeightKind : std::uint8_t { bf16, f32, int4, mxfp4 };

// The storage format of keys and values in the cache: as computed, or rounded once when they are
// written. u8 are codes with an f16 scale and zero for each token of a KV head.
enum class KvKind : std::uint8_t { f32, f16, u8 };

// The shape of a model and the storage format of its weights.
struct DecoderModel {
    std::uint32_t hidden_size = 0;  // a multiple of 32, like the length of every weight row
    std::uint32_t num_layers = 0;
    std::uint32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
    std::uint32_t vocab_size = 0;
    std::uint32_t context_tokens = 0;
    std::uint32_t num_experts = 0, top_k = 0, moe_intermediate_size = 0;
    std::uint32_t intermediate_size = 0;     // FFN width of a dense layer
    std::vector<std::uint8_t> layer_is_moe;  // [num_layers]
    bool norm_topk_prob = false, qk_norm = false;
    bool qkv_bias = false, o_bias = false, tied_embeddings = false;
    // What models beyond Qwen3-MoE, Qwen3, Qwen2 and Llama have; hub/model/layer_plan.h says what
    // it means.
    bool qk_norm_all_heads = false, sinks = false;
    std::uint32_t rotary_size = 0;            // 0: head_dim
    std::vector<std::uint32_t> layer_window;  // [num_layers], 0: all positions; empty: all 0
    float attention_scale = 0;                // 0: 1 / sqrt(head_dim)
    float embedding_multiplier = 1, residual_multiplier = 1;
    bool sigmoid_router = false, router_bias = false, correction_bias = false;
    std::uint32_t router_groups = 1, groups_kept = 1;  // sigmoid_router only, and so is the next
    float router_scaling = 1;
    // Width of the shared expert of routed layers, 0: none. It is the last expert of each row, with
    // the weight 1 or sigmoid(gate · x); the gate's row follows those of the router.
    std::uint32_t shared_size = 0;
    bool shared_gate = false;
    bool expert_bias = false;  // routed experts have biases and the clamped SwiGLU
    float expert_limit = 0;
    // Layers with a gated delta rule instead of attention: [num_layers], or empty if there are
    // none.
    std::vector<std::uint8_t> layer_is_delta;
    std::uint32_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0,
                  delta_value_dim = 0, conv_taps = 0;
    bool output_gate = false;  // attention is multiplied by a sigmoid of its own projection
    // If set, the model is a span of another model's layers: it has no embeddings, final norm and
    // head (vocab_size 0), and its first and last rows are those of the residual stream.
    bool is_span = false;
    // If set, the caller computes the routed experts, between a layer's router and the next layer.
    // The decoder computes the shared expert meanwhile.
    bool experts_elsewhere = false;
    double rms_norm_eps = 1e-6, rope_theta = 10000;
    RopeScaling rope_scaling;

    WeightKind table_kind = WeightKind::bf16;  // embeddings and head
    WeightKind attention_kind = WeightKind::bf16, router_kind = WeightKind::bf16;
    WeightKind dense_kind = WeightKind::bf16, expert_kind = WeightKind::int4;
    WeightKind shared_kind = WeightKind::bf16;
    std::uint32_t group_size = 0;  // weights per scale and zero, for all int4 weights

    bool is_moe(std::uint32_t layer) const { return layer_is_moe[layer] != 0; }
    std::uint32_t q_size() const { return num_heads * head_dim; }
    std::uint32_t kv_size() const { return num_kv_heads * head_dim; }
    std::uint32_t qkv_size() const { return q_size() + 2 * kv_size(); }
    std::uint32_t rotated() const { return rotary_size ? rotary_size : head_dim; }
    bool is_delta(std::uint32_t layer) const {
        return !layer_is_delta.empty() && layer_is_delta[layer] != 0;
    }
    bool has_delta() const { return !layer_is_delta.empty(); }
    std::uint32_t delta_values() const { return delta_value_heads * delta_value_dim; }
    // Queries, keys and values, which pass through a convolution.
    std::uint32_t delta_channels() const {
        return 2 * delta_key_heads * delta_key_dim + delta_values();
    }
    // Return the outputs of a layer's first product, and the inputs of its last one before the FFN:
    // q, k and v, or what a gated delta rule needs except its small gates.
    std::uint32_t mixer_rows(std::uint32_t layer) const {
        return is_delta(layer) ? delta_channels() + delta_values() : qkv_size();
    }
    std::uint32_t mixed_size(std::uint32_t layer) const {
        return is_delta(layer) ? delta_values() : q_size();
    }
    std::uint32_t mixer_rows_max() const {
        return std::max(qkv_size(), has_delta() ? delta_channels() + delta_values() : 0);
    }
    std::uint32_t mixed_size_max() const {
        return std::max(q_size(), has_delta() ? delta_values() : 0);
    }
    // Floats of the matrices of a sequence in one layer.
    std::uint64_t delta_state_size() const { return std::uint64_t{delta_values()} * delta_key_dim; }
    std::uint32_t window(std::uint32_t layer) const {
        return layer_window.empty() ? 0 : layer_window[layer];
    }
    // Returns true if the shared expert is computed with the routed ones, as the last expert of
    // each row. If false, it has a route and an addend of its own.
    bool routes_to_shared() const { return shared_size > 0 && !experts_elsewhere; }
    bool shared_is_apart(std::uint32_t layer) const {
        return is_moe(layer) && shared_size > 0 && experts_elsewhere;
    }
    // Return the number of experts that a row takes, of rows in the router's matrix, and of experts
    // in a layer, the shared expert and its gate included.
    std::uint32_t routes_per_row() const { return top_k + (routes_to_shared() ? 1 : 0); }
    std::uint32_t router_rows() const { return num_experts + (shared_gate ? 1 : 0); }
    std::uint32_t experts_routed_to() const { return num_experts + (routes_to_shared() ? 1 : 0); }
    ExpertShape shared_shape() const { return {hidden_size, shared_size, group_size}; }
    // Returns the shape of a layer's FFN as a blob: the shape of an expert, or of the dense FFN.
    ExpertShape ffn_shape(std::uint32_t layer) const {
        if (!is_moe(layer)) return {hidden_size, intermediate_size, group_size};
        ExpertShape shape{hidden_size, moe_intermediate_size, group_size, expert_bias,
                          expert_limit};
        if (expert_kind == WeightKind::mxfp4) shape.codes = ExpertDtype::mxfp4;
        return shape;
    }
    WeightKind ffn_kind(std::uint32_t layer) const {
        return is_moe(layer) ? expert_kind : dense_kind;
    }
};

// Returns an error that names a size which the kernels do not support.
Status check_model(const DecoderModel& model);

ExpertDtype expert_dtype_of(WeightKind kind);

// The layout of a matrix [num_out, num_in] in a buffer: codes, then scales and zeros if it is int4.
struct MatrixLayout {
    std::uint64_t scale_zero_bytes_at = 0;
    std::uint64_t size_bytes = 0;
};
MatrixLayout matrix_layout(WeightKind kind, std::uint32_t num_out, std::uint32_t num_in,
                           std::uint32_t group_size);

// One request for weights by the decoder; the requests follow the order of the upload.
struct WeightPart {
    enum class Name : std::uint8_t {
        // matrices, in the layout of MatrixLayout
        embedding_rows,  // embeddings, [num_rows, hidden_size] from first_row on
        head_rows,       // rows of the head; not requested if the head is tied
        // q, k and v stacked by rows; of a gated delta rule all q, k and v, then z
        qkv,
        o,
        delta_gates,  // f32, b and a of a gated delta rule
        output_gate,
        router,  // with the row of the shared expert's gate
        ffn,     // a blob (expert_blob_layout) of `expert`, or of a dense layer
        shared,  // a blob of the shared expert
        // f32 vectors
        final_norm,
        input_norm,
        post_attention_norm,
        q_norm,
        k_norm,
        qkv_bias,
        o_bias,
        sinks,
        router_bias,  // a zero follows for the row of the shared expert's gate
        correction_bias,
        delta_conv,  // [channels, conv_taps]
        delta_a_log,
        delta_dt_bias,
        delta_norm,
    } name;
    std::uint32_t layer = 0, expert = 0;
    std::uint32_t first_row = 0, num_rows = 0;
};

// The routed experts [first_expert, first_expert + num_experts) of a layer, in one buffer.
struct ExpertArena {
    std::uint32_t layer = 0, first_expert = 0, num_experts = 0;
    gpu::BufferId buffer;
    // Makes the caller the owner of the buffer. Call it while the decoder exists.
    std::function<void()> give_up;
};

// Provides the bytes of weights for the upload.
class WeightSource {
  public:
    using Append = std::function<void(ByteView)>;
    virtual ~WeightSource() = default;
    // Makes the parts of a layer ready for read(), and calls `then`: at once, or later, if they are
    // fetched first. The layers are asked for in their order, each when the one before is read, so
    // that no more than one layer has to be in this machine's memory. A source that cannot get a
    // layer ends the load by its own end.
    virtual void prepare([[maybe_unused]] std::uint32_t layer, std::function<void()> then) {
        then();
    }
    // Passes the bytes of `part` to `append` in order, in any number of stretches whose sizes are
    // multiples of 4. `append` keeps no reference to a stretch after it has returned.
    virtual Status read(const WeightPart& part, const Append& append) = 0;
    // Returns false for a part that read() cannot give yet. Only the parts named `ffn` may be
    // absent; GpuDecoder::load_layer() reads them later.
    virtual bool is_here([[maybe_unused]] const WeightPart& part) const { return true; }
    // Routed experts of a layer have their place on the GPU, one blob behind the other. The decoder
    // destroys the buffer at its end, unless it has given it up. An error ends the load.
    virtual Status placed([[maybe_unused]] const ExpertArena& arena) { return {}; }
};

}  // namespace moex
