#include "hub/model/families.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "hub/model/config_json.h"
#include "hub/model/hf_config.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using nlohmann::json;

const char* const folders[] = {"mixtral",     "olmoe",    "qwen2-moe",
                               "granite-moe", "glm4-moe", "gpt-oss-mxfp4"};

json config_of(const std::string& folder) {
    std::ifstream in(repository() / "tests/golden/families" / folder / "config.json");
    EXPECT_TRUE(in.good()) << folder;
    return json::parse(in);
}

ModelConfig parsed(const std::string& folder, const json& patch = json::object()) {
    json object = config_of(folder);
    object.update(patch);
    const auto config = parse_hf_config(object);
    EXPECT_TRUE(config.ok()) << folder << ": " << config.error().message;
    return config.ok() ? *config : ModelConfig{};
}

TEST(FamiliesTest, EveryFamilyComesBackFromTheManifest) {
    for (const char* folder : folders) {
        const ModelConfig config = parsed(folder);
        EXPECT_TRUE(needs_plans(config)) << folder;
        const auto again = parse_model_config(to_json(config));
        ASSERT_TRUE(again.ok()) << folder << ": " << again.error().message;
        EXPECT_EQ(to_json(*again), to_json(config)) << folder;
        EXPECT_EQ(again->layers, config.layers) << folder;
    }
}

TEST(FamiliesTest, MixtralIsPaddedAndHasAWindowIfItIsSet) {
    const ModelConfig config = parsed("mixtral");
    EXPECT_EQ(config.moe_intermediate_size, 64u);
    EXPECT_EQ(config.expert_width, 48u);
    EXPECT_EQ(config.intermediate_size, 0u);
    EXPECT_TRUE(config.layers[0].router.is_normalised);
    EXPECT_EQ(config.layers[0].window, 0u);
    EXPECT_EQ(parsed("mixtral", {{"sliding_window", 12}}).layers[1].window, 12u);
}

TEST(FamiliesTest, OlmoeNormsWholeQueriesAndKeys) {
    const LayerPlan plan = parsed("olmoe").layers[0];
    EXPECT_EQ(plan.qk_norm, QkNorm::all_heads);
    EXPECT_FALSE(plan.router.is_normalised || plan.has_qkv_bias);
    const LayerPlan other =
        parsed("olmoe", {{"clip_qkv", 8}, {"attention_bias", true}, {"norm_topk_prob", true}})
            .layers[0];
    EXPECT_EQ(other.clip_qkv, 8);
    EXPECT_TRUE(other.router.is_normalised && other.has_qkv_bias && other.has_o_bias);
}

TEST(FamiliesTest, Qwen2MoeHasASharedExpertWithAGate) {
    const LayerPlan plan = parsed("qwen2-moe").layers[0];
    EXPECT_EQ(plan.shared_size, 80u);
    EXPECT_TRUE(plan.has_shared_gate && plan.has_qkv_bias && !plan.has_o_bias);
    const ModelConfig mixed = parsed("qwen2-moe", {{"mlp_only_layers", {0}}});
    EXPECT_EQ(mixed.layer_is_moe(), (std::vector<std::uint8_t>{0, 1}));
    EXPECT_EQ(mixed.layers[0].shared_size, 0u);
}

TEST(FamiliesTest, GraniteHasFourMultipliers) {
    const ModelConfig config = parsed("granite-moe");
    EXPECT_EQ(config.embedding_multiplier, 1.5);
    EXPECT_EQ(config.logits_divisor, 0.7);
    EXPECT_EQ(config.layers[0].attention_scale, 0.125);
    EXPECT_EQ(config.layers[0].residual_multiplier, 0.8);
    EXPECT_EQ(config.layers[0].router.score, RouterScore::softmax_of_chosen);
}

TEST(FamiliesTest, GlmHasGroupsSharedExpertsAndDenseLayers) {
    const ModelConfig config = parsed("glm4-moe");
    EXPECT_EQ(config.layer_is_moe(), (std::vector<std::uint8_t>{0, 1, 1}));
    const LayerPlan& plan = config.layers[1];
    EXPECT_EQ(plan.rope.rotary_size, 16u);
    EXPECT_EQ(plan.shared_size, 32u);
    EXPECT_FALSE(plan.has_shared_gate || plan.has_o_bias);
    EXPECT_EQ(plan.router, (RouterPlan{.score = RouterScore::sigmoid,
                                       .has_correction_bias = true,
                                       .num_groups = 4,
                                       .groups_kept = 2,
                                       .is_normalised = true,
                                       .scaling = 2.5}));
    const json newer{{"partial_rotary_factor", nullptr},
                     {"rope_theta", nullptr},
                     {"rope_parameters", {{"rope_theta", 5000}, {"partial_rotary_factor", 0.25}}}};
    EXPECT_EQ(parsed("glm4-moe", newer).layers[0].rope.rotary_size, 8u);
    EXPECT_EQ(parsed("glm4-moe", {{"use_qk_norm", false}}).layers[0].qk_norm, QkNorm::none);
    EXPECT_EQ(parsed("glm4-moe", {{"n_shared_experts", 0}}).layers[1].shared_size, 0u);
}

// Checkpoints of the text part alone may have its fields at the top level under the wrapper's name.
TEST(FamiliesTest, TextPartOfQwen35IsReadWithoutItsWrapper) {
    const json whole = config_of("qwen35-moe");
    const auto wanted = parse_hf_config(whole);
    ASSERT_TRUE(wanted.ok()) << wanted.error().message;
    json flat = whole.at("text_config");
    flat["model_type"] = "qwen3_5_moe";
    for (const char* name : {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", ""}) {
        flat["architectures"] = json::array({name});
        const auto config = parse_hf_config(flat);
        ASSERT_TRUE(config.ok()) << name << ": " << config.error().message;
        EXPECT_EQ(to_json(*config), to_json(*wanted)) << name;
    }
    flat["architectures"] = {"Qwen3_5ForCausalLM"};
    EXPECT_FALSE(parse_hf_config(flat).ok());
    flat.erase("architectures");
    flat.erase("num_experts");
    const auto lacking = parse_hf_config(flat);
    ASSERT_FALSE(lacking.ok());
    EXPECT_NE(lacking.error().message.find("num_experts"), std::string::npos);

    json dense = whole.at("text_config");
    for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                            "shared_expert_intermediate_size"})
        dense.erase(key);
    dense["model_type"] = "qwen3_5";
    dense["intermediate_size"] = 96;
    const auto config = parse_hf_config(dense);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->architecture, "qwen3_5_text");
}

TEST(FamiliesTest, GptOssAlternatesWindowsAndClampsItsExperts) {
    const ModelConfig config = parsed("gpt-oss-mxfp4");
    EXPECT_EQ(config.layers[0].window, 16u);
    EXPECT_EQ(config.layers[1].window, 0u);
    const LayerPlan& plan = config.layers[0];
    EXPECT_TRUE(plan.has_sinks && plan.has_o_bias && plan.has_expert_bias && plan.router.has_bias);
    EXPECT_EQ(plan.rope.scaling.kind, RopeScalingKind::yarn);
    EXPECT_FALSE(plan.rope.scaling.truncate);
    EXPECT_NEAR(plan.rope.scaling.attention_factor, 1.3465736, 1e-6);
    const ExpertShape shape = config.expert_shape(32);
    EXPECT_EQ(shape.clamp, 7);
    EXPECT_TRUE(shape.is_clamped() && !shape.is_plain());
    EXPECT_TRUE(parsed("glm4-moe").expert_shape(32).is_plain());
}

// Each field changes the mathematics of another model. In a family that does not read it, it must
// not pass in silence.
TEST(FamiliesTest, FortyForeignFieldsAreRefusedByName) {
    const json foreign{{"kv_lora_rank", 512},
                       {"q_lora_rank", 1536},
                       {"qk_rope_head_dim", 64},
                       {"v_head_dim", 128},
                       {"linear_num_value_heads", 32},
                       {"linear_conv_kernel_dim", 4},
                       {"full_attention_interval", 4},
                       {"attn_output_gate", true},
                       {"attention_chunk_size", 8192},
                       {"no_rope_layers", {1, 1, 0}},
                       {"use_parallel_residual", true},
                       {"final_logit_softcapping", 30.0},
                       {"attn_logit_softcapping", 50.0},
                       {"query_pre_attn_scalar", 256},
                       {"logit_scale", 0.0625},
                       {"scoring_func", "sigmoid"},
                       {"topk_method", "noaux_tc"},
                       {"ep_size", 2},
                       {"moe_layer_freq", 2},
                       {"interleave_moe_layer_step", 2},
                       {"num_shared_experts", 1},
                       {"shared_intermediate_size", 1024},
                       {"zero_expert_num", 4},
                       {"use_bidirectional_attention", true},
                       {"is_causal", false},
                       {"alibi", true},
                       {"position_embedding_type", "nope"},
                       {"rotary_pct", 0.25},
                       {"norm_type", "layernorm"},
                       {"layer_norm_eps", 1e-5},
                       {"use_mup", true},
                       {"mup_width_multiplier", 2.0},
                       {"scale_emb", 12},
                       {"scale_depth", 1.4},
                       {"dim_model_base", 256},
                       {"time_step_limit", {0, 1}},
                       {"mamba_d_state", 128},
                       {"text_config", {{"hidden_size", 64}}},
                       {"index_topk", 2048},
                       {"sliding_window_pattern", 6}};
    EXPECT_EQ(foreign.size(), 40u);
    for (const char* folder : folders)
        for (const auto& [key, value] : foreign.items()) {
            json object = config_of(folder);
            object[key] = value;
            const auto config = parse_hf_config(object);
            ASSERT_FALSE(config.ok()) << folder << " takes " << key;
            EXPECT_NE(config.error().message.find(key), std::string::npos)
                << config.error().message;
        }
}

// A field of one family is foreign to another.
TEST(FamiliesTest, FieldsOfOtherFamiliesAreRefusedByName) {
    const struct {
        const char *folder, *key;
        json value;
    } cases[] = {{"mixtral", "attention_bias", true},
                 {"mixtral", "clip_qkv", 8},
                 {"mixtral", "norm_topk_prob", true},
                 {"olmoe", "sliding_window", 4096},
                 {"olmoe", "partial_rotary_factor", 0.5},
                 {"olmoe", "swiglu_limit", 7},
                 {"qwen2-moe", "use_sliding_window", true},
                 {"qwen2-moe", "n_group", 2},
                 {"granite-moe", "routed_scaling_factor", 2},
                 {"granite-moe", "shared_expert_intermediate_size", 64},
                 {"glm4-moe", "embedding_multiplier", 2},
                 {"glm4-moe", "mlp_only_layers", {1}},
                 {"gpt-oss-mxfp4", "n_shared_experts", 1},
                 {"gpt-oss-mxfp4", "layer_types", {"chunked_attention"}}};
    for (const auto& [folder, key, value] : cases) {
        json object = config_of(folder);
        object[key] = value;
        const auto config = parse_hf_config(object);
        ASSERT_FALSE(config.ok()) << folder << " takes " << key;
        EXPECT_NE(config.error().message.find(key), std::string::npos) << config.error().message;
    }
}

TEST(FamiliesTest, PlansThatNothingComputesAreRefusedByName) {
    const struct {
        json patch;
        const char* word;
    } cases[] = {{{{"mixer", "gated_delta_rule"}}, "gated delta rule"},
                 {{{"mixer", "latent_attention"}}, "latent attention"},
                 {{{"activation", "gelu"}}, "gelu"},
                 {{{"activation", "relu"}}, "relu"},
                 {{{"rotary_size", 5}}, "rotated part"},
                 {{{"router", {{"score", "sigmoid"}, {"num_groups", 3}}}}, "groups"},
                 {{{"router", {{"score", "best"}}}}, "best"},
                 {{{"window", -1}}, "window"},
                 {{{"rope_scaling", {{"kind", "yarn"}, {"factor", 2}}}}, "original_context"}};
    const json whole = to_json(parsed("olmoe"));
    for (const auto& [patch, word] : cases) {
        json object = whole;
        object["plans"][0].update(patch);
        const auto config = parse_model_config(object);
        ASSERT_FALSE(config.ok()) << patch;
        EXPECT_NE(config.error().message.find(word), std::string::npos) << config.error().message;
    }
}

}  // namespace
}  // namespace moex
