// What the hub says a lossy way costs is what was measured of the package that it serves.
#include "hub/foresight/known_losses.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "hub/model/package/package.h"

namespace moex {
namespace {

const std::filesystem::path source_directory = MOEX_SOURCE_DIR;

TEST(KnownLossTest, TheDemosIsThatOfItsTable) {
    std::map<std::string, double> perplexities;
    std::ifstream table(source_directory / "bench/results/foresight_lossy.demo.csv");
    for (std::string line; std::getline(table, line);)
        if (!line.starts_with("#") && line.find(',') != std::string::npos)
            perplexities[line.substr(0, line.find(','))] = std::atof(line.c_str() + line.find(',') +
                                                                     1);

    const auto demo = ModelPackage::open(source_directory / "static/models/demo");
    ASSERT_TRUE(demo.ok()) << demo.error().message;
    const auto known = known_loss((*demo)->manifest_sha256());
    ASSERT_TRUE(known) << "the demo's package is another one: measure it again";
    EXPECT_EQ(known->exact, perplexities.at("exact"));
    EXPECT_EQ(known->speculative, perplexities.at("early:1"));
}

TEST(KnownLossTest, AnotherPackagesIsNotKnown) {
    EXPECT_FALSE(known_loss(""));
    EXPECT_FALSE(known_loss(std::string(64, '0')));
}

}  // namespace
}  // namespace moex
