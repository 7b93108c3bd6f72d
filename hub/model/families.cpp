#include "hub/model/families.h"

#include <algorithm>

#include "hub/model/json_fields.h"
#include "protocol/text.h"

namespace moex {
namespace {

std::vector<Family> families_like_llama() {
    return {
        {.type = "qwen3_moe",
         .class_name = "Qwen3MoeForCausalLM",
         .has_experts = true,
         .is_first = true,
         .qk_norm = QkNorm::per_head,
         .routed = RoutedRule::sparse_step,
         .norm_key = "norm_topk_prob",
         .further_keys = {"sliding_window", "max_window_layers"}},
        {.type = "qwen3",
         .class_name = "Qwen3ForCausalLM",
         .is_first = true,
         .qk_norm = QkNorm::per_head,
         .further_keys = {"sliding_window", "max_window_layers"}},
        {.type = "qwen2",
         .class_name = "Qwen2ForCausalLM",
         .is_first = true,
         .bias_key = "",
         .bias_default = true,
         .has_o_bias = false,
         .further_keys = {"attention_bias", "sliding_window", "max_window_layers"}},
        {.type = "llama", .class_name = "LlamaForCausalLM", .is_first = true},
    };
}

std::vector<Family> families_with_experts() {
    return {
        {.type = "mixtral",
         .class_name = "MixtralForCausalLM",
         .has_experts = true,
         .rms_norm_eps = 1e-5,
         .rope_theta = 1e6,
         .bias_key = "",
         .window = WindowRule::all,
         .routed = RoutedRule::all,
         .expert_width = "intermediate_size",
         .dense_width = "",
         .router = {.is_normalised = true},
         .aliases = {{"mlp.gate.weight", "block_sparse_moe.gate.weight"}},
         .experts =
             ExpertNames{.at = "block_sparse_moe.experts", .gate = "w1", .up = "w3", .down = "w2"}},
        {.type = "olmoe",
         .class_name = "OlmoeForCausalLM",
         .has_experts = true,
         .rms_norm_eps = 1e-5,
         .qk_norm = QkNorm::all_heads,
         .reads_clip = true,
         .routed = RoutedRule::all,
         .expert_width = "intermediate_size",
         .dense_width = "",
         .norm_key = "norm_topk_prob"},
        {.type = "qwen2_moe",
         .class_name = "Qwen2MoeForCausalLM",
         .has_experts = true,
         .bias_key = "qkv_bias",
         .bias_default = true,
         .has_o_bias = false,
         .routed = RoutedRule::sparse_step,
         .shared_width = "shared_expert_intermediate_size",
         .has_shared_gate = true,
         .norm_key = "norm_topk_prob",
         .further_keys = {"sliding_window", "max_window_layers"}},
        {.type = "granitemoe",
         .class_name = "GraniteMoeForCausalLM",
         .has_experts = true,
         .has_multipliers = true,
         .routed = RoutedRule::all,
         .expert_width = "intermediate_size",
         .dense_width = "",
         .router = {.score = RouterScore::softmax_of_chosen},
         .aliases = {{"mlp.gate.weight", "block_sparse_moe.router.layer.weight"}},
         .experts = ExpertNames{.all_gate_up = "block_sparse_moe.input_linear.weight",
                                .all_down = "block_sparse_moe.output_linear.weight"}},
    };
}

std::vector<Family> families_with_shared_experts() {
    return {
        {.type = "glm4_moe",
         .class_name = "Glm4MoeForCausalLM",
         .has_experts = true,
         .rms_norm_eps = 1e-5,
         .partial_rotary = 0.5,
         .qk_norm = QkNorm::per_head,
         .qk_norm_key = "use_qk_norm",
         .has_o_bias = false,
         .is_partly_rotated = true,
         .routed = RoutedRule::after_dense,
         .expert_count = "n_routed_experts",
         .shared_count = "n_shared_experts",
         .router = {.score = RouterScore::sigmoid,
                    .has_correction_bias = true,
                    .is_normalised = true},
         .norm_key = "norm_topk_prob",
         .reads_groups = true,
         .aliases = {{"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
                     {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
                     {"mlp.shared_expert.down_proj.weight",
                      "mlp.shared_experts.down_proj.weight"}}},
    };
}

// A family in which most layers have a gated delta rule; it is dense.
Family with_a_delta_rule(std::string_view type, std::string_view class_name) {
    return {.type = type,
            .class_name = class_name,
            .partial_rotary = 0.25,
            .qk_norm = QkNorm::per_head,
            .has_o_bias = false,
            .is_partly_rotated = true,
            .norms_add_one = true,
            .has_delta_net = true,
            .has_draft_head = true};
}

std::vector<Family> families_with_a_delta_rule() {
    Family next = with_a_delta_rule("qwen3_next", "Qwen3NextForCausalLM"),
           dense = with_a_delta_rule("qwen3_5_text", "Qwen3_5ForCausalLM"),
           routed = with_a_delta_rule("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM");
    next.routed = RoutedRule::sparse_step;
    next.norm_key = "norm_topk_prob";
    routed.routed = RoutedRule::all;
    routed.dense_width = "";
    for (Family* const family : {&next, &routed}) {
        family->has_experts = true;
        family->shared_width = "shared_expert_intermediate_size";
        family->has_shared_gate = true;
        family->router.is_normalised = true;
    }
    dense.wrapper_type = "qwen3_5";
    dense.wrapper_class = "Qwen3_5ForConditionalGeneration";
    routed.wrapper_type = "qwen3_5_moe";
    routed.wrapper_class = "Qwen3_5MoeForConditionalGeneration";
    for (Family* const family : {&dense, &routed})
        family->further_keys = {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
                                "mamba_ssm_dtype"};
    return {next, routed, dense};
}

std::vector<Family> families_with_windows() {
    return {
        {.type = "gpt_oss",
         .class_name = "GptOssForCausalLM",
         .has_experts = true,
         .rms_norm_eps = 1e-5,
         .rope_theta = 150000.0,
         .bias_default = true,
         .has_sinks = true,
         .window = WindowRule::by_types,
         .routed = RoutedRule::all,
         .expert_width = "intermediate_size",
         .dense_width = "",
         .activation = Activation::clamped_swiglu,
         .limit_key = "swiglu_limit",
         .limit_default = 7.0,
         .has_expert_bias = true,
         .router = {.score = RouterScore::softmax_of_chosen, .has_bias = true},
         .further_keys = {"initial_context_length", "experts_per_token"},
         .aliases = {{"mlp.gate.weight", "mlp.router.weight"},
                     {"mlp.gate.bias", "mlp.router.bias"}},
         .experts = ExpertNames{.all_gate_up = "mlp.experts.gate_up_proj",
                                .all_down = "mlp.experts.down_proj",
                                .alternates = true,
                                .is_transposed = true,
                                .all_gate_up_bias = "mlp.experts.gate_up_proj_bias",
                                .all_down_bias = "mlp.experts.down_proj_bias"}},
    };
}

const std::vector<Family>& families() {
    static const std::vector<Family> all = [] {
        std::vector<Family> some;
        for (const auto& few :
             {families_like_llama(), families_with_experts(), families_with_shared_experts(),
              families_with_a_delta_rule(), families_with_windows()})
            some.insert(some.end(), few.begin(), few.end());
        return some;
    }();
    return all;
}

// Keys without an effect on what a model computes: names, training, generation, other programs.
constexpr std::string_view harmless_keys[] = {"add_cross_attention",
                                              "attn_implementation",
                                              "framework",
                                              "is_llama_config",
                                              "library_name",
                                              "architectures",
                                              "attention_dropout",
                                              "attn_dropout",
                                              "auto_map",
                                              "bad_words_ids",
                                              "chat_template",
                                              "chunk_size_feed_forward",
                                              "compression_config",
                                              "cross_attention_hidden_size",
                                              "do_sample",
                                              "dtype",
                                              "early_stopping",
                                              "embd_pdrop",
                                              "exponential_decay_length_penalty",
                                              "finetuning_task",
                                              "generation_config",
                                              "hidden_dropout",
                                              "id2label",
                                              "is_decoder",
                                              "is_encoder_decoder",
                                              "keys_to_ignore_at_inference",
                                              "label2id",
                                              "length_penalty",
                                              "max_length",
                                              "max_seq_len",
                                              "max_sequence_length",
                                              "min_length",
                                              "model_max_length",
                                              "model_type",
                                              "mtp_loss_scaling_factor",
                                              "num_beam_groups",
                                              "num_beams",
                                              "num_nextn_predict_layers",
                                              "num_return_sequences",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "output_router_logits",
                                              "output_scores",
                                              "prefix",
                                              "pretraining_tp",
                                              "problem_type",
                                              "pruned_heads",
                                              "quantization_config",
                                              "remove_invalid_values",
                                              "repetition_penalty",
                                              "resid_pdrop",
                                              "return_dict",
                                              "return_dict_in_generate",
                                              "router_aux_loss_coef",
                                              "router_jitter_noise",
                                              "router_z_loss_coef",
                                              "suppress_tokens",
                                              "begin_suppress_tokens",
                                              "task_specific_params",
                                              "temperature",
                                              "tf_legacy_loss",
                                              "tie_encoder_decoder",
                                              "tokenizer_class",
                                              "top_k",
                                              "top_p",
                                              "torch_dtype",
                                              "torchscript",
                                              "typical_p",
                                              "diversity_penalty",
                                              "encoder_no_repeat_ngram_size",
                                              "no_repeat_ngram_size",
                                              "use_bfloat16",
                                              "use_cache",
                                              "seq_length",
                                              "train_batch_size"};
constexpr std::string_view harmless_endings[] = {
    "_token_id", "_token_ids", "_version", "_dropout", "_loss_coef", "_pdrop", "_loss_factor"};
constexpr std::string_view harmless_beginnings[] = {
    "_", "initializer_", "unsloth", "transformers", "training_", "moex_"};

// Keys with values that change nothing, although they may not be read. For every other key, null,
// false and empty values change nothing.
struct NeutralKey {
    std::string_view key;
    Json value;
};
const std::vector<NeutralKey>& neutral_keys() {
    static const std::vector<NeutralKey> all = {
        {"scoring_func", "softmax"},
        {"topk_method", "greedy"},
        {"routed_scaling_factor", 1},
        {"n_group", 1},
        {"topk_group", 1},
        {"n_group", 0},
        {"topk_group", 0},
        {"n_shared_experts", 0},
        {"num_shared_experts", 0},
        {"shared_expert_intermediate_size", 0},
        {"shared_intermediate_size", 0},
        {"embedding_multiplier", 1},
        {"residual_multiplier", 1},
        {"logits_scaling", 1},
        {"logit_scale", 1},
        {"is_causal", true},
        {"partial_rotary_factor", 1},
        {"rotary_pct", 1},
        {"moe_layer_freq", 1},
        {"decoder_sparse_step", 1},
        {"first_k_dense_replace", 0},
        {"norm_type", "rmsnorm"},
        {"position_embedding_type", "rope"},
        {"mtp_num_hidden_layers", 0},
    };
    return all;
}

}  // namespace

const ExpertNames common_experts{.at = "mlp.experts",
                                 .gate = "gate_proj",
                                 .up = "up_proj",
                                 .down = "down_proj",
                                 .all_gate_up = "mlp.experts.gate_up_proj",
                                 .all_down = "mlp.experts.down_proj"};

const Family* find_family(std::string_view type, std::string_view class_name) {
    const auto is_any = [](std::string_view wanted, std::string_view own, std::string_view other) {
        return wanted.empty() || wanted == own || wanted == other;
    };
    for (const Family& one : families())
        if (is_any(type, one.type, one.wrapper_type) &&
            is_any(class_name, one.class_name, one.wrapper_class))
            return &one;
    return nullptr;
}

const Family* find_family(std::string_view type) {
    return type.empty() ? nullptr : find_family(type, "");
}

std::string supported_families() {
    std::string words;
    for (const Family& one : families()) words += text(words.empty() ? "" : ", ", one.type);
    return words;
}

bool is_harmless_key(std::string_view key) {
    const auto is_listed = [&](const auto& list, const auto& matches) {
        return std::any_of(std::begin(list), std::end(list), matches);
    };
    return is_listed(harmless_keys, [&](std::string_view one) { return key == one; }) ||
           is_listed(harmless_endings, [&](std::string_view one) { return key.ends_with(one); }) ||
           is_listed(harmless_beginnings,
                     [&](std::string_view one) { return key.starts_with(one); });
}

bool is_neutral_value(std::string_view key, const Json& value) {
    const bool is_off = value.is_null() || value == false || value == "" ||
                        ((value.is_array() || value.is_object()) && value.empty());
    if (is_off) return key != "is_causal";
    for (const NeutralKey& one : neutral_keys())
        if (one.key == key && one.value == value) return true;
    return false;
}

}  // namespace moex
