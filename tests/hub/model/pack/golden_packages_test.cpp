// Tests two packages of the repository: the embedded demo package, and the package of the golden
// checkpoint.
#include <cstdlib>

#include <gtest/gtest.h>

#include "hub/model/pack/packer.h"
#include "hub/model/package/manifest.h"
#include "hub/model/package/package.h"
#include "hub/model/package/verify.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
const fs::path source_folder = repository();

TEST(GoldenPackagesTest, EmbeddedDemoIsWholeAndSmall) {
    const fs::path folder = source_folder / "static/models/demo";
    const Status verified = verify_package(folder, {});
    ASSERT_TRUE(verified.ok()) << verified.error().message;
    const auto package = *ModelPackage::open(folder);
    EXPECT_EQ(package->name(), "moex-demo");
    EXPECT_EQ(package->expert_shape(), (ExpertShape{384, 256, 128}));
    EXPECT_EQ(package->expert_blob_bytes(), 156'672u);

    EXPECT_TRUE(package->tokenizer_file("tokenizer.json"));
    EXPECT_EQ(package->generation_defaults().eos_token_ids,
              (std::vector<std::uint32_t>{8191, 8189}));
    std::uint64_t total = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) total += entry.file_size();
    EXPECT_LE(total, 34'000'000u);
}

TEST(GoldenPackagesTest, DemoCheckpointPacksToTheEmbeddedBytes) {
    const char* checkpoint = std::getenv("MOEX_DEMO_CHECKPOINT");
    if (checkpoint == nullptr || *checkpoint == 0)
        GTEST_SKIP() << "SKIPPED: MOEX_DEMO_CHECKPOINT is not set";
    test::TempFolder folder("demo");
    ThreadPool threads;
    const auto report = pack_checkpoint(checkpoint, folder / "out", {.name = "moex-demo"}, threads,
                                        {});

    ASSERT_TRUE(report.ok()) << report.error().message;
    auto embedded = parse_manifest(
        test::read_file(source_folder / "static/models/demo/manifest.json"), "manifest.json");
    ASSERT_TRUE(embedded.ok()) << embedded.error().message;
    EXPECT_EQ(embedded->side_files.size(), 2u);  // side files come from training, not from pack
    embedded->side_files.clear();
    EXPECT_EQ(test::read_file(folder / "out/manifest.json"), manifest_to_json(*embedded));
}

TEST(GoldenPackagesTest, GoldenCheckpointPacksInEveryType) {
    test::TempFolder folder("golden");
    ThreadPool threads(2);
    for (const ExpertDtype dtype : {ExpertDtype::int4, ExpertDtype::bf16, ExpertDtype::f32}) {
        const fs::path out = folder / expert_dtype_name(dtype);
        const auto report = pack_checkpoint(source_folder / "tests/golden/qwen3-tiny", out,
                                            {.expert_dtype = dtype}, threads, {});
        ASSERT_TRUE(report.ok()) << report.error().message;
        const auto package = *ModelPackage::open(out);
        EXPECT_EQ(package->name(), "qwen3-tiny");
        EXPECT_EQ(package->config().layer_is_moe(), (std::vector<std::uint8_t>{0, 1, 0, 1}));

        EXPECT_TRUE(package->config().layers[0].has_qkv_bias);
        EXPECT_EQ(package->config().head_dim, 64u);
        EXPECT_TRUE(verify_package(out, {}).ok());
    }
}

}  // namespace
}  // namespace moex
