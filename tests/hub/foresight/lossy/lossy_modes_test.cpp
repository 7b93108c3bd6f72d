// Tests how lossy modes are found by name, and the file beside a package that records their
// perplexity.
#include "hub/foresight/lossy/lossy_modes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

const std::filesystem::path source_directory = repository();

MeasuredLosses measured() {
    return {.measured_on = "a text",
            .perplexity = {{"exact", 20}, {"early:1", 25}, {"estimator", 21}}};
}

// A fixture with a copy of the tiny package in its own folder, with a file of measured perplexity
// beside it.
class RecordTest : public testing::Test {
  protected:
    RecordTest() : folder_("losses") {
        std::filesystem::copy(test::tiny_package()->directory(), folder_.path() / "package",
                              std::filesystem::copy_options::recursive);
        package_ = ModelPackage::open(folder_.path() / "package").value();
    }
    void write(const std::string& content) const {
        std::ofstream(package_->directory() / measured_losses_file) << content;
    }
    ErrorCode code() const { return load_measured_losses(*package_).error().code; }

    test::TemporaryFolder folder_;
    std::shared_ptr<const ModelPackage> package_;
};

TEST_F(RecordTest, RecordIsReadAsItWasWritten) {
    EXPECT_EQ(code(), ErrorCode::not_found);
    write(to_json_text(measured(), package_->manifest_sha256()));
    const auto read = load_measured_losses(*package_);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->measured_on, "a text");
    EXPECT_EQ(read->perplexity, measured().perplexity);
    EXPECT_DOUBLE_EQ(*read->excess_of("early:1"), 0.25);
    EXPECT_FALSE(read->excess_of("estimator:6"));
}

TEST_F(RecordTest, RecordOfAnotherPackageIsNotRead) {
    write(to_json_text(measured(), std::string(64, '0')));
    EXPECT_EQ(code(), ErrorCode::not_found);
}

TEST_F(RecordTest, DamagedRecordIsRefused) {
    const std::string whole = to_json_text(measured(), package_->manifest_sha256());
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string changed = whole;
        changed.replace(changed.find(from), from.size(), to);
        write(changed);
        return code();
    };
    write("{");
    EXPECT_FALSE(load_measured_losses(*package_).ok());
    write("[]");
    EXPECT_EQ(code(), ErrorCode::bad_field);
    EXPECT_EQ(with("25.0", "\"25\""), ErrorCode::bad_field);
    EXPECT_EQ(with("25.0", "-1"), ErrorCode::bad_field);
    EXPECT_EQ(with("\"a text\"", "7"), ErrorCode::bad_field);
}

TEST(MeasuredLossesTest, FiguresOfOneTextJoinAndOthersReplace) {
    MeasuredLosses all = measured();
    all.add({.measured_on = "a text", .perplexity = {{"exact", 20}, {"estimator", 22}}});
    EXPECT_EQ(all.perplexity.at("early:1"), 25);
    EXPECT_EQ(all.perplexity.at("estimator"), 22);

    all.add({.measured_on = "another", .perplexity = {{"exact", 30}}});
    EXPECT_EQ(all.perplexity.size(), 1u);
}

std::shared_ptr<const ModelPackage> demo_package() {
    return ModelPackage::open(source_directory / "static/models/demo").value();
}
SpeculationSources routers_alone() {
    return load_speculation_sources(test::tiny_package(), test::compute_threads()).value();
}

TEST(LossyModesTest, NamesOfOneModeShareASpeculator) {
    LossyModes modes(load_speculation_sources(demo_package(), test::compute_threads()).value(), {});
    const auto mode = modes.find("speculative");
    ASSERT_TRUE(mode.ok()) << mode.error().message;
    EXPECT_EQ(mode->name, "early:1");
    EXPECT_EQ(modes.find("early:1")->speculator, mode->speculator);
    EXPECT_NE(modes.find("estimator")->speculator, mode->speculator);
}

TEST(LossyModesTest, UnservedModesAreRefusedByName) {
    LossyModes modes(routers_alone(), {});
    for (const char* name : {"fast", "early:2", "next-gate", "estimator+weights", "router-free"}) {
        const auto found = modes.find(name);
        EXPECT_EQ(found.error().code, ErrorCode::invalid_argument) << name;
        EXPECT_NE(found.error().message.find("wanted speculative or estimator"), std::string::npos);
    }
}

TEST(LossyModesTest, ModesThatAPackageLacksFilesForAreNotOffered) {
    LossyModes modes(routers_alone(), {});
    EXPECT_TRUE(modes.offered().empty());
    for (const char* mode : {"speculative", "early:1", "estimator"}) {
        const auto found = modes.find(mode);
        EXPECT_EQ(found.error().code, ErrorCode::not_found) << mode;
        EXPECT_NE(found.error().message.find("moex-hub"), std::string::npos) << mode;
    }
}

TEST(LossyModesTest, DemoFiguresAreThoseOfTheirTable) {
    std::map<std::string, double, std::less<>> table;
    std::ifstream file(source_directory / "bench/results/foresight_lossy.demo.csv");
    for (std::string line; std::getline(file, line);)
        if (!line.starts_with("#") && line.find(',') != std::string::npos)
            table[line.substr(0, line.find(','))] = std::atof(line.c_str() + line.find(',') + 1);

    const auto demo = demo_package();
    const auto losses = load_measured_losses(*demo);
    ASSERT_TRUE(losses.ok()) << losses.error().message << ": measure it again";
    for (const auto& [mode, perplexity] : losses->perplexity)
        EXPECT_NEAR(perplexity, table.at(mode), 1e-4) << mode;

    LossyModes modes(load_speculation_sources(demo, test::compute_threads()).value(), *losses);
    EXPECT_EQ(modes.offered(), (std::vector<std::string>{"early:1", "estimator"}));
    for (const std::string& mode : modes.offered())
        EXPECT_TRUE(modes.find(mode)->perplexity_excess) << mode << " was not measured";
}

}  // namespace
}  // namespace moex
