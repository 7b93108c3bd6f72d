// Tests that packages from untrusted sources are opened safely. Their manifest may have any
// contents.
#include "hub/model/package/manifest.h"

#include <random>

#include <gtest/gtest.h>

#include "hub/model/pack/packer.h"
#include "hub/model/package/package.h"
#include "hub/model/package/safetensors.h"
#include "tests/support/checkpoint_builder.h"

namespace moex {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class ManifestTest : public testing::Test {
  protected:
    ManifestTest() {
        ThreadPool threads(1);
        test::CheckpointBuilder{test::CheckpointOptions{}}.write(folder_ / "in");
        const auto report = pack_checkpoint(folder_ / "in", folder_ / "out", {}, threads, {});
        EXPECT_TRUE(report.ok());
        good_ = test::read_file(folder_ / "out/manifest.json");
    }
    std::string open_error(const std::string& manifest) {
        test::write_file(folder_ / "out/manifest.json", manifest);
        const auto package = ModelPackage::open(folder_ / "out");
        return package.ok() ? "" : package.error().message;
    }
    test::TempFolder folder_{"manifest"};
    std::string good_;
};

TEST_F(ManifestTest, ComesBackAsItWas) {
    const auto manifest = parse_manifest(good_, "m");
    ASSERT_TRUE(manifest.ok()) << manifest.error().message;
    EXPECT_EQ(manifest_to_json(*manifest), good_);
    const json object = json::parse(good_);
    for (const char* reserved : {"signatures", "default_vectors", "estimator", "shadow"}) {
        ASSERT_TRUE(object.contains(reserved)) << reserved;
        EXPECT_TRUE(object[reserved].is_null()) << reserved;
    }
}

TEST_F(ManifestTest, FormOfEmbeddingsComesBack) {
    auto manifest = *parse_manifest(good_, "m");
    EXPECT_EQ(manifest.embedding, EmbeddingForm{});
    for (const EmbeddingForm& form :
         {EmbeddingForm{Pooling::last, true}, EmbeddingForm{Pooling::first, false},
          EmbeddingForm{Pooling::mean, false}}) {
        manifest.embedding = form;
        const auto again = parse_manifest(manifest_to_json(manifest), "m");
        ASSERT_TRUE(again.ok()) << again.error().message;
        EXPECT_EQ(again->embedding, form);
    }
    json bad = json::parse(good_);
    for (const json& value : {json(7), json::object(), json{{"pooling", "median"}},
                              json{{"pooling", "last"}, {"normalize", "no"}}}) {
        bad["embedding"] = value;
        EXPECT_FALSE(parse_manifest(bad.dump(), "m").ok()) << value;
    }
}

TEST_F(ManifestTest, HostileFieldsAreRefusedByName) {
    struct Case {
        const char* pointer;
        json value;
        const char* message;
    };
    const std::string hash(64, 'a');

    const Case table[] = {
        {"/format", "zip", "format"},
        {"/format_version", 2, "hub_dtype"},
        {"/format_version", 4, "format_version is 4"},
        {"/format_version", "1", "format_version"},
        {"/name", "", "name"},
        {"/name", "a b", "name"},
        {"/name", std::string(5000, 'a'), "name"},
        {"/config", 5, "config"},
        {"/config/hidden_size", 0, "hidden_size"},
        {"/config/hidden_size", 4294967296u * 2, "hidden_size"},
        {"/config/hidden_size", -1, "hidden_size"},
        {"/config/num_layers", 1000000, "num_layers"},
        {"/config/num_layers", 4, "layer_is_moe"},
        {"/config/layer_is_moe", json::array({1, 2, 1}), "layer_is_moe"},
        {"/config/layer_is_moe", json::array({1, 1, 1}), "experts[1]"},
        {"/config/layer_is_moe", json::array({0, 0, 0}), "MoE"},
        {"/config/num_experts", 5, "experts[0]"},
        {"/config/vocab_size", 97, "model.embed_tokens.weight"},
        {"/config/head_dim", 24, "q_proj"},
        {"/config/tied_embeddings", true, "tensors, wanted"},
        {"/config/architecture", "gpt", "gpt"},
        {"/config/rms_norm_eps", "small", "rms_norm_eps"},
        {"/quantization", nullptr, "quantization"},
        {"/quantization/expert_dtype", "int2", "int2"},
        {"/quantization/group_size", 0, "group_size"},
        {"/quantization/group_size", 48, "group_size"},
        {"/quantization/group_size", 64, "group_size"},
        {"/quantization/group_size", "32", "group_size"},
        {"/generation/eos_token_ids", json::array({1000}), "eos_token_id"},
        {"/generation/temperature", -1, "temperature"},
        {"/hub/bytes", 17, "17"},
        {"/hub/bytes", -17, "hub"},
        {"/hub/bytes", 1e300, "hub"},
        {"/hub/sha256", "../../../../etc/passwd", "64 hex"},
        {"/files", {{"../../etc/passwd", {{"sha256", hash}, {"bytes", 1}}}}, "files names"},
        {"/files", {{"tokenizer.json", {{"sha256", hash}, {"bytes", 1}}}}, "tokenizer.json"},
        {"/files", {{"tokenizer.json", {{"sha256", hash}, {"bytes", 1ull << 60}}}}, "at most"},
        {"/experts", json::array(), "experts"},
        {"/experts", 7, "experts"},
        {"/experts/0", nullptr, "experts[0]"},
        {"/experts/0", json::array({hash}), "1 hashes"},
        {"/experts/1", json::array(), "experts[1]"},
        {"/experts/0/0", "../../../../../../../../../../../../../../../../etc/passwd/aaaaaaa",
         "experts[0][0]"},
        {"/experts/0/0", std::string(63, 'a'), "experts[0][0]"},
        {"/experts/0/0", std::string(64, 'g'), "experts[0][0]"},
        {"/experts/0/0", 3, "experts[0][0]"},
    };

    for (const Case& c : table) {
        json object = json::parse(good_);
        object[json::json_pointer(c.pointer)] = c.value;
        const std::string message = open_error(object.dump());
        EXPECT_NE(message.find(c.message), std::string::npos)
            << c.pointer << " = " << c.value.dump().substr(0, 80) << ": \"" << message << "\"";
        EXPECT_LT(message.size(), 600u) << c.pointer;
    }

    EXPECT_EQ(open_error(good_), "");
}

TEST_F(ManifestTest, MissingFieldsAreRefused) {
    const json good = json::parse(good_);
    for (const auto& [key, value] : good.items()) {
        if (value.is_null()) continue;  // a reserved field may be absent from the manifest
        json object = good;
        object.erase(key);
        EXPECT_NE(open_error(object.dump()), "") << key;
    }
}

TEST_F(ManifestTest, TextThatIsNoManifestIsRefused) {
    for (const std::string& text :
         {std::string(), std::string("{"), std::string("[]"), std::string("null"),
          std::string(1000, '['), std::string("\xff\xfe")})
        EXPECT_NE(open_error(text), "") << text.substr(0, 20);
    for (std::size_t size = 0; size + 2 < good_.size(); size += 97)
        EXPECT_NE(open_error(good_.substr(0, size)), "") << size;
}

TEST_F(ManifestTest, RandomDamageNeverCrashes) {
    const std::uint64_t seed = 20240607;
    std::mt19937_64 random(seed);
    for (int i = 0; i < 2000; ++i) {
        std::string damaged = good_;
        for (int k = 0; k < 1 + i % 4; ++k)
            damaged[random() % damaged.size()] = static_cast<char>(random());
        const auto manifest = parse_manifest(damaged, "m");
        if (!manifest.ok()) {
            EXPECT_FALSE(manifest.error().message.empty()) << "seed " << seed;
        }
    }
}

// The engine reads weights directly from the mapped file, so the tensors must be aligned.
TEST_F(ManifestTest, TensorsAtOddBytesAreRefused) {
    const std::string file = test::read_file(folder_ / "out/hub.safetensors");
    const std::string header(*safetensors_header_of(as_byte_view(file), "f"));
    for (const std::size_t pad : {1u, 2u, 3u, 4u}) {
        const std::string hub = test::raw_safetensors(header + std::string(pad, ' '),
                                                      file.substr(8 + header.size()));
        test::write_file(folder_ / "out/hub.safetensors", hub);
        json object = json::parse(good_);
        object["hub"]["bytes"] = hub.size();

        const std::string message = open_error(object.dump());
        if (pad == 2 || pad == 4) {
            EXPECT_EQ(message, "") << pad;  // all are bf16
        } else {
            EXPECT_NE(message.find("wanted a multiple of 2"), std::string::npos)
                << pad << ": " << message;
        }
    }
}

TEST_F(ManifestTest, WrongFoldersAreExplained) {
    EXPECT_NE(
        ModelPackage::open(folder_ / "in").error().message.find("a checkpoint, not a package"),
        std::string::npos);
    EXPECT_NE(ModelPackage::open(folder_ / "nowhere").error().message.find("not found"),
              std::string::npos);
    fs::resize_file(folder_ / "out/hub.safetensors", 100);
    EXPECT_NE(ModelPackage::open(folder_ / "out").error().message.find("100 bytes"),
              std::string::npos);
}

}  // namespace
}  // namespace moex
