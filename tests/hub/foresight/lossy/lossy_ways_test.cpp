// Ways by name, and what a package says they cost.
#include "hub/foresight/lossy/lossy_ways.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

const std::filesystem::path source_directory = MOEX_SOURCE_DIR;

MeasuredLosses measured() {
    return {.measured_on = "a text",
            .perplexity = {{"exact", 20}, {"early:1", 25}, {"estimator:6", 21}},
            .hybrid_layers = {1, 2}};
}

// The tiny package in a folder of its own, with a record beside it.
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

TEST_F(RecordTest, IsReadAsItWasWritten) {
    EXPECT_EQ(code(), ErrorCode::not_found);
    write(to_json_text(measured(), package_->manifest_sha256()));
    const auto read = load_measured_losses(*package_);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->measured_on, "a text");
    EXPECT_EQ(read->perplexity, measured().perplexity);
    EXPECT_EQ(read->hybrid_layers, measured().hybrid_layers);
    EXPECT_DOUBLE_EQ(*read->excess_of("early:1"), 0.25);
    EXPECT_FALSE(read->excess_of("estimator"));
}

TEST_F(RecordTest, OfAnotherPackageIsNotRead) {
    write(to_json_text(measured(), std::string(64, '0')));
    EXPECT_EQ(code(), ErrorCode::not_found);
}

TEST_F(RecordTest, ThatIsDamagedIsRefused) {
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
    EXPECT_EQ(with("1,", "400,"), ErrorCode::bad_field);
}

TEST(MeasuredLossesTest, FiguresOfOneTextJoinAndOthersReplace) {
    MeasuredLosses all = measured();
    all.add({.measured_on = "a text", .perplexity = {{"exact", 20}, {"estimator:6", 22}}});
    EXPECT_EQ(all.perplexity.at("early:1"), 25);
    EXPECT_EQ(all.perplexity.at("estimator:6"), 22);
    EXPECT_EQ(all.hybrid_layers, measured().hybrid_layers);

    all.add({.measured_on = "another", .perplexity = {{"exact", 30}}, .hybrid_layers = {3}});
    EXPECT_EQ(all.perplexity.size(), 1u);
    EXPECT_EQ(all.hybrid_layers, std::vector<std::uint32_t>{3});
}

SpeculationSources routers_alone() {
    return load_speculation_sources(test::tiny_package(), test::compute_threads()).value();
}

TEST(LossyWaysTest, OneIsTheSameHoweverItIsWritten) {
    LossyWays ways(routers_alone(), {});
    const auto way = ways.find("next-gate");
    ASSERT_TRUE(way.ok()) << way.error().message;
    EXPECT_EQ(way->name, "next-gate");
    EXPECT_EQ(ways.find("next-gate:2")->speculator, way->speculator);  // two are asked anyway
    EXPECT_NE(ways.find("next-gate:3")->speculator, way->speculator);
    EXPECT_EQ(ways.find("next-gate:800")->name, "next-gate:8");
    EXPECT_EQ(ways.find("fast").error().code, ErrorCode::invalid_argument);
}

TEST(LossyWaysTest, WhatAPackageLacksIsSaidAndNotOffered) {
    LossyWays ways(routers_alone(), {});
    EXPECT_EQ(ways.offered(), (std::vector<std::string>{"next-gate", "next-gate+weights"}));
    for (const char* way : {"speculative", "early:1", "estimator", "hybrid", "router-free"}) {
        const auto found = ways.find(way);
        EXPECT_EQ(found.error().code, ErrorCode::not_found) << way;
        EXPECT_NE(found.error().message.find("moex-hub"), std::string::npos) << way;
    }
    EXPECT_EQ(ways.find("early:2").error().code, ErrorCode::unsupported);  // of three layers
}

TEST(LossyWaysTest, WhatWasMeasuredIsOfferedWithWhatItCosts) {
    LossyWays ways(routers_alone(), {.perplexity = {{"exact", 20}, {"next-gate:3", 21}}});
    EXPECT_EQ(ways.offered(),
              (std::vector<std::string>{"next-gate", "next-gate+weights", "next-gate:3"}));
    EXPECT_NEAR(*ways.find("next-gate:3")->perplexity_excess, 0.05, 1e-12);
    EXPECT_FALSE(ways.find("next-gate")->perplexity_excess);
}

TEST(LossyWaysTest, TheDemosFiguresAreThoseOfItsTable) {
    std::map<std::string, double, std::less<>> table;
    std::ifstream file(source_directory / "bench/results/foresight_lossy.demo.csv");
    for (std::string line; std::getline(file, line);)
        if (!line.starts_with("#") && line.find(',') != std::string::npos)
            table[line.substr(0, line.find(','))] = std::atof(line.c_str() + line.find(',') + 1);

    const auto demo = ModelPackage::open(source_directory / "static/models/demo").value();
    const auto losses = load_measured_losses(*demo);
    ASSERT_TRUE(losses.ok()) << losses.error().message << ": measure it again";
    EXPECT_EQ(losses->hybrid_layers.size(), 2u);
    for (const auto& [way, perplexity] : losses->perplexity)
        EXPECT_NEAR(perplexity, table.at(way), 1e-4) << way;

    LossyWays ways(load_speculation_sources(demo, test::compute_threads()).value(), *losses);
    for (const std::string& way : ways.offered())
        EXPECT_TRUE(ways.find(way)->perplexity_excess) << way << " was not measured";
    EXPECT_EQ(ways.find("speculative")->name, "early:1");
    EXPECT_GE(ways.offered().size(), 10u);
}

}  // namespace
}  // namespace moex
