#include "hub/model/pack/packer.h"
#include "hub/model/pack/synth.h"

#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "hub/model/config_json.h"
#include "hub/model/pack/quantize.h"
#include "hub/model/package/package.h"
#include "hub/model/package/verify.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using test::CheckpointBuilder;
using test::CheckpointOptions;
using test::TempFolder;
namespace fs = std::filesystem;

class PackerTest : public testing::Test {
  protected:
    fs::path checkpoint(const std::string& name, const CheckpointOptions& options) {
        CheckpointBuilder(options).write(folder_ / name);
        return folder_ / name;
    }
    // Packs a checkpoint, verifies the package and opens it.
    std::shared_ptr<const ModelPackage> pack(const fs::path& checkpoint, const std::string& out,
                                             const PackOptions& options = {}) {
        const auto report = pack_checkpoint(checkpoint, folder_ / out, options, threads_, {});
        EXPECT_TRUE(report.ok()) << report.error().message;
        if (!report.ok()) return nullptr;

        report_ = *report;
        const Status verified = verify_package(folder_ / out, {});
        EXPECT_TRUE(verified.ok()) << verified.error().message;
        auto package = ModelPackage::open(folder_ / out);
        EXPECT_TRUE(package.ok()) << package.error().message;

        return package.ok() ? *package : nullptr;
    }
    static std::vector<float> floats_of(const ModelPackage& package, std::string_view name) {
        const auto tensor = package.tensor(name);
        EXPECT_TRUE(tensor.ok()) << name;
        std::vector<float> values(tensor->num_elements());
        tensor_to_float(*tensor, 0, values);
        return values;
    }

    TempFolder folder_{"packer"};
    ThreadPool threads_{2};
    PackReport report_;
};

TEST_F(PackerTest, PackageHoldsWhatTheCheckpointHeld) {
    const CheckpointOptions options{.attention_bias = true, .num_shards = 3};
    CheckpointBuilder builder(options);
    const auto package = pack(checkpoint("in", options), "out",
                              {.expert_dtype = ExpertDtype::f32, .name = "tiny-test"});
    ASSERT_TRUE(package);
    EXPECT_EQ(package->name(), "tiny-test");
    EXPECT_EQ(package->expert_dtype(), ExpertDtype::f32);

    EXPECT_EQ(package->expert_shape(), (ExpertShape{64, 32, 0}));
    EXPECT_EQ(package->config().layer_is_moe(), (std::vector<std::uint8_t>{1, 0, 1}));
    EXPECT_DOUBLE_EQ(package->config().layers[0].rope.theta, 50000.0);
    EXPECT_EQ(package->generation_defaults().eos_token_ids, std::vector<std::uint32_t>{7});

    for (const char* name :
         {"model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.down_proj.weight",
          "model.layers.2.mlp.gate.weight", "model.layers.0.self_attn.q_proj.bias"})
        EXPECT_EQ(floats_of(*package, name), builder.tensor(name).values) << name;

    for (const std::uint32_t layer : {0u, 2u}) {
        for (std::uint32_t expert = 0; expert < 4; ++expert) {
            const auto blob = package->blob(layer, expert);
            ASSERT_TRUE(blob.ok()) << blob.error().message;
            const auto view = view_expert_blob(*blob, package->expert_shape(), ExpertDtype::f32);
            ASSERT_TRUE(view.ok()) << view.error().message;

            const std::string at = text("model.layers.", layer, ".mlp.experts.", expert, ".");
            const auto same = [&](const std::byte* data, const std::string& name) {
                const auto& wanted = builder.tensor(at + name).values;
                EXPECT_EQ(std::memcmp(data, wanted.data(), wanted.size() * 4), 0) << at << name;
            };

            same(view->gate_up_codes, "gate_proj.weight");
            same(view->gate_up_codes + 32 * 64 * 4, "up_proj.weight");
            same(view->down_codes, "down_proj.weight");
        }
    }

    EXPECT_FALSE(package->tensor("model.layers.0.mlp.experts.0.up_proj.weight").ok());
    EXPECT_FALSE(package->tokenizer_file("tokenizer.json"));
    ASSERT_EQ(report_.warnings.size(), 1u);
    EXPECT_NE(report_.warnings[0].find("no tokenizer.json"), std::string::npos);
    EXPECT_EQ(report_.num_blobs, 8u);
    EXPECT_FALSE(fs::exists(folder_ / "out/.pack-state"));
}

TEST_F(PackerTest, Int4BlobsHoldTheQuantisedRows) {
    CheckpointOptions options;
    CheckpointBuilder builder(options);
    const auto package = pack(checkpoint("in", options), "out");
    ASSERT_TRUE(package);
    // 128 and 64 do not divide the intermediate size 32
    EXPECT_EQ(package->expert_shape().group_size, 32u);
    const auto view = view_expert_blob(*package->blob(2, 3), package->expert_shape(),
                                       ExpertDtype::int4);

    ASSERT_TRUE(view.ok());
    std::vector<std::uint32_t> codes(64 / 8), scale_zero(64 / 32);
    const auto& up = builder.tensor("model.layers.2.mlp.experts.3.up_proj.weight").values;
    ASSERT_TRUE(
        quantize_int4_row(std::span(up).subspan(5 * 64, 64), 32, codes.data(), scale_zero.data()));
    EXPECT_EQ(std::memcmp(view->gate_up_codes + (32 + 5) * 32, codes.data(), 32), 0);
    EXPECT_EQ(std::memcmp(view->gate_up_scale_zero + (32 + 5) * 8, scale_zero.data(), 8), 0);
}

TEST_F(PackerTest, ElementTypesAndSpellingsOfTheSameWeightsGiveTheSameBlobs) {
    const auto reference = pack(checkpoint("bf16", {}), "out-bf16", {.name = "m"});
    ASSERT_TRUE(reference);
    const CheckpointOptions variants[] = {{.dtype = "F32"},
                                          {.fused = true},
                                          {.newer_config = true, .num_shards = 4},
                                          {.dtype = "F32", .fused = true, .num_shards = 2}};

    int index = 0;
    for (const CheckpointOptions& options : variants) {
        const std::string name = text("variant-", index++);
        const auto package = pack(checkpoint(name, options), "out-" + name, {.name = "m"});
        ASSERT_TRUE(package);
        for (const std::uint32_t layer : {0u, 2u})
            for (std::uint32_t expert = 0; expert < 4; ++expert)
                EXPECT_EQ(package->blob_hash(layer, expert), reference->blob_hash(layer, expert))
                    << name;

        EXPECT_EQ(floats_of(*package, "model.embed_tokens.weight"),
                  floats_of(*reference, "model.embed_tokens.weight"))
            << name;
    }
}

TEST_F(PackerTest, F16WeightsAreReadAndTheSensitiveOnesStayPrecise) {
    CheckpointBuilder builder({.dtype = "F16"});
    // The f16 weight is 1 + 2^-10, which bf16 would round to 1.
    builder.tensor("model.norm.weight").values[0] = half_to_float(0x3c01);
    builder.tensor("model.layers.0.mlp.experts.0.up_proj.weight").values[0] = half_to_float(0x3c01);
    builder.write(folder_ / "in");
    const auto package = pack(folder_ / "in", "out", {.expert_dtype = ExpertDtype::f32});
    ASSERT_TRUE(package);

    EXPECT_EQ(package->tensor("model.norm.weight")->dtype, TensorDtype::f32);
    EXPECT_EQ(package->tensor("model.embed_tokens.weight")->dtype, TensorDtype::bf16);
    EXPECT_EQ(floats_of(*package, "model.norm.weight")[0], 1.0f + 0x1p-10f);
    float up = 0;
    std::memcpy(&up, package->blob(0, 0)->data() + 32 * 64 * 4, 4);
    EXPECT_EQ(up, 1.0f + 0x1p-10f);
    const auto precise = pack(folder_ / "in", "precise", {.hub_f32 = true});

    ASSERT_TRUE(precise);
    EXPECT_EQ(precise->tensor("model.embed_tokens.weight")->dtype, TensorDtype::f32);
}

TEST_F(PackerTest, TiedEmbeddingsNeedNoHeadAndUntiedOnesDo) {
    const auto tied = pack(checkpoint("tied", {.tied = true}), "out-tied");
    ASSERT_TRUE(tied);
    EXPECT_FALSE(tied->tensor("lm_head.weight").ok());
    const auto untied = pack(checkpoint("untied", {.tied = false}), "out-untied");
    ASSERT_TRUE(untied);
    EXPECT_TRUE(untied->tensor("lm_head.weight").ok());
}

TEST_F(PackerTest, ThreadsDoNotChangeAByte) {
    const fs::path in = checkpoint("in", {.num_experts = 16});
    ThreadPool one(1), many(7);
    for (auto* pool : {&one, &many})
        ASSERT_TRUE(
            pack_checkpoint(in, folder_ / text("out-", pool->num_threads()), {}, *pool, {}).ok());
    EXPECT_EQ(test::read_file(folder_ / "out-1/manifest.json"),
              test::read_file(folder_ / "out-7/manifest.json"));
}

TEST_F(PackerTest, EqualExpertsAreOneFile) {
    CheckpointBuilder builder{CheckpointOptions{}};
    for (const char* part : {"gate_proj", "up_proj", "down_proj"})
        builder.tensor(text("model.layers.0.mlp.experts.1.", part, ".weight")).values =
            builder.tensor(text("model.layers.2.mlp.experts.3.", part, ".weight")).values;

    builder.write(folder_ / "in");
    const auto package = pack(folder_ / "in", "out");
    ASSERT_TRUE(package);
    EXPECT_EQ(package->blob_hash(0, 1), package->blob_hash(2, 3));
    EXPECT_EQ(report_.num_blobs, 7u);
}

TEST_F(PackerTest, ProgressGrowsToTheTotal) {
    std::uint64_t last = 0, total = 0, events = 0;
    const auto report = pack_checkpoint(checkpoint("in", {}), folder_ / "out", {}, threads_,
                                        [&](const PackProgress& progress) {
                                            EXPECT_GE(progress.done_bytes, last);
                                            EXPECT_LE(progress.done_bytes, progress.total_bytes);
                                            last = progress.done_bytes;
                                            total = progress.total_bytes;
                                            ++events;
                                        });

    ASSERT_TRUE(report.ok());
    EXPECT_EQ(last, total);
    EXPECT_EQ(total, report->input_bytes);
    EXPECT_GT(events, 8u);
}

TEST_F(PackerTest, VerifyFindsAnyFlippedByte) {
    ASSERT_TRUE(pack(checkpoint("in", {}), "out"));
    std::vector<fs::path> files{folder_ / "out/hub.safetensors"};
    for (const auto& entry : fs::directory_iterator(folder_ / "out/weights"))
        files.push_back(entry.path());

    for (const fs::path& path : files) {
        const std::string good = test::read_file(path);
        std::string bad = good;
        bad[bad.size() - 5] ^= 0x10;
        test::write_file(path, bad);
        const Status status = verify_package(folder_ / "out", {});
        ASSERT_FALSE(status.ok()) << path;
        EXPECT_EQ(status.error().code, ErrorCode::hash_mismatch);

        EXPECT_NE(status.error().message.find(path.filename().string()), std::string::npos)
            << status.error().message;
        test::write_file(path, good);
    }

    EXPECT_TRUE(verify_package(folder_ / "out", {}).ok());
    fs::resize_file(files[1], 100);
    EXPECT_NE(verify_package(folder_ / "out", {}).error().message.find("100 bytes"),
              std::string::npos);
    EXPECT_NE(ModelPackage::open(folder_ / "out").error().message.find("100 bytes"),
              std::string::npos);
}

// An operator may serve the expert blobs from another machine. The package then opens without
// blobs, and code that computes with blobs on this machine reports that they are missing.
TEST_F(PackerTest, PackagesOpenWithoutTheirBlobs) {
    const auto whole = pack(checkpoint("in", {}), "out");
    ASSERT_TRUE(whole);
    EXPECT_TRUE(whole->holds_all_blobs() && whole->require_all_blobs().ok());
    EXPECT_EQ(whole->num_blobs(), 8u);
    fs::remove(whole->blob_path(whole->blob_hash(2, 1)));

    for (const std::uint32_t missing : {1u, 8u}) {
        if (missing == 8) fs::remove_all(folder_ / "out/weights");
        const auto opened = ModelPackage::open(folder_ / "out");
        ASSERT_TRUE(opened.ok()) << opened.error().message;
        const ModelPackage& package = **opened;
        EXPECT_FALSE(package.holds_all_blobs());
        EXPECT_EQ(package.num_missing_blobs(), missing);
        EXPECT_FALSE(package.has_blob(package.blob_hash(2, 1)));

        EXPECT_EQ(package.has_blob(package.blob_hash(0, 0)), missing == 1);
        EXPECT_EQ(package.blob(2, 1).error().code, ErrorCode::not_found);
        EXPECT_EQ(package.blob(0, 0).ok(), missing == 1);
        for (const Status& status :
             {package.require_all_blobs(), verify_package(folder_ / "out", {})}) {
            ASSERT_FALSE(status.ok());
            EXPECT_NE(status.error().message.find(text(missing, " of 8 expert blobs are missing")),
                      std::string::npos)
                << status.error().message;
        }
    }
}

TEST_F(PackerTest, BlobsOfAllThreadsAreOneMap) {
    const auto package = pack(checkpoint("in", {}), "out");
    ASSERT_TRUE(package);
    std::vector<const std::byte*> seen(64);
    threads_.parallel_for(seen.size(), 1, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) seen[i] = package->blob(0, i % 4)->data();
    });

    for (std::size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i], package->blob(0, i % 4)->data());
        EXPECT_EQ(seen[i], package->blob(package->blob_hash(0, i % 4))->data());
    }
}

TEST_F(PackerTest, TextFilesAreCopiedUnchanged) {
    const fs::path in = checkpoint("in", {});
    const std::string generation =
        R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, )"
        R"("eos_token_id": [5, 9]})";
    test::write_file(in / "generation_config.json", generation);
    const auto package = pack(in, "out");
    ASSERT_TRUE(package);
    EXPECT_EQ(package->tokenizer_file("generation_config.json"), generation);

    const GenerationDefaults& defaults = package->generation_defaults();
    EXPECT_TRUE(defaults.do_sample);
    EXPECT_DOUBLE_EQ(defaults.temperature, 0.6);
    EXPECT_DOUBLE_EQ(defaults.top_p, 0.95);
    EXPECT_EQ(defaults.sample_top_k, 20u);
    EXPECT_EQ(defaults.eos_token_ids, (std::vector<std::uint32_t>{5, 9}));
    EXPECT_EQ(defaults.min_p, 0.0);

    EXPECT_EQ(defaults.repetition_penalty, 1.0);
}

TEST_F(PackerTest, SamplingDefaultsReachThePackage) {
    const fs::path in = checkpoint("in", {});
    test::write_file(
        in / "generation_config.json",
        R"({"do_sample": true, "min_p": 0.05, "repetition_penalty": 1.1, "top_k": null,)"
        R"( "presence_penalty": 1.5, "frequency_penalty": -0.5})");
    const auto package = pack(in, "out");
    ASSERT_TRUE(package);
    EXPECT_DOUBLE_EQ(package->generation_defaults().min_p, 0.05);

    EXPECT_DOUBLE_EQ(package->generation_defaults().repetition_penalty, 1.1);
    EXPECT_DOUBLE_EQ(package->generation_defaults().presence_penalty, 1.5);
    EXPECT_DOUBLE_EQ(package->generation_defaults().frequency_penalty, -0.5);
    // generation_config.json has no eos_token_id, so the id of config.json is used.
    EXPECT_EQ(package->generation_defaults().eos_token_ids, std::vector<std::uint32_t>{7});
    for (const char* bad :
         {R"({"repetition_penalty": 0})", R"({"min_p": 1.5})", R"({"top_k": 20.5})",
          R"({"presence_penalty": 3})", R"({"frequency_penalty": "much"})"}) {
        test::write_file(in / "generation_config.json", bad);
        EXPECT_FALSE(pack_checkpoint(in, folder_ / "bad", {}, threads_, {}).ok()) << bad;
    }
}

// The file with the chat template takes precedence over the template in tokenizer_config.json, as
// in transformers.
TEST_F(PackerTest, ChatTemplateFileWins) {
    const fs::path in = checkpoint("in", {});
    test::write_file(in / "chat_template.jinja", "from the file");
    const auto template_of = [&](const char* out) {
        const auto package = pack(in, out);
        return package ? nlohmann::json::parse(
                             *package->tokenizer_file("tokenizer_config.json"))["chat_template"]
                       : nlohmann::json();
    };

    EXPECT_EQ(template_of("alone"), "from the file");
    test::write_file(in / "tokenizer_config.json",
                     R"({"eos_token": "x", "chat_template": "from the configuration"})");
    EXPECT_EQ(template_of("both"), "from the file");
    const std::string same = R"({"chat_template":   "from the file"})";
    test::write_file(in / "tokenizer_config.json", same);
    EXPECT_EQ(template_of("same"), "from the file");

    EXPECT_EQ(test::read_file(folder_ / "same/tokenizer_config.json"), same);
}

TEST_F(PackerTest, SentencePieceModelBecomesTokenizerJson) {
    const fs::path in = checkpoint("in", {.vocab_size = 640});
    fs::copy_file(repository() / "tests/golden/tokenizers/bpe.model", in / "tokenizer.model");
    const auto package = pack(in, "out");
    ASSERT_TRUE(package);
    ASSERT_TRUE(package->tokenizer_file("tokenizer.json"));
    const auto tokenizer = Tokenizer::load(*package->tokenizer_file("tokenizer.json"), "");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_EQ((*tokenizer)->encode_prompt("the"), (std::vector<TokenId>{1, 263}));
}

TEST_F(PackerTest, UnsupportedTokenizerLeavesTokenIds) {
    const fs::path in = checkpoint("in", {});
    test::write_file(in / "tokenizer.json", R"({"model": {"type": "WordPiece"}, "decoder": {}})");
    const auto package = pack(in, "out");
    ASSERT_TRUE(package);
    EXPECT_FALSE(package->tokenizer_file("tokenizer.json"));
    ASSERT_EQ(report_.warnings.size(), 1u);
    EXPECT_NE(report_.warnings[0].find("WordPiece"), std::string::npos);
    EXPECT_NE(report_.warnings[0].find("token ids only"), std::string::npos);
}

TEST_F(PackerTest, SynthMakesThePackageOfItsShapeTwice) {
    const auto config = synth_shape("tiny");
    ASSERT_TRUE(config.ok());
    for (const char* out : {"a", "b"})
        ASSERT_TRUE(synth_package(*config, "tiny", 5, folder_ / out, {}, threads_, {}).ok());
    ASSERT_TRUE(synth_package(*config, "tiny", 6, folder_ / "c", {}, threads_, {}).ok());
    EXPECT_TRUE(verify_package(folder_ / "a", {}).ok());
    EXPECT_EQ(test::read_file(folder_ / "a/manifest.json"),
              test::read_file(folder_ / "b/manifest.json"));

    EXPECT_NE(test::read_file(folder_ / "a/manifest.json"),
              test::read_file(folder_ / "c/manifest.json"));
    const auto package = ModelPackage::open(folder_ / "a");
    ASSERT_TRUE(package.ok()) << package.error().message;
    for (const float norm : floats_of(**package, "model.norm.weight")) EXPECT_EQ(norm, 1.0f);

    // Check that the embeddings and an expert have the documented standard deviation.
    const auto deviation = [](std::span<const float> values) {
        double squares = 0;
        for (const float value : values) squares += double{value} * value;
        return std::sqrt(squares / static_cast<double>(values.size()));
    };

    EXPECT_NEAR(deviation(floats_of(**package, "model.embed_tokens.weight")), 0.02, 0.001);
    const auto view = view_expert_blob(*(*package)->blob(1, 7), (*package)->expert_shape(),
                                       ExpertDtype::int4);

    std::vector<float> row(64);
    double squares = 0;
    for (std::uint32_t r = 0; r < 64; ++r) {
        dequantize_int4_row(
            reinterpret_cast<const std::uint32_t*>(view->gate_up_codes) + r * 8,
            reinterpret_cast<const std::uint32_t*>(view->gate_up_scale_zero) + r * 2, 64, 32,
            row.data());
        squares += std::pow(deviation(row), 2) / 64;
    }

    EXPECT_NEAR(std::sqrt(squares), 0.02, 0.002);
}

TEST_F(PackerTest, SynthShapesAreWholeAndCanBeShortened) {
    for (const char* shape :
         {"bench-moe", "qwen3-30b-a3b", "paper", "tiny", "many-experts", "demo", "tiny-hybrid",
          "gpt-oss-20b", "glm-4.5-air", "qwen3-next-80b-a3b", "qwen3.6-35b-a3b", "qwen3-0.6b"}) {
        const auto config = synth_shape(shape);
        ASSERT_TRUE(config.ok()) << shape;
        EXPECT_TRUE(parse_model_config(to_json(*config)).ok()) << shape;
    }

    EXPECT_NE(synth_shape("huge").error().message.find("bench-moe"), std::string::npos);
    ASSERT_TRUE(synth_package(with_num_layers(*synth_shape("demo"), 1), "demo-1", 1,
                              folder_ / "demo-1", {}, threads_, {})
                    .ok());
    EXPECT_EQ((*ModelPackage::open(folder_ / "demo-1"))->expert_blob_bytes(), 156'672u);
}

}  // namespace
}  // namespace moex
