#include "hub/model/config_json.h"

#include <gtest/gtest.h>

#include "hub/model/hf_config.h"

namespace moex {
namespace {

using nlohmann::json;

json qwen3_30b() {
    return json::parse(
        R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
        "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
        "vocab_size": 151936})");
}

TEST(ConfigTest, OlderSpellingIsRead) {
    const auto config = parse_hf_config(qwen3_30b());
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->hidden_size, 2048u);
    EXPECT_EQ(config->num_layers, 48u);
    EXPECT_EQ(config->num_heads, 32u);
    EXPECT_EQ(config->num_kv_heads, 4u);
    EXPECT_EQ(config->head_dim, 128u);

    EXPECT_EQ(config->num_experts, 128u);
    EXPECT_EQ(config->top_k, 8u);
    EXPECT_EQ(config->moe_intermediate_size, 768u);
    EXPECT_EQ(config->context_tokens, 40960u);
    EXPECT_TRUE(config->layers[0].router.is_normalised);
    EXPECT_FALSE(config->tied_embeddings);
    EXPECT_DOUBLE_EQ(config->layers[0].rope.theta, 1e6);

    EXPECT_EQ(config->layer_is_moe(), std::vector<std::uint8_t>(48, 1));
}

TEST(ConfigTest, NewerSpellingMeansTheSame) {
    json newer = qwen3_30b();
    newer["num_local_experts"] = newer["num_experts"];
    newer["rope_parameters"] = {{"rope_theta", newer["rope_theta"]}, {"rope_type", "default"}};
    newer["dtype"] = "bfloat16";
    for (const char* gone : {"num_experts", "rope_theta", "rope_scaling", "torch_dtype"})
        newer.erase(gone);
    const auto config = parse_hf_config(newer);

    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(to_json(*config), to_json(*parse_hf_config(qwen3_30b())));
}

TEST(ConfigTest, OurSpellingComesBackAsItWas) {
    json object = qwen3_30b();
    object["mlp_only_layers"] = {0, 5};
    object["decoder_sparse_step"] = 2;
    const auto config = parse_hf_config(object);
    ASSERT_TRUE(config.ok()) << config.error().message;
    const auto again = parse_model_config(to_json(*config));
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(to_json(*again), to_json(*config));
}

TEST(ConfigTest, DenseLayersFollowStepAndList) {
    json object = qwen3_30b();
    object["num_hidden_layers"] = 6;
    object["decoder_sparse_step"] = 2;
    object["mlp_only_layers"] = {3};
    const auto config = parse_hf_config(object);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->layer_is_moe(), (std::vector<std::uint8_t>{0, 1, 0, 0, 0, 1}));
}

TEST(ConfigTest, HeadDimDefaultsToHiddenOverHeads) {
    json object = qwen3_30b();
    object["head_dim"] = nullptr;
    EXPECT_EQ(parse_hf_config(object)->head_dim, 64u);
    object["head_dim"] = 96;  // a head_dim in the file need not be hidden_size / num_heads
    EXPECT_EQ(parse_hf_config(object)->head_dim, 96u);
}

// Configurations of dense models, with the biases, norms and rotation of each architecture.
json llama3_8b() {
    return json::parse(
        R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false,
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "vocab_size": 128256})");
}

TEST(ConfigTest, DenseArchitecturesHaveNoExperts) {
    const auto llama = parse_hf_config(llama3_8b());
    ASSERT_TRUE(llama.ok()) << llama.error().message;
    EXPECT_FALSE(llama->has_experts());
    EXPECT_EQ(llama->layer_is_moe(), std::vector<std::uint8_t>(32, 0));
    EXPECT_EQ(llama->top_k + llama->moe_intermediate_size, 0u);
    EXPECT_EQ(llama->intermediate_size, 14336u);
    EXPECT_EQ(llama->head_dim, 128u);
    const LayerPlan& plan = llama->layers[31];
    EXPECT_FALSE(plan.has_qkv_bias || plan.has_o_bias || plan.qk_norm != QkNorm::none);
    EXPECT_DOUBLE_EQ(plan.rope.scaling.factor, 8);
    EXPECT_EQ(plan.rope.scaling.original_context_tokens, 8192u);
    const auto again = parse_model_config(to_json(*llama));
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(to_json(*again), to_json(*llama));

    json object = llama3_8b();
    object["model_type"] = "qwen2";
    object["architectures"] = {"Qwen2ForCausalLM"};
    const auto qwen2 = parse_hf_config(object);
    ASSERT_TRUE(qwen2.ok()) << qwen2.error().message;
    EXPECT_TRUE(qwen2->layers[0].has_qkv_bias);  // qwen2 always has biases of q, k and v
    EXPECT_FALSE(qwen2->layers[0].has_o_bias || qwen2->layers[0].qk_norm != QkNorm::none);

    object["model_type"] = "qwen3";
    object["architectures"] = {"Qwen3ForCausalLM"};
    const auto qwen3 = parse_hf_config(object);
    ASSERT_TRUE(qwen3.ok()) << qwen3.error().message;
    EXPECT_EQ(qwen3->layers[0].qk_norm, QkNorm::per_head);
    EXPECT_FALSE(qwen3->layers[0].has_qkv_bias);
    object["use_sliding_window"] = true;
    EXPECT_NE(parse_hf_config(object).error().message.find("sliding"), std::string::npos);
}

struct BadConfig {
    const char* patch;  // JSON that is merged into a valid config
    const char* key;    // key that the message must name
    const char* found;  // value that the message must show
};
void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.patch; }

class BadConfigTest : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedByName) {
    json object = qwen3_30b();
    object.update(json::parse(GetParam().patch));
    const auto config = parse_hf_config(object);
    ASSERT_FALSE(config.ok());
    EXPECT_NE(config.error().message.find(GetParam().key), std::string::npos)
        << config.error().message;
    EXPECT_NE(config.error().message.find(GetParam().found), std::string::npos)
        << config.error().message;

    EXPECT_LT(config.error().message.size(), 300u);
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadConfigTest,
    testing::Values(
        BadConfig{R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"]})",
                  "model_type", "mistral"},
        BadConfig{R"({"model_type": "llama"})", "architecture", "Qwen3MoeForCausalLM"},
        BadConfig{R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})",
                  "num_experts", "128"},
        BadConfig{R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],)"
                  R"("num_experts": null, "num_local_experts": 4})",
                  "num_local_experts", "llama is a dense architecture"},
        BadConfig{R"({"mlp_bias": true})", "mlp_bias", "true"},
        BadConfig{R"({"architectures": ["MixtralForCausalLM"]})", "architecture",
                  "MixtralForCausalLM"},
        BadConfig{R"({"model_type": null, "architectures": []})", "model_type", "not supported"},
        BadConfig{R"({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}})", "rope_scaling",
                  "longrope"},
        BadConfig{R"({"rope_scaling": {"type": "dynamic", "factor": 4.0}})", "rope_scaling",
                  "dynamic"},
        BadConfig{R"({"rope_scaling": {"type": "linear"}})", "factor", "missing"},
        BadConfig{R"({"rope_scaling": {"type": "linear", "factor": 4.0, "shift": 2}})", "shift",
                  "2"},
        BadConfig{R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 1}})",
                  "beta_fast", "1"},
        BadConfig{R"({"rope_parameters": {"rope_type": "llama3"}})", "factor", "missing"},
        BadConfig{R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,)"
                  R"("high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
                  "high_freq_factor", "4"},
        BadConfig{R"({"rope_parameters": {"full_attention": {"rope_type": "default", )"
                  R"("rope_theta": 1e6}}})",
                  "rope_parameters", "full_attention"},
        BadConfig{R"({"layer_types": ["full_attention", "sliding_attention"]})", "layer_types",
                  "sliding_attention"},
        BadConfig{R"({"rope_parameters": 7})", "rope_parameters", "7"},
        BadConfig{R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor", "0.5"},
        BadConfig{R"({"rope_theta": -1})", "rope_theta", "-1"},
        BadConfig{R"({"hidden_act": "gelu"})", "hidden_act", "gelu"},
        BadConfig{R"({"use_sliding_window": true})", "use_sliding_window", "true"},
        BadConfig{R"({"hidden_size": null})", "hidden_size", "null"},
        BadConfig{R"({"hidden_size": "2048"})", "hidden_size", "2048"},
        BadConfig{R"({"hidden_size": 2048.5})", "hidden_size", "2048.5"},
        BadConfig{R"({"hidden_size": -32})", "hidden_size", "-32"},
        BadConfig{R"({"hidden_size": 2040})", "hidden_size", "multiple of 32"},
        BadConfig{R"({"hidden_size": 1099511627776})", "hidden_size", "1099511627776"},
        BadConfig{R"({"hidden_size": 18446744073709551616})", "hidden_size", "65504"},
        BadConfig{R"({"moe_intermediate_size": 0})", "moe_intermediate_size", "0"},
        BadConfig{R"({"num_hidden_layers": 0})", "num_hidden_layers", "0"},
        BadConfig{R"({"num_hidden_layers": 100000})", "num_hidden_layers", "100000"},
        BadConfig{R"({"num_key_value_heads": 5})", "num_key_value_heads", "5"},
        BadConfig{R"({"num_key_value_heads": 0})", "num_key_value_heads", "0"},
        BadConfig{R"({"num_attention_heads": 0})", "num_attention_heads", "0"},
        BadConfig{R"({"head_dim": 100})", "head_dim", "100"},
        BadConfig{R"({"num_experts_per_tok": 129})", "num_experts_per_tok", "129"},
        BadConfig{R"({"num_experts": 0})", "num_experts", "0"},
        BadConfig{R"({"num_local_experts": 64})", "num_local_experts", "128"},
        BadConfig{R"({"norm_topk_prob": "yes"})", "norm_topk_prob", "yes"},
        BadConfig{R"({"rms_norm_eps": 0})", "rms_norm_eps", "0"},
        BadConfig{R"({"mlp_only_layers": [48]})", "mlp_only_layers", "48"},
        BadConfig{R"({"mlp_only_layers": "all"})", "mlp_only_layers", "all"},
        BadConfig{R"({"mlp_only_layers": [-1]})", "mlp_only_layers", "-1"},
        BadConfig{R"({"decoder_sparse_step": 0})", "decoder_sparse_step", "0"},
        BadConfig{R"({"decoder_sparse_step": 100})", "decoder_sparse_step", "100"},
        BadConfig{R"({"num_hidden_layers": 2, "mlp_only_layers": [0, 1]})", "mlp_only_layers",
                  "[0,1]"},
        BadConfig{R"({"num_attention_heads": 4096})", "num_attention_heads", "4096"},
        BadConfig{R"({"mlp_only_layers": [1], "intermediate_size": null})", "intermediate_size",
                  "dense"},
        BadConfig{R"({"vocab_size": 0})", "vocab_size", "0"},
        BadConfig{R"({"max_position_embeddings": 0})", "max_position_embeddings", "0"}));

// Errors must name the key of config.json, where the user searches for it, and not this project's
// name.
TEST(ConfigTest, ErrorsNameTheKeyOfTheUsersFile) {
    const struct {
        const char *patch, *sentence;
    } cases[] = {
        {R"({"num_experts_per_tok": 129})",
         "config: num_experts_per_tok is 129, wanted at most num_experts (128)"},
        {R"({"num_experts_per_tok": 65, "num_experts": null, "num_local_experts": 64})",
         "config: num_experts_per_tok is 65, wanted at most num_local_experts (64)"},
        {R"({"num_key_value_heads": 3})",
         "config: num_key_value_heads is 3, wanted a divisor of num_attention_heads (32)"},
        {R"({"decoder_sparse_step": 49})",
         "config: decoder_sparse_step is 49, wanted at most num_hidden_layers (48), so that a "
         "layer has experts"},
        {R"({"head_dim": null, "hidden_size": 32, "num_attention_heads": 64})",
         "config: head_dim is 0, wanted at least 8 (is num_attention_heads above hidden_size?)"},
        {R"({"head_dim": null, "hidden_size": 4096, "num_attention_heads": 2,
             "num_key_value_heads": 2})",
         "config: head_dim is 2048, wanted at most 1024"},
        {R"({"head_dim": null, "num_attention_heads": null})",
         "config: num_attention_heads is null, wanted a whole number from 1 to 1024"},
    };

    for (const auto& [patch, sentence] : cases) {
        json object = qwen3_30b();
        object.update(json::parse(patch));
        const auto config = parse_hf_config(object);
        ASSERT_FALSE(config.ok()) << patch;
        EXPECT_EQ(config.error().message, sentence);
    }
}

TEST(ConfigTest, ManifestErrorsNameTheKeyOfTheManifest) {
    json object = to_json(*parse_hf_config(qwen3_30b()));
    object["top_k"] = 129;
    EXPECT_EQ(parse_model_config(object).error().message,
              "config: top_k is 129, wanted at most num_experts (128)");
}

TEST(ConfigTest, AnythingButAnObjectIsRefused) {
    for (const char* text : {"null", "[]", "3", "\"qwen3_moe\""}) {
        EXPECT_FALSE(parse_hf_config(json::parse(text)).ok()) << text;
        EXPECT_FALSE(parse_model_config(json::parse(text)).ok()) << text;
    }
}

}  // namespace
}  // namespace moex
