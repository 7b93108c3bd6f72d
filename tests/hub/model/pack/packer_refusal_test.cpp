// Tests that the packer refuses bad checkpoints. The error is one sentence that names file, tensor,
// found and wanted values, and the packer leaves no files behind.
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "hub/model/pack/packer.h"
#include "hub/model/package/package.h"
#include "hub/model/package/verify.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using test::CheckpointBuilder;
using test::CheckpointOptions;
using test::TempFolder;
namespace fs = std::filesystem;

class PackerRefusalTest : public testing::Test {
  protected:
    // Packs the checkpoint in the folder "in" and expects an error that contains all `words`. The
    // output folder must not exist afterwards.
    Error refused(std::initializer_list<std::string_view> words, const PackOptions& options = {}) {
        const auto report = pack_checkpoint(folder_ / "in", folder_ / "out", options, threads_, {});
        EXPECT_FALSE(report.ok());
        if (report.ok()) return {ErrorCode::internal, ""};

        const std::string& message = report.error().message;
        for (const std::string_view word : words)
            EXPECT_NE(message.find(word), std::string::npos)
                << "\"" << word << "\" not in: " << message;

        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        EXPECT_LT(message.size(), 600u) << message;
        EXPECT_FALSE(fs::exists(folder_ / "out")) << message;
        return report.error();
    }
    TempFolder folder_{"refusal"};
    ThreadPool threads_{2};
};

TEST_F(PackerRefusalTest, MissingTensorsAreRefused) {
    for (const char* name :
         {"model.embed_tokens.weight", "lm_head.weight", "model.layers.2.self_attn.q_norm.weight",
          "model.layers.1.mlp.down_proj.weight", "model.layers.2.mlp.gate.weight",
          "model.layers.0.mlp.experts.3.up_proj.weight"}) {
        CheckpointBuilder builder{CheckpointOptions{}};
        builder.remove(name);
        builder.write(folder_ / "in");
        refused({name, "missing", "wanted ["});
    }
}

TEST_F(PackerRefusalTest, MissingHalfOfAFusedPairIsRefused) {
    CheckpointBuilder builder({.fused = true});
    builder.remove("model.layers.0.mlp.experts.down_proj");
    builder.write(folder_ / "in");
    refused({"model.layers.0.mlp.experts.down_proj", "missing"});
}

TEST_F(PackerRefusalTest, WrongShapesAreRefused) {
    CheckpointBuilder router{CheckpointOptions{}};
    router.tensor("model.layers.0.mlp.gate.weight").shape = {2, 128};
    router.write(folder_ / "in");
    refused({"model.safetensors", "model.layers.0.mlp.gate.weight", "is [2, 128]", "wants [4, 64]",
             "num_experts, hidden_size"});
    CheckpointBuilder expert{CheckpointOptions{}};
    expert.tensor("model.layers.2.mlp.experts.1.down_proj.weight").shape = {32, 64};

    expert.write(folder_ / "in");
    refused({"experts.1.down_proj", "is [32, 64]", "wants [64, 32]"});
    CheckpointBuilder config{CheckpointOptions{}};
    config.config["num_key_value_heads"] = 4;
    config.write(folder_ / "in");
    refused({"k_proj", "is [32, 64]", "wants [64, 64]", "num_kv_heads"});
}

TEST_F(PackerRefusalTest, NotFiniteWeightsNameTensorAndIndex) {
    struct Case {
        const char* name;
        std::size_t index;
        float value;
        const char* shown;
    };

    for (const Case& c :
         {Case{"model.layers.2.mlp.experts.3.up_proj.weight", 5 * 64 + 7, NAN, "[5, 7]"},
          Case{"model.embed_tokens.weight", 95 * 64 + 63, INFINITY, "[95, 63]"},
          Case{"model.norm.weight", 0, -INFINITY, "[0]"},
          Case{"model.layers.1.mlp.up_proj.weight", 64, NAN, "[1, 0]"}}) {
        CheckpointBuilder builder{CheckpointOptions{}};
        builder.tensor(c.name).values[c.index] = c.value;
        builder.write(folder_ / "in");
        EXPECT_EQ(refused({c.name, c.shown, "finite"}).code, ErrorCode::non_finite);
    }

    for (const char* dtype : {"F16", "F32"}) {
        CheckpointBuilder builder({.dtype = dtype});
        builder.tensor("model.layers.0.mlp.experts.0.down_proj.weight").values[32] = NAN;
        builder.write(folder_ / "in");
        refused({"down_proj", "[1, 0]", "finite"});
    }

    CheckpointBuilder fused({.fused = true});
    fused.tensor("model.layers.2.mlp.experts.gate_up_proj").values[3 * 64 * 64 + 40 * 64 + 9] = NAN;
    fused.write(folder_ / "in");
    refused({"gate_up_proj", "[3, 40, 9]"});
}

TEST_F(PackerRefusalTest, WeightsTooLargeForTheFormatAreRefused) {
    CheckpointBuilder builder({.dtype = "F32"});
    builder.tensor("model.layers.0.mlp.experts.0.gate_proj.weight").values[64 * 3] = 1e30f;
    builder.write(folder_ / "in");
    refused({"gate_proj", "row 3", "too large"});
    CheckpointBuilder rounded({.dtype = "F32"});
    rounded.tensor("lm_head.weight").values[0] = 3.4e38f;
    rounded.write(folder_ / "in");
    refused({"lm_head.weight", "bf16"});
}

TEST_F(PackerRefusalTest, TruncatedShardsAreRefused) {
    for (const std::uint32_t num_shards : {1u, 3u}) {
        CheckpointBuilder({.num_shards = num_shards}).write(folder_ / "in");
        const fs::path shard = folder_ / "in" /
                               (num_shards == 1 ? "model.safetensors" : "model-2.safetensors");

        const std::uint64_t whole = fs::file_size(shard);
        for (const std::uint64_t size : {whole - 1, whole / 2, std::uint64_t{200}, std::uint64_t{8},
                                         std::uint64_t{5}, std::uint64_t{0}}) {
            fs::resize_file(shard, size);
            refused({shard.filename().string(), "truncated"});
        }

        fs::remove_all(folder_ / "in");
    }
}

TEST_F(PackerRefusalTest, WrongIndexIsRefused) {
    CheckpointBuilder builder({.num_shards = 2});
    builder.write(folder_ / "in");

    const fs::path index_path = folder_ / "in/model.safetensors.index.json";
    const auto good = nlohmann::json::parse(test::read_file(index_path));
    const auto patched = [&](const std::string& tensor, const nlohmann::json& file) {
        auto index = good;
        index["weight_map"][tensor] = file;
        test::write_file(index_path, index.dump());
    };

    patched("model.norm.weight", "model-1.safetensors");
    refused({"model.norm.weight", "model-1.safetensors"});
    patched("model.norm.weight", "model-9.safetensors");
    refused({"model-9.safetensors", "No such file"});
    for (const nlohmann::json file :
         {nlohmann::json("../../etc/passwd"), nlohmann::json("/etc/passwd"), nlohmann::json(7),
          nlohmann::json(""), nlohmann::json("..")}) {
        patched("model.norm.weight", file);
        refused({"model.norm.weight", "file name"});
    }

    for (const char* text : {"{}", "[]", "{\"weight_map\": []}", "{\"weight_map\": {}}", "", "{"}) {
        test::write_file(index_path, text);
        refused({"model.safetensors.index.json"});
    }

    test::write_file(index_path, good.dump());
    fs::copy_file(folder_ / "in/model-1.safetensors", folder_ / "in/model-2.safetensors",
                  fs::copy_options::overwrite_existing);
    refused({"is also in"});
}

TEST_F(PackerRefusalTest, UnsupportedElementTypeIsRefused) {
    CheckpointBuilder builder{CheckpointOptions{}};
    builder.write(folder_ / "in");
    std::string file = test::read_file(folder_ / "in/model.safetensors");
    for (std::size_t at = 0; (at = file.find("\"BF16\"", at)) != std::string::npos;)
        file.replace(at, 6, "\"I16\" ");
    test::write_file(folder_ / "in/model.safetensors", file);
    refused({"model.embed_tokens.weight", "I16", "wanted BF16, F16 or F32"});
}

TEST_F(PackerRefusalTest, UnsupportedConfigurationsAreRefused) {
    CheckpointBuilder builder{CheckpointOptions{}};
    builder.config["model_type"] = "mistral";
    builder.write(folder_ / "in");
    refused({"config.json", "mistral", "qwen3_moe"});
    test::write_file(folder_ / "in/config.json", "{\"hidden_size\": 64, \"hidden_size\": 32}");
    refused({"config.json", "hidden_size", "twice"});
    test::write_file(folder_ / "in/config.json", std::string(100000, '['));

    refused({"config.json", "nested"});
    fs::remove(folder_ / "in/config.json");
    refused({"config.json", "No such file"});
    fs::create_directory(folder_ / "in/config.json");
    refused({"config.json", "not a regular file"});
}

// A model with this bias is another model. If the packer ignored the bias, every answer would be
// wrong.
TEST_F(PackerRefusalTest, BiasUnknownToTheConfigurationIsRefused) {
    CheckpointBuilder builder({.attention_bias = true});
    builder.config["attention_bias"] = false;
    builder.write(folder_ / "in");
    refused({"self_attn", ".bias", "no such bias"});
}

TEST_F(PackerRefusalTest, NamedPipesAreNotWaitedFor) {
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
        CheckpointBuilder{CheckpointOptions{}}.write(folder_ / "in");
        fs::remove(folder_ / "in" / name);
        ASSERT_EQ(::mkfifo((folder_ / "in" / name).c_str(), 0600), 0);
        refused({name, "not a regular file"});
        fs::remove(folder_ / "in" / name);
    }
}

TEST_F(PackerRefusalTest, UnsupportedChatTemplatesAreNamedWithTheirFile) {
    CheckpointBuilder({.vocab_size = 8192}).write(folder_ / "in");
    fs::copy_file(repository() / "static/models/demo/tokenizer.json",
                  folder_ / "in/tokenizer.json");
    test::write_file(folder_ / "in/tokenizer_config.json",
                     R"({"chat_template": "a {% extends 'b' %}"})");
    refused({"tokenizer_config.json", "extends", "line 1"});
    test::write_file(folder_ / "in/chat_template.jinja", "\n{% include 'b' %}");
    refused({"chat_template.jinja", "include", "line 2"});
}

TEST_F(PackerRefusalTest, ZeroSizeTensorsAreNoWeights) {
    CheckpointBuilder builder{CheckpointOptions{}};
    builder.tensor("model.norm.weight").shape = {0};
    builder.tensor("model.norm.weight").values.clear();
    builder.write(folder_ / "in");
    refused({"model.norm.weight", "is [0]", "wants [64]"});
}

TEST_F(PackerRefusalTest, FolderWithoutTensorsIsRefused) {
    CheckpointBuilder{CheckpointOptions{}}.write(folder_ / "in");
    fs::remove(folder_ / "in/model.safetensors");
    refused({"model.safetensors.index.json", "model.safetensors"});
}

TEST_F(PackerRefusalTest, GroupSizesThatDoNotDivideAreRefused) {
    CheckpointBuilder{CheckpointOptions{}}.write(folder_ / "in");
    refused({"64", "32", "16"}, {.group_size_max = 16});
}

TEST_F(PackerRefusalTest, UnprintableNamesAreRefused) {
    CheckpointBuilder{CheckpointOptions{}}.write(folder_ / "in");
    for (const char* name : {"two words", "a\nb", "<b>", "\"q\"", "\xff"})
        refused({"name"}, {.name = name});
}

TEST_F(PackerRefusalTest, GenerationConfigOutsideTheVocabularyIsRefused) {
    CheckpointBuilder{CheckpointOptions{}}.write(folder_ / "in");
    test::write_file(folder_ / "in/generation_config.json", R"({"eos_token_id": [7, 96]})");
    refused({"generation_config.json", "eos_token_id", "vocab_size (96)"});
    test::write_file(folder_ / "in/generation_config.json", R"({"temperature": "hot"})");
    refused({"generation_config.json", "temperature", "hot"});
}

TEST_F(PackerRefusalTest, SmallDiskIsReportedBeforeAnyFileIsCreated) {
    // Write a sparse checkpoint with embeddings that are larger than the free space of the disk.
    struct statvfs disk {};
    ASSERT_EQ(::statvfs(folder_.path().c_str(), &disk), 0);
    const std::uint64_t free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    CheckpointBuilder builder({.tied = true});
    const std::uint64_t hidden = 65504, vocab = free_bytes / (2 * hidden) + 1000;
    if (vocab > 1u << 24) GTEST_SKIP() << "SKIPPED: the disk has room for any vocabulary";

    builder.config["hidden_size"] = hidden;
    builder.config["vocab_size"] = vocab;
    builder.write(folder_ / "in");
    nlohmann::json header;
    std::uint64_t end = 0;

    for (const test::TestTensor& tensor : builder.tensors) {
        std::vector<std::uint64_t> shape = tensor.shape;
        for (std::uint64_t& size : shape)
            size = size == 64 && tensor.name.find("self_attn") == std::string::npos ? hidden
                   : size == 96                                                     ? vocab
                                                                                    : size;

        if (tensor.name.ends_with("o_proj.weight"))
            shape = {hidden, 64};
        else if (tensor.name.ends_with("_proj.weight") &&
                 tensor.name.find("self_attn") != std::string::npos)
            shape = {shape[0], hidden};

        std::uint64_t bytes = 2;
        for (const std::uint64_t size : shape) bytes *= size;
        header[tensor.name] = {
            {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
        end += bytes;
    }

    const std::string start = test::raw_safetensors(header.dump(), "");
    test::write_file(folder_ / "in/model.safetensors", start);
    std::error_code error;
    fs::resize_file(folder_ / "in/model.safetensors", start.size() + end, error);
    if (error)
        GTEST_SKIP() << "SKIPPED: no sparse file of " << end << " bytes here: " << error.message();
    EXPECT_EQ(refused({"free"}, {.group_size_max = 32}).code, ErrorCode::no_space);
}

TEST_F(PackerRefusalTest, ForeignOutputFoldersAreRefused) {
    CheckpointBuilder{CheckpointOptions{}}.write(folder_ / "in");
    const auto message = [&](const char* out) {
        const auto report = pack_checkpoint(folder_ / "in", folder_ / out, {}, threads_, {});
        return report.ok() ? std::string() : report.error().message;
    };

    test::write_file(folder_ / "file", "x");
    EXPECT_NE(message("file").find("is a file"), std::string::npos);
    fs::create_directory(folder_ / "full");
    test::write_file(folder_ / "full/notes.txt", "precious");
    EXPECT_NE(message("full").find("notes.txt"), std::string::npos);
    EXPECT_EQ(test::read_file(folder_ / "full/notes.txt"), "precious");
    EXPECT_NE(message("in").find("not empty"), std::string::npos)
        << "a checkpoint is never packed over itself";

    EXPECT_EQ(message("done"), "");
    EXPECT_NE(message("done").find("holds a package already"), std::string::npos);
    EXPECT_TRUE(verify_package(folder_ / "done", {}).ok());
}

TEST_F(PackerRefusalTest, EmptyFolderStaysEmptyAfterBadInput) {
    CheckpointBuilder builder{CheckpointOptions{}};
    builder.tensor("model.norm.weight").values[3] = NAN;
    builder.write(folder_ / "in");
    fs::create_directory(folder_ / "out");
    EXPECT_FALSE(pack_checkpoint(folder_ / "in", folder_ / "out", {}, threads_, {}).ok());
    EXPECT_TRUE(fs::is_empty(folder_ / "out"));
}

}  // namespace
}  // namespace moex
