#include "hub/model/families.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "hub/model/config_json.h"
#include "hub/model/hf_config.h"
#include "hub/model/pack/packer.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using nlohmann::json;

const char* const folders[] = {"mixtral",  "olmoe",         "qwen2-moe",  "granite-moe",
                               "glm4-moe", "gpt-oss-mxfp4", "qwen3-next", "qwen35-moe"};

json config_of(const std::string& folder) {
    std::ifstream in(repository() / "tests/golden/families" / folder / "config.json");
    EXPECT_TRUE(in.good()) << folder;
    return json::parse(in);
}

// Qwen3.5 has its fields in text_config.
json& text_part_of(json& config) {
    return config.contains("text_config") ? config["text_config"] : config;
}

// Sets a field of a family's configuration.
json with_field(const std::string& folder, const std::string& key, const json& value) {
    json object = config_of(folder);
    text_part_of(object)[key] = value;
    return object;
}

void expect_refused(const std::string& folder, const json& object, const std::string& word) {
    const auto config = parse_hf_config(object);
    ASSERT_FALSE(config.ok()) << folder << " takes " << word;
    EXPECT_NE(config.error().message.find(word), std::string::npos)
        << folder << ": " << config.error().message;
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
const json foreign_fields{{"kv_lora_rank", 512},
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

// Fields of a gated delta rule, which two families read, and the wrapper of one of them.
bool is_read(const std::string& folder, const std::string& key) {
    const bool is_wrapped = folder == "qwen35-moe",
               is_hybrid = is_wrapped || folder == "qwen3-next";
    return (is_wrapped && key == "text_config") ||
           (is_hybrid && (key.starts_with("linear_") || key == "full_attention_interval" ||
                          key == "attn_output_gate"));
}

TEST(FamiliesTest, FortyForeignFieldsAreRefusedByName) {
    EXPECT_EQ(foreign_fields.size(), 40u);
    for (const char* folder : folders)
        for (const auto& [key, value] : foreign_fields.items())
            if (!is_read(folder, key)) expect_refused(folder, with_field(folder, key, value), key);
}

// Further names under which models have biases, scales, gates, softcaps, clips and partial
// rotation.
TEST(FamiliesTest, FurtherForeignFieldsAreRefusedByName) {
    const json foreign{{"use_qkv_bias", true},
                       {"attention_out_bias", true},
                       {"use_bias", true},
                       {"mlp_bias", true},
                       {"add_bias_linear", true},
                       {"qk_layernorm", true},
                       {"use_qk_l2norm", true},
                       {"qk_clip_threshold", 100},
                       {"attn_config", {{"clip_qkv", 8}}},
                       {"attn_temperature_tuning", true},
                       {"attention_scale", 0.5},
                       {"logits_soft_cap", 30.0},
                       {"output_logits_scaling", 2.0},
                       {"lm_head_multiplier", 0.5},
                       {"embedding_scale", 8.0},
                       {"use_layer_scale", true},
                       {"layer_scale_init_value", 1e-4},
                       {"residual_scale", 0.5},
                       {"post_attention_norm", true},
                       {"sandwich_norm", true},
                       {"rope_local_base_freq", 10000.0},
                       {"rope_interleave", true},
                       {"rotary_dim", 16},
                       {"original_max_position_embeddings", 256},
                       {"nope_layer_interval", 4},
                       {"global_attn_every_n_layers", 3},
                       {"cla_share_factor", 2},
                       {"num_kv_shared_layers", 2},
                       {"moe_layer_start_index", 1},
                       {"expert_layer_period", 2},
                       {"moe_router_activation_func", "sigmoid"},
                       {"moe_router_use_sigmoid", true},
                       {"router_bias", true},
                       {"use_expert_bias", true},
                       {"moe_router_topk_scaling_factor", 2.5},
                       {"use_shared_expert_gate", true},
                       {"moe_shared_expert_intermediate_size", 64},
                       {"hidden_activation", "gelu"},
                       {"swiglu_alpha", 1.702},
                       {"norm_eps", 1e-5}};
    EXPECT_EQ(foreign.size(), 40u);
    for (const char* folder : folders)
        for (const auto& [key, value] : foreign.items())
            expect_refused(folder, with_field(folder, key, value), key);
}

// A field of one family is foreign to another.
TEST(FamiliesTest, FieldsOfOtherFamiliesAreRefusedByName) {
    const struct {
        json value;
        const char* key;
        std::vector<std::string> readers;
    } fields[] = {
        {true,
         "attention_bias",
         {"olmoe", "granite-moe", "glm4-moe", "gpt-oss-mxfp4", "qwen3-next", "qwen35-moe"}},
        {true, "qkv_bias", {"qwen2-moe"}},
        {true, "use_qk_norm", {"glm4-moe"}},
        {8, "clip_qkv", {"olmoe"}},
        {true, "norm_topk_prob", {"olmoe", "qwen2-moe", "glm4-moe", "qwen3-next"}},
        {4096, "sliding_window", {"mixtral", "qwen2-moe", "gpt-oss-mxfp4"}},
        {true, "use_sliding_window", {"gpt-oss-mxfp4"}},
        {0.5, "partial_rotary_factor", {"glm4-moe", "qwen3-next", "qwen35-moe"}},
        {7, "swiglu_limit", {"gpt-oss-mxfp4"}},
        {2, "n_group", {"glm4-moe"}},
        {2, "topk_group", {"glm4-moe"}},
        {2, "routed_scaling_factor", {"glm4-moe"}},
        {64, "shared_expert_intermediate_size", {"qwen2-moe", "qwen3-next", "qwen35-moe"}},
        {1, "n_shared_experts", {"glm4-moe"}},
        {2, "decoder_sparse_step", {"qwen2-moe", "qwen3-next"}},
        {{1}, "mlp_only_layers", {"qwen2-moe", "qwen3-next"}},
        {1, "first_k_dense_replace", {"glm4-moe"}},
        {2, "embedding_multiplier", {"granite-moe"}},
        {0.5, "attention_multiplier", {"granite-moe"}},
        {0.5, "residual_multiplier", {"granite-moe"}},
        {2, "logits_scaling", {"granite-moe"}},
        {{"chunked_attention"}, "layer_types", {}}};
    for (const auto& [value, key, readers] : fields)
        for (const char* folder : folders)
            if (std::find(readers.begin(), readers.end(), folder) == readers.end())
                expect_refused(folder, with_field(folder, key, value), key);
}

TEST(FamiliesTest, ForeignRopeParametersAreRefusedByName) {
    const std::pair<json, const char*> ropes[] = {
        {{{"full_attention", {{"rope_theta", 1e6}}}}, "differs by layer type"},
        {{{"rope_type", "dynamic"}, {"factor", 2}}, "dynamic"},
        {{{"rope_type", "longrope"}, {"factor", 2}}, "longrope"},
        {{{"rope_type", "default"}, {"short_factor", {1, 1}}}, "short_factor"},
        {{{"rope_type", "default"}, {"rope_ratio", 2}}, "rope_ratio"},
        {{{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 1}, {"beta_slow", 32}}, "beta_fast"},
        {{{"rope_type", "llama3"}, {"factor", 2}}, "low_freq_factor"},
        {{{"rope_type", "linear"}}, "factor"},
        {{{"partial_rotary_factor", 1.5}}, "partial_rotary_factor"},
        {json::array({1}), "an object"}};
    for (const char* folder : folders)
        for (const char* key : {"rope_scaling", "rope_parameters"})
            for (const auto& [rope, word] : ropes) {
                json object = with_field(folder, key, rope);
                text_part_of(object).erase(key == std::string("rope_scaling") ? "rope_parameters"
                                                                              : "rope_scaling");
                expect_refused(folder, object, word);
            }
    for (const char* folder : {"mixtral", "olmoe", "qwen2-moe", "granite-moe", "gpt-oss-mxfp4"})
        expect_refused(folder,
                       with_field(folder, "rope_parameters", {{"partial_rotary_factor", 0.5}}),
                       "partial_rotary_factor");
}

TEST(FamiliesTest, ContradictingRopeParametersAreRefusedByName) {
    for (const char* folder : {"glm4-moe", "qwen3-next", "qwen35-moe"})
        for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
            json object = with_field(folder, "rope_parameters",
                                     {{"rope_theta", 5e5}, {"partial_rotary_factor", 0.75}});
            json& text_part = text_part_of(object);
            text_part["rope_theta"] = 5e5;
            text_part["partial_rotary_factor"] = 0.75;
            EXPECT_TRUE(parse_hf_config(object).ok()) << folder;
            text_part[key] = 1;
            expect_refused(folder, object, key);
            text_part[key] = nullptr;
            text_part["rope_scaling"] = {{"rope_theta", 1e6}};
            expect_refused(folder, object, "rope_scaling");
        }
}

// The other keys of a model that also reads pictures are not read, either.
TEST(FamiliesTest, ForeignFieldBesideTheTextPartIsRefused) {
    for (const auto& [key, value] : foreign_fields.items()) {
        json object = config_of("qwen35-moe");
        if (key == "text_config" || object["text_config"].value(key, json()) == value) continue;
        object[key] = value;
        expect_refused("qwen35-moe", object, key);
    }
    json same = config_of("qwen35-moe");
    same["hidden_size"] = same["text_config"]["hidden_size"];
    same["vision_feature_layer"] = -2;
    EXPECT_TRUE(parse_hf_config(same).ok());
    same["hidden_size"] = 96;
    expect_refused("qwen35-moe", same, "hidden_size");
}

TEST(FamiliesTest, NoForeignFieldIsPacked) {
    const test::TempFolder temporary("foreign");
    ThreadPool threads(2);
    for (const std::string folder : folders) {
        const auto from = repository() / "tests/golden/families" / folder, in = temporary / folder,
                   out = temporary / (folder + "-packed");
        std::filesystem::create_directory(in);
        std::filesystem::copy_file(from / "model.safetensors", in / "model.safetensors");
        for (const auto& [key, value] : foreign_fields.items()) {
            if (is_read(folder, key)) continue;
            test::write_file(in / "config.json", with_field(folder, key, value).dump());
            const auto report = pack_checkpoint(in, out, {}, threads, {});
            ASSERT_FALSE(report.ok()) << folder << " is packed with " << key;
            EXPECT_NE(report.error().message.find(key), std::string::npos)
                << report.error().message;
            EXPECT_FALSE(std::filesystem::exists(out)) << folder << ", " << key;
        }
        test::write_file(in / "config.json", config_of(folder).dump());
        const auto report = pack_checkpoint(in, out, {}, threads, {});
        EXPECT_TRUE(report.ok()) << folder << ": " << report.error().message;
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
