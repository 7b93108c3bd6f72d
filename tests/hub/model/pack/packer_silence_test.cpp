// Things that a checkpoint asks for and that packing once dropped without a word. Each is now kept,
// refused by name, or named in a warning.
#include <gtest/gtest.h>

#include "hub/model/chat_template.h"
#include "hub/model/pack/packer.h"
#include "hub/model/package/package.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using test::CheckpointBuilder;
using test::CheckpointOptions;
using test::TempFolder;
namespace fs = std::filesystem;

class PackerSilenceTest : public testing::Test {
  protected:
    fs::path in() const { return folder_ / "in"; }
    void write(const CheckpointBuilder& builder) { builder.write(in()); }
    void write_plain() { write(CheckpointBuilder{CheckpointOptions{}}); }
    // Writes a checkpoint with the demo's tokenizer.
    void write_with_tokenizer(const nlohmann::json& tokenizer_config) {
        write(CheckpointBuilder({.vocab_size = 8192}));
        fs::copy_file(repository() / "static/models/demo/tokenizer.json", in() / "tokenizer.json",
                      fs::copy_options::overwrite_existing);
        test::write_file(in() / "tokenizer_config.json", tokenizer_config.dump());
    }
    std::shared_ptr<const ModelPackage> pack(const fs::path& path,
                                             const PackOptions& options = {}) {
        const fs::path out = folder_ / text("out-", packed_++);
        const auto report = pack_checkpoint(path, out, options, threads_, {});
        EXPECT_TRUE(report.ok()) << report.error().message;
        if (!report.ok()) return nullptr;
        warnings_.clear();
        for (const std::string& warning : report->warnings) warnings_ += warning + "\n";
        auto package = ModelPackage::open(out);
        EXPECT_TRUE(package.ok()) << package.error().message;
        return package.ok() ? *package : nullptr;
    }
    std::shared_ptr<const ModelPackage> pack() { return pack(in()); }
    void refused(std::initializer_list<std::string_view> words) {
        const auto report = pack_checkpoint(in(), folder_ / "refused", {}, threads_, {});
        ASSERT_FALSE(report.ok());
        for (const std::string_view word : words)
            EXPECT_NE(report.error().message.find(word), std::string::npos)
                << "\"" << word << "\" not in: " << report.error().message;
    }
    void warned(std::string_view words) const {
        EXPECT_NE(warnings_.find(words), std::string::npos)
            << "\"" << words << "\" not in: " << warnings_;
    }
    static std::shared_ptr<const Tokenizer> tokenizer_of(const ModelPackage& package) {
        auto tokenizer = Tokenizer::load(
            package.tokenizer_file("tokenizer.json").value_or(""),
            package.tokenizer_file("tokenizer_config.json").value_or(""));
        EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
        return *tokenizer;
    }

    TempFolder folder_{"silence"};
    ThreadPool threads_{2};
    std::string warnings_;
    int packed_ = 0;
};

TEST_F(PackerSilenceTest, PoolingModuleDecidesEmbeddings) {
    write_plain();
    EXPECT_EQ(pack()->embedding_form(), EmbeddingForm{});
    const std::string prefix = "sentence_transformers.models.";
    const auto modules = [&](bool normalizes) {
        nlohmann::json list = nlohmann::json::array();
        list.push_back({{"idx", 0}, {"path", ""}, {"type", prefix + "Transformer"}});
        list.push_back({{"idx", 1}, {"path", "1_Pooling"}, {"type", prefix + "Pooling"}});
        if (normalizes)
            list.push_back({{"idx", 2}, {"path", "2_Normalize"}, {"type", prefix + "Normalize"}});
        return list;
    };
    fs::create_directory(in() / "1_Pooling");
    const auto pooling = [&](const char* mode) {
        nlohmann::json object{{"pooling_mode_cls_token", false}, {"word_embedding_dimension", 64}};
        object[mode] = true;
        test::write_file(in() / "1_Pooling/config.json", object.dump());
    };

    test::write_file(in() / "modules.json", modules(true).dump());
    pooling("pooling_mode_lasttoken");
    EXPECT_EQ(pack()->embedding_form(), (EmbeddingForm{Pooling::last, true}));
    test::write_file(in() / "modules.json", modules(false).dump());
    EXPECT_EQ(pack()->embedding_form(), (EmbeddingForm{Pooling::last, false}));
    pooling("pooling_mode_cls_token");
    EXPECT_EQ(pack()->embedding_form(), (EmbeddingForm{Pooling::first, false}));

    pooling("pooling_mode_weightedmean_tokens");
    refused({"1_Pooling/config.json", "pooling_mode_weightedmean_tokens"});
    auto dense = modules(true);
    dense.push_back({{"idx", 3}, {"path", "3_Dense"}, {"type", prefix + "Dense"}});
    test::write_file(in() / "modules.json", dense.dump());
    pooling("pooling_mode_mean_tokens");
    EXPECT_EQ(pack()->embedding_form(), EmbeddingForm{});
    warned("Dense");
}

TEST_F(PackerSilenceTest, ModelWithoutPrefixInItsNamesIsRead) {
    CheckpointBuilder builder({.tied = true});
    for (test::TestTensor& tensor : builder.tensors) tensor.name.erase(0, 6);  // "model."
    write(builder);
    const auto package = pack();
    std::vector<float> values(builder.tensor("norm.weight").num_elements());
    tensor_to_float(*package->tensor("model.norm.weight"), 0, values);
    EXPECT_EQ(values, builder.tensor("norm.weight").values);
}

TEST_F(PackerSilenceTest, AddBosTokenPutsTheTokenInFront) {
    write_with_tokenizer({{"add_bos_token", true},
                          {"bos_token", {{"content", "<|im_start|>"}}},
                          {"eos_token", "<|im_end|>"}});
    const auto tokenizer = tokenizer_of(*pack());
    const auto plain = tokenizer->encode("hello", SpecialTokens::parse),
               bos = tokenizer->encode("<|im_start|>", SpecialTokens::parse);
    ASSERT_EQ(bos.size(), 1u);
    auto wanted = plain;
    wanted.insert(wanted.begin(), bos[0]);
    EXPECT_EQ(tokenizer->encode_prompt("hello"), wanted);

    write_with_tokenizer({{"add_bos_token", false}, {"bos_token", "<|im_start|>"}});
    EXPECT_EQ(tokenizer_of(*pack())->encode_prompt("hello"), plain);
    write_with_tokenizer({{"add_bos_token", true}, {"bos_token", "<s>"}});
    refused({"tokenizer_config.json", "bos_token", "<s>", "add_bos_token"});
}

TEST_F(PackerSilenceTest, ToolUseTemplateServesChatsWithTools) {
    const std::string plain = "plain{{ messages[0].content }}\n",
                      tools = "tools{{ tools[0].name }}\n";
    const auto expect_both = [&] {
        const auto package = pack();
        const auto chat = ChatTemplate::from_tokenizer_config(
            package->tokenizer_file("tokenizer_config.json").value_or(""));
        ASSERT_TRUE(chat.ok()) << chat.error().message;
        nlohmann::ordered_json context;
        context["messages"] = nlohmann::ordered_json::array({{{"content", "hello"}}});
        EXPECT_EQ(*(*chat)->render(context), "plainhello");
        context["tools"] = nlohmann::ordered_json::array({{{"name", "clock"}}});
        EXPECT_EQ(*(*chat)->render(context), "toolsclock");
    };

    nlohmann::json list = nlohmann::json::array();
    list.push_back({{"name", "default"}, {"template", plain}});
    list.push_back({{"name", "tool_use"}, {"template", tools}});
    list.push_back({{"name", "rag"}, {"template", "rag"}});
    write_with_tokenizer({{"chat_template", list}});
    expect_both();
    warned("rag");

    write_with_tokenizer({{"chat_template", plain}});
    fs::create_directory(in() / "additional_chat_templates");
    test::write_file(in() / "additional_chat_templates/tool_use.jinja", tools);
    expect_both();
}

TEST_F(PackerSilenceTest, UnusedGenerationSettingsAreNamed) {
    write_plain();
    test::write_file(in() / "generation_config.json",
                     R"({"temperature": 0.6, "num_beams": 4, "suppress_tokens": [3],)"
                     R"( "presence_penalty": 1.5, "no_repeat_ngram_size": 0, "eos_token_id": 7})");
    ASSERT_TRUE(pack());
    warned("not used: num_beams, suppress_tokens");
    EXPECT_EQ(warnings_.find("no_repeat_ngram_size"), std::string::npos) << "0 is off";
    EXPECT_EQ(warnings_.find("temperature"), std::string::npos);
    EXPECT_EQ(warnings_.find("presence_penalty"), std::string::npos);
}

TEST_F(PackerSilenceTest, HuggingFaceCacheFolderGivesTheRepositoryName) {
    const fs::path snapshot = folder_ / "models--Qwen--Qwen3-30B-A3B/snapshots/ad44e777bcd18fa4";
    CheckpointBuilder{CheckpointOptions{}}.write(snapshot);
    EXPECT_EQ(pack(snapshot)->name(), "Qwen3-30B-A3B");
    EXPECT_EQ(pack(snapshot / "")->name(), "Qwen3-30B-A3B");
    EXPECT_EQ(pack(snapshot, {.name = "mine"})->name(), "mine");
}

TEST_F(PackerSilenceTest, KeysThatChangeTheMathematicsAreRefused) {
    for (const auto& [key, value, neutral] :
         {std::tuple<const char*, nlohmann::json, nlohmann::json>{"scoring_func", "sigmoid",
                                                                  "softmax"},
          {"routed_scaling_factor", 2.5, 1.0},
          {"n_group", 8, 1},
          {"final_logit_softcapping", 30.0, nullptr},
          {"clip_qkv", 8.0, nullptr},
          {"swiglu_limit", 7.0, nullptr},
          {"residual_multiplier", 0.22, 1.0},
          {"is_causal", false, true}}) {
        SCOPED_TRACE(key);
        CheckpointBuilder builder{CheckpointOptions{}};
        builder.config[key] = neutral;
        write(builder);
        EXPECT_TRUE(pack());
        builder.config[key] = value;
        write(builder);
        refused({"config.json", key, value.dump()});
    }
    CheckpointBuilder own{CheckpointOptions{}};
    own.config["auto_map"] = {{"AutoModel", "modeling_own.OwnModel"}};
    write(own);
    EXPECT_TRUE(pack());
    warned("auto_map");
}

TEST_F(PackerSilenceTest, UnreadTensorsInsideLayersAreRefused) {
    for (const char* name : {"self_attn.sinks", "mlp.gate.e_score_correction_bias",
                             "mlp.shared_expert.up_proj.weight", "mlp.experts.gate_up_proj_bias"}) {
        CheckpointBuilder builder{CheckpointOptions{}};
        builder.tensors.push_back(
            {.name = text("model.layers.0.", name), .shape = {2}, .values = {1, 1}});
        write(builder);
        refused({name, "no such", "config.json"});
    }
    CheckpointBuilder builder{CheckpointOptions{}};
    for (const char* name : {"model.layers.3.eh_proj.weight", "model.layers.3.eh_proj.bias",
                             "model.vision_tower.patch.weight"})
        builder.tensors.push_back({.name = name, .shape = {2}, .values = {1, 1}});
    write(builder);
    EXPECT_TRUE(pack());
    warned("model.layers.3 (2 tensors) comes after the model's last layer");
    warned("1 tensors outside the layers are not part of the model");
    warned("left out: model.vision_tower.patch.weight");
}

TEST_F(PackerSilenceTest, EmptyBiasChangesNothing) {
    CheckpointBuilder builder{CheckpointOptions{}};
    builder.tensors.push_back({.name = "model.layers.0.self_attn.q_proj.bias", .shape = {0}});
    write(builder);
    EXPECT_TRUE(pack());
}

TEST_F(PackerSilenceTest, F16HubKeepsItsBitsOrSaysSo) {
    CheckpointBuilder builder({.dtype = "F16"});
    builder.tensor("model.embed_tokens.weight").values[0] = 1.0f + 0x1p-10f;
    write(builder);
    const auto exact = pack(in(), {.hub_f32 = true});
    float first = 0;
    tensor_to_float(*exact->tensor("model.embed_tokens.weight"), 0, {&first, 1});
    EXPECT_EQ(first, 1.0f + 0x1p-10f);
    warned("stored as f32");
    pack(in(), {.hub_f32 = false});
    warned("rounded to bf16");
}

TEST_F(PackerSilenceTest, FolderOfPicklesIsNamedAsSuch) {
    write_plain();
    fs::remove(in() / "model.safetensors");
    test::write_file(in() / "pytorch_model-00001-of-00002.bin", "PK");
    refused({"pytorch_model-00001-of-00002.bin", "pickles", "safetensors"});
}

TEST_F(PackerSilenceTest, SeveralGgufModelsAreNamed) {
    fs::create_directories(in());
    for (const char* name : {"a-Q4_K_M.gguf", "a-Q8_0.gguf", "b-00002-of-00002.gguf"})
        test::write_file(in() / name, "GGUF");
    refused({"2 GGUF models", "a-Q4_K_M.gguf", "a-Q8_0.gguf"});
    fs::remove(in() / "a-Q8_0.gguf");
    refused({"a-Q4_K_M.gguf", "truncated"});
}

}  // namespace
}  // namespace moex
