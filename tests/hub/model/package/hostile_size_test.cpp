// Tests files that are designed to be slow. For any contents of a checkpoint or a package, pack and
// open must answer within the 3 s of the requirement. The time is measured in processor seconds,
// with a margin for slow machines. A quadratic algorithm would take minutes here.
#include <ctime>
#include <functional>

#include <gtest/gtest.h>

#include "hub/model/pack/packer.h"
#include "hub/model/package/package.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using test::CheckpointBuilder;
using test::raw_safetensors;
using test::TempFolder;
using test::write_file;
namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double seconds_max = 120;
#else
constexpr double seconds_max = 10;
#endif

// Returns a text with `count` items: "OPEN item(0),item(1),... CLOSE".
std::string many(std::size_t count, const std::string& open,
                 const std::function<std::string(std::size_t)>& item, const std::string& close) {
    std::string out = open;
    for (std::size_t i = 0; i < count; ++i) {
        if (i > 0) out += ',';
        out += item(i);
    }
    return out + close;
}
std::string empty_tensor(std::size_t i) {
    return text("\"tensor.", i, R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
}
std::string member_0(std::size_t i) { return text("\"k", i, "\":0"); }

class HostileSizeTest : public testing::Test {
  protected:
    void SetUp() override { CheckpointBuilder{test::CheckpointOptions{}}.write(folder_ / "in"); }
    // Packs the checkpoint in the folder "in" within bounded time. Returns the error, or "" on
    // success.
    std::string pack(const char* what) {
        return timed(what, [&] {
            const auto report = pack_checkpoint(folder_ / "in", folder_ / "out", {}, threads_, {});
            return report.ok() ? std::string() : report.error().message;
        });
    }
    std::string timed(const char* what, const std::function<std::string()>& work) {
        const std::clock_t start = std::clock();
        std::string message = work();
        const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
        std::printf("%-50s %.2f s\n", what, seconds);
        EXPECT_LT(seconds, seconds_max) << what;
        EXPECT_LT(message.size(), 600u) << what;
        return message;
    }
    TempFolder folder_{"hostile-size"};
    ThreadPool threads_{2};
};

#define EXPECT_SAYS(message, words) EXPECT_NE((message).find(words), std::string::npos) << (message)

TEST_F(HostileSizeTest, SafetensorsHeadersAreReadInTime) {
    const auto with_header = [&](const char* what, const std::string& header) {
        write_file(folder_ / "in/model.safetensors", raw_safetensors(header, ""));
        return pack(what);
    };

    EXPECT_SAYS(with_header("200,000 tensors", many(200'000, "{", empty_tensor, "}")),
                "model.embed_tokens.weight is missing");
    EXPECT_SAYS(with_header("200,000 tensors of one name",
                            many(
                                200'000, "{", [](std::size_t) { return empty_tensor(0); }, "}")),
                "occurs twice");
    EXPECT_SAYS(with_header("1,900,000 numbers", many(1'900'000, "{", member_0, "}")),
                "wanted {dtype");

    EXPECT_SAYS(with_header("3,000,000 values",
                            many(
                                3'000'000, "{\"a\":[", [](std::size_t) { return "0"; }, "]}")),
                "more than 2000000 JSON values");
    EXPECT_SAYS(with_header("a list of 1,900,000 objects",
                            many(
                                1'900'000, "{\"a\":[", [](std::size_t) { return "{}"; }, "]}")),
                "wanted {dtype");

    EXPECT_SAYS(with_header("metadata that is a list", many(
                                                           1'900'000, "{\"__metadata__\":[",
                                                           [](std::size_t) { return "{}"; }, "]}")),
                "__metadata__");
    EXPECT_SAYS(
        with_header(
            "metadata of 1,000,000 strings",
            many(
                1'000'000, "{\"__metadata__\":{",
                [](std::size_t i) { return text('"', std::string(40, 'k'), i, "\":\"\""); }, "}}")),
        "model.embed_tokens.weight is missing");

    EXPECT_SAYS(with_header("one name of 60 MB", "{\"" + std::string(60'000'000, 'n') + "\":0}"),
                "wanted {dtype");
}

TEST_F(HostileSizeTest, IndexAndManyShardsAreReadInTime) {
    fs::remove_all(folder_ / "in");
    CheckpointBuilder({.num_shards = 2}).write(folder_ / "in");
    const fs::path index = folder_ / "in/model.safetensors.index.json";
    const auto entry = [](std::size_t i) {
        return text("\"tensor.", i, "\":\"model-1.safetensors\"");
    };

    write_file(index, many(200'000, "{\"weight_map\":{", entry, "}}"));
    EXPECT_SAYS(pack("index of 200,000 tensors"),
                "tensor.0 is missing, but model.safetensors.index.json puts it there");
    write_file(index, many(
                          200'000, "{\"weight_map\":{",
                          [](std::size_t i) {
                              return text("\"tensor.", i, "\":\"model-", i, ".safetensors\"");
                          },
                          "}}"));

    EXPECT_SAYS(pack("index of 200,000 shards"), "model-0.safetensors: No such file");
    // The index lists one file of 20 MB under many names. The packer must bound the sum of the
    // sizes.
    const auto strings = [](std::size_t i) {
        return text('"', std::string(20, 'k'), i, "\":\"\"");
    };

    write_file(folder_ / "in/many.safetensors",
               raw_safetensors(many(700'000, "{\"__metadata__\":{", strings, "}}"), ""));
    for (int i = 0; i < 100; ++i)
        fs::create_symlink("many.safetensors",
                           folder_ / "in" / text("model-", 100 + i, ".safetensors"));

    write_file(index, many(
                          100, "{\"weight_map\":{",
                          [](std::size_t i) {
                              return text("\"tensor.", i, "\":\"model-", 100 + i, ".safetensors\"");
                          },
                          "}}"));
    EXPECT_SAYS(pack("100 shards of 20 MB headers"), "the headers of all shards may take");
}

TEST_F(HostileSizeTest, TextFilesAreReadInTime) {
    const auto with_file = [&](const char* what, const char* name, const std::string& content) {
        write_file(folder_ / "in" / name, content);
        const std::string message = pack(what);
        if (name == std::string_view("config.json"))
            CheckpointBuilder{test::CheckpointOptions{}}.write(folder_ / "in");
        else
            fs::remove(folder_ / "in" / name);
        return message;
    };

    const std::string keys = many(600'000, "", member_0, ""),
                      objects = many(
                          1'900'000, "[", [](std::size_t) { return "{}"; }, "]");
    const std::string tokenizer =
        R"({"added_tokens":[],"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE",)"
        R"("merges":[],"vocab":{)";
    EXPECT_SAYS(with_file("config.json of 600,000 keys", "config.json", "{" + keys + "}"),
                "config.json");

    EXPECT_SAYS(with_file("config.json with a list of objects", "config.json",
                          R"({"model_type":"qwen3_moe","quantization_config":)" + objects + "}"),
                "quantization_config");
    EXPECT_SAYS(with_file("config.json of 9 MB", "config.json", "{}" + std::string(9u << 20, ' ')),
                "wanted at most 8388608");
    EXPECT_SAYS(with_file("generation_config.json of 600,000 keys", "generation_config.json",
                          "{\"top_k\":-1," + keys + "}"),
                "top_k");

    EXPECT_SAYS(with_file("generation_config.json with a list of objects", "generation_config.json",
                          "{\"eos_token_id\":" + objects + "}"),
                "eos_token_id");
    EXPECT_SAYS(with_file("tokenizer.json of 1,900,000 tokens", "tokenizer.json",
                          tokenizer +
                              many(
                                  1'900'000, "",
                                  [](std::size_t i) { return text("\"t", i, "\":", i); }, "") +
                              "}}}"),
                "at most 1000000");

    EXPECT_SAYS(with_file("tokenizer.json of 1,000,000 tokens", "tokenizer.json",
                          tokenizer +
                              many(
                                  1'000'000, "",
                                  [](std::size_t i) { return text("\"t", i, "\":", i); }, "") +
                              "}}}"),
                "vocab_size");

    EXPECT_SAYS(with_file("tokenizer.json with the last id", "tokenizer.json",
                          tokenizer + "\"a\":16777215}}}"),
                "vocab_size");
    EXPECT_SAYS(with_file("tokenizer.json of 180,000 added tokens", "tokenizer.json",
                          many(
                              180'000,
                              "{\"model\":{\"merges\":[],\"vocab\":{}},\"pre_tokenizer\":{\"type\":"
                              "\"ByteLevel\"},\"added_tokens\":[",
                              [](std::size_t i) {
                                  return text("{\"id\":", i, ",\"content\":\"<", i, ">\"}");
                              },
                              "]}")),
                "vocab_size");

    fs::copy_file(repository() / "static/models/demo/tokenizer.json",
                  folder_ / "in/tokenizer.json");
    EXPECT_SAYS(with_file("tokenizer_config.json of 600,000 keys", "tokenizer_config.json",
                          "{\"added_tokens_decoder\":{" + keys + "}}"),
                "added_tokens_decoder");
}

TEST_F(HostileSizeTest, ManifestIsReadInTime) {
    fs::create_directory(folder_ / "package");
    const auto open = [&](const char* what, const std::string& manifest) {
        write_file(folder_ / "package/manifest.json", manifest);
        return timed(what, [&] { return ModelPackage::open(folder_ / "package").error().message; });
    };

    const std::string keys = many(1'900'000, "", member_0, "");
    EXPECT_SAYS(open("manifest of 1,900,000 keys", "{" + keys + "}"), "not a package manifest");
    ASSERT_EQ(pack("a good checkpoint"), "");
    auto manifest = nlohmann::json::parse(test::read_file(folder_ / "out/manifest.json"));
    auto many_files = manifest;
    many_files["files"] = "FILES";
    std::string with_files = many_files.dump();

    EXPECT_SAYS(open("manifest of 1,900,000 files",
                     with_files.replace(with_files.find("\"FILES\""), 7, "{" + keys + "}")),
                "which no package holds");

    // The manifest names as many blobs as fit into 64 MB. The tensor that is checked first has a
    // wrong shape.
    constexpr std::size_t layers = 220, experts = 4096;
    manifest["config"].update({{"num_layers", layers},
                               {"num_experts", experts},
                               {"layer_is_moe", std::vector<int>(layers, 1)},
                               {"vocab_size", 97}});

    const auto layer = [&](std::size_t l) {
        return many(
            experts, "[",
            [&](std::size_t e) {
                return text('"', std::string(56, 'a'), 10'000'000 + l * experts + e, '"');
            },
            "]");
    };

    manifest["experts"] = "EXPERTS";
    std::string with_experts = manifest.dump();
    with_experts.replace(with_experts.find("\"EXPERTS\""), 9, many(layers, "[", layer, "]"));
    fs::copy_file(folder_ / "out/hub.safetensors", folder_ / "package/hub.safetensors");
    EXPECT_SAYS(open("manifest of 901,120 blobs", with_experts), "model.embed_tokens.weight");
}

}  // namespace
}  // namespace moex
