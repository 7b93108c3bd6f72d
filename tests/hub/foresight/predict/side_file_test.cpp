// Tests the predictors' files in a package: writing, reading, and errors for damaged files.
#include "hub/model/pack/side_file_writer.h"

#include <fstream>

#include "hub/foresight/predict/estimator.h"
#include "hub/model/package/verify.h"
#include "protocol/half.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

class SideFileTest : public testing::Test {
  protected:
    SideFileTest() : folder_("side-file"), path_(folder_.path() / "package") {
        std::filesystem::copy(test::tiny_package()->directory(), path_,
                              std::filesystem::copy_options::recursive);
        const ModelConfig& config = test::tiny_package()->config();
        const std::size_t units = config.num_layers * config.num_experts;
        profile_ = {.num_layers = config.num_layers,
                    .num_experts = config.num_experts,
                    .hidden_size = config.hidden_size,
                    .num_tokens = 640,
                    .uses = std::vector<std::uint64_t>(units, 0),
                    .default_vectors = test::random_floats(units * config.hidden_size, 3)};
        for (std::size_t i = 0; i < units; ++i) profile_.uses[i] = i * i;
    }
    std::shared_ptr<const ModelPackage> open() const {
        auto opened = ModelPackage::open(path_);
        EXPECT_TRUE(opened.ok()) << opened.error().message;
        return opened.ok() ? *opened : nullptr;
    }
    Status write(const std::vector<SideTensor>& tensors) const {
        return write_side_file(path_, SideFile::default_vectors, tensors);
    }
    std::vector<SideTensor> tensors() const {
        return to_side_tensors(profile_, test::tiny_package()->config());
    }

    test::TemporaryFolder folder_;
    std::filesystem::path path_;
    ExpertProfile profile_;
};

TEST_F(SideFileTest, ProfileIsReadAsBf16AndTheModelIsUnchanged) {
    const auto before = open();
    EXPECT_EQ(load_expert_profile(*before).error().code, ErrorCode::not_found);

    ASSERT_TRUE(write(tensors()).ok());
    const auto package = open();
    EXPECT_EQ(Estimator::load(*package).error().code, ErrorCode::not_found);
    EXPECT_NE(package->manifest_sha256(), before->manifest_sha256());
    EXPECT_EQ(package->blob_hash(0, 1), before->blob_hash(0, 1));
    EXPECT_TRUE(verify_package(path_, {}).ok());

    const auto loaded = load_expert_profile(*package);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_EQ(loaded->num_tokens, 640u);
    for (const std::uint32_t layer : {0u, 2u, 3u}) {  // 1 is dense
        EXPECT_TRUE(std::ranges::equal(loaded->uses_of(layer), profile_.uses_of(layer)));
        for (std::uint32_t expert = 0; expert < profile_.num_experts; ++expert)
            for (std::size_t i = 0; i < profile_.hidden_size; ++i)
                EXPECT_EQ(loaded->default_vector(layer, expert)[i],
                          bfloat16_to_float(
                              float_to_bfloat16(profile_.default_vector(layer, expert)[i])));
    }
}

TEST_F(SideFileTest, NewerProfileReplacesTheOlder) {
    ASSERT_TRUE(write(tensors()).ok());
    profile_.num_tokens = 7;
    ASSERT_TRUE(write(tensors()).ok());
    EXPECT_EQ(load_expert_profile(*open())->num_tokens, 7u);
    EXPECT_TRUE(verify_package(path_, {}).ok());
}

TEST_F(SideFileTest, DamagedFileIsRefused) {
    ASSERT_TRUE(write(tensors()).ok());
    const auto file = path_ / "default_vectors.safetensors";
    {
        std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
        damaged.seekp(-1, std::ios::end);
        damaged.put('\x7f');
    }
    EXPECT_EQ(verify_package(path_, {}).error().code, ErrorCode::hash_mismatch);

    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 2);
    const auto shorter = load_expert_profile(*open());
    ASSERT_FALSE(shorter.ok());
    EXPECT_NE(shorter.error().message.find("default_vectors.safetensors: "), std::string::npos);
    EXPECT_EQ(shorter.error().code, ErrorCode::bad_file);

    std::filesystem::remove(file);
    EXPECT_EQ(load_expert_profile(*open()).error().code, ErrorCode::bad_file);
    EXPECT_FALSE(verify_package(path_, {}).ok());
}

TEST_F(SideFileTest, TensorsOfAnotherModelAreRefusedByName) {
    auto wrong = tensors();
    wrong[2].shape = {4, 128};  // a wrong shape with the same number of elements
    ASSERT_TRUE(write(wrong).ok());
    const auto loaded = load_expert_profile(*open());
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.error().message.find("layers.0.default_vectors is [4, 128]"),
              std::string::npos)
        << loaded.error().message;

    wrong = tensors();
    wrong[2].values[5] = std::numeric_limits<float>::infinity();
    ASSERT_TRUE(write(wrong).ok());
    EXPECT_EQ(load_expert_profile(*open()).error().code, ErrorCode::bad_file);
}

TEST_F(SideFileTest, EstimatorIsReadAsItWasWritten) {
    const EstimatorShape shape{
        .hidden_size = 64, .num_experts = 8, .num_targets = 2, .width = 16, .inner = 12};
    Estimator estimator(shape, 9);
    for (float& value : estimator.parameters()) value = bfloat16_to_float(float_to_bfloat16(value));
    ASSERT_TRUE(write_side_file(path_, SideFile::estimator, estimator.to_side_tensors()).ok());

    const auto loaded = Estimator::load(*open());
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_EQ(loaded->shape().width, 16u);
    EXPECT_EQ(loaded->shape().inner, 12u);
    EXPECT_TRUE(std::ranges::equal(loaded->parameters(), estimator.parameters()));

    auto tensors = estimator.to_side_tensors();
    tensors.erase(tensors.begin());
    ASSERT_TRUE(write_side_file(path_, SideFile::estimator, tensors).ok());
    EXPECT_EQ(Estimator::load(*open()).error().code, ErrorCode::bad_file);
}

}  // namespace
}  // namespace moex
