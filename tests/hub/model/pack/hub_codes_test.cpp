// Tests `pack --hub-dtype`: the contents of hub.safetensors, and the checkpoints that are refused.
#include <cstring>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hub/model/pack/packer.h"
#include "hub/model/package/package.h"
#include "hub/model/package/side_tensors.h"
#include "hub/model/package/verify.h"
#include "protocol/half.h"
#include "protocol/hub_codes.h"
#include "protocol/tensor_format.h"
#include "tests/support/checkpoint_builder.h"

namespace moex {
namespace {

using nlohmann::json;
using test::CheckpointBuilder;
using test::TempFolder;

class HubCodesPackTest : public testing::Test {
  protected:
    std::shared_ptr<const ModelPackage> pack(const test::CheckpointOptions& options, HubDtype dtype,
                                             const std::string& out) {
        const auto in = folder_ / (out + "-in");
        CheckpointBuilder(options).write(in);
        const auto report = pack_checkpoint(in, folder_ / out, {.hub_dtype = dtype}, threads_, {});
        EXPECT_TRUE(report.ok()) << report.error().message;
        if (!report.ok()) return nullptr;
        const Status verified = verify_package(folder_ / out, {});
        EXPECT_TRUE(verified.ok()) << verified.error().message;
        return ModelPackage::open(folder_ / out).value();
    }
    static std::vector<float> floats_of(const ModelPackage& package, std::string_view name) {
        const TensorView tensor = package.tensor(name).value();
        std::vector<float> values(tensor.num_elements());
        tensor_to_float(tensor, 0, values);
        return values;
    }
    std::string open_error(const json& manifest, const std::string& out) {
        test::write_file(folder_ / out / "manifest.json", manifest.dump());
        const auto package = ModelPackage::open(folder_ / out);
        return package.ok() ? "" : package.error().message;
    }

    TempFolder folder_{"hub-codes"};
    ThreadPool threads_{2};
};

TEST_F(HubCodesPackTest, MatricesAreTheCodesOfTheirBf16Weights) {
    // Use a checkpoint with f32 weights, because pack rounds them to bf16 before they become codes.
    const test::CheckpointOptions options{
        .dtype = "F32", .attention_bias = true, .mlp_only_layers = {}};
    const auto plain = pack(options, HubDtype::bf16, "bf16"),
               int8 = pack(options, HubDtype::int8, "int8"),
               int4 = pack(options, HubDtype::int4, "int4");
    ASSERT_TRUE(plain && int8 && int4);

    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight",
                             "model.layers.1.self_attn.o_proj.weight"}) {
        SCOPED_TRACE(name);
        const auto weights = floats_of(*plain, name);
        const TensorView codes = int8->tensor(name).value();
        ASSERT_EQ(codes.dtype, TensorDtype::int8);
        ASSERT_EQ(codes.shape, plain->tensor(name)->shape);
        const std::size_t group = codes.group_size;
        const auto back = floats_of(*int8, name);
        for (std::size_t at = 0; at < weights.size(); at += group) {
            std::vector<std::int8_t> wanted(group);
            const float scale = quantize_int8_group(std::span(weights).subspan(at, group),
                                                    wanted.data());
            EXPECT_EQ(std::memcmp(codes.data.data() + at, wanted.data(), group), 0);
            EXPECT_EQ(std::memcmp(codes.scales.data() + at / group * 4, &scale, 4), 0);
            for (std::size_t k = 0; k < group; ++k)
                EXPECT_NEAR(back[at + k], weights[at + k], scale * 0.501f);
        }
    }

    // With int4 only attention matrices have 4 bits. Embeddings and LM head have the same codes as
    // with int8. Norms, routers and biases are unchanged.
    const char* const q = "model.layers.0.self_attn.q_proj.weight";
    EXPECT_EQ(int4->tensor(q)->dtype, TensorDtype::int4);
    const auto weights = floats_of(*plain, q), back = floats_of(*int4, q);
    for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_NEAR(back[i], weights[i], 0.05) << i;  // the step between codes is about 0.02
    EXPECT_EQ(int4->tensor("lm_head.weight")->dtype, TensorDtype::int8);
    EXPECT_EQ(floats_of(*int4, "lm_head.weight"), floats_of(*int8, "lm_head.weight"));
    for (const char* name : {"model.norm.weight", "model.layers.0.mlp.gate.weight",
                             "model.layers.2.self_attn.q_proj.bias"})
        EXPECT_EQ(floats_of(*int4, name), floats_of(*plain, name)) << name;
    EXPECT_EQ(int8->blob_hash(0, 1), plain->blob_hash(0, 1));
    EXPECT_NE(int8->manifest_sha256(), plain->manifest_sha256());
}

TEST_F(HubCodesPackTest, FileIsAboutHalfAsLarge) {
    const test::CheckpointOptions options{
        .hidden_size = 256, .vocab_size = 512, .mlp_only_layers = {}};
    const auto plain = pack(options, HubDtype::bf16, "bf16"),
               int8 = pack(options, HubDtype::int8, "int8");
    ASSERT_TRUE(plain && int8);
    EXPECT_LT(static_cast<double>(int8->files()[1].size_bytes),
              0.56 * static_cast<double>(plain->files()[1].size_bytes));
}

TEST_F(HubCodesPackTest, ManifestHasAVersionThatOlderHubsRefuse) {
    ASSERT_TRUE(pack({.mlp_only_layers = {}}, HubDtype::int8, "int8"));
    ASSERT_TRUE(pack({.mlp_only_layers = {}}, HubDtype::bf16, "bf16"));
    const json codes = json::parse(test::read_file(folder_ / "int8/manifest.json")),
               plain = json::parse(test::read_file(folder_ / "bf16/manifest.json"));
    EXPECT_EQ(codes["format_version"], 2);
    EXPECT_EQ(codes["quantization"]["hub_dtype"], "int8");
    EXPECT_EQ(plain["format_version"], 1);
    EXPECT_FALSE(plain["quantization"].contains("hub_dtype"));

    const auto changed = [](json object, const char* pointer, const json& value) {
        object[json::json_pointer(pointer)] = value;
        return object;
    };
    const auto expect_refused = [&](const json& manifest, const char* out, const char* message) {
        const std::string found = open_error(manifest, out);
        EXPECT_NE(found.find(message), std::string::npos) << message << ": \"" << found << '"';
    };
    expect_refused(changed(codes, "/format_version", 1), "int8", "hub_dtype");
    expect_refused(changed(codes, "/format_version", 4), "int8", "format_version is 4");
    expect_refused(changed(codes, "/quantization/hub_dtype", "bf16"), "int8", "hub_dtype");
    expect_refused(changed(codes, "/quantization/hub_dtype", 8), "int8", "hub_dtype");
    expect_refused(changed(codes, "/quantization/hub_dtype", "int4"), "int8", "q_proj.weight");
    expect_refused(changed(plain, "/format_version", 2), "bf16", "hub_dtype");

    json both = plain;
    both["format_version"] = 2;
    both["quantization"]["hub_dtype"] = "int8";
    expect_refused(both, "bf16", "embed_tokens.weight is BF16, wanted I8");
    EXPECT_EQ(open_error(codes, "int8"), "");
}

TEST_F(HubCodesPackTest, MatricesWithoutWholeGroupsAreRefusedByName) {
    // writes a checkpoint whose dense layer has rows of 48 weights, which is no multiple of 32
    CheckpointBuilder().write(folder_ / "in");
    const auto report = pack_checkpoint(folder_ / "in", folder_ / "out",
                                        {.hub_dtype = HubDtype::int8}, threads_, {});
    ASSERT_FALSE(report.ok());
    EXPECT_NE(report.error().message.find("model.layers.1.mlp.down_proj.weight is [64, 48]"),
              std::string::npos)
        << report.error().message;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(HubCodesPackTest, WeightsTooLargeForAnF16ScaleAreRefused) {
    CheckpointBuilder builder({.mlp_only_layers = {}});
    builder.tensor("model.layers.2.self_attn.v_proj.weight").values[70] = 2e6f;
    builder.write(folder_ / "in");
    const auto report = pack_checkpoint(folder_ / "in", folder_ / "out",
                                        {.hub_dtype = HubDtype::int4}, threads_, {});
    ASSERT_FALSE(report.ok());
    EXPECT_NE(report.error().message.find("v_proj.weight holds a weight too large"),
              std::string::npos)
        << report.error().message;
}

}  // namespace
}  // namespace moex
