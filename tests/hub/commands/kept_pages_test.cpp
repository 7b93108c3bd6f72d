// Tests that pages of keys and values are marked with the arithmetic that computed them.
#include "hub/commands/serve/kept_pages.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/must.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

// Each dtype to which --deterministic rounds rows gives other keys and values, so no hub may take
// the pages of another one for its own. An earlier version marked f32 as int8.
TEST(KeptPagesTest, PagesOfAnotherRoundingAreRefused) {
    const test::TemporaryFolder state("kept-pages");
    const auto registry = test::must(Registry::open(state.path()));
    LoadedModel model;
    model.package = test::must(ModelPackage::open(repository() / "static/models/demo"));
    const EngineOptions engine;
    std::vector<std::pair<std::string, KvSource>> sources;
    const auto add = [&](std::string name, const ExpertRounding& rounding) {
        ServeSettings settings;
        settings.contributors.wire.rounding = rounding;
        sources.emplace_back(
            std::move(name),
            source_of_pages(settings, {.model = model, .engine = engine, .registry = *registry}));
    };
    add("none", {});
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::f32})
        add(dtype_name(dtype), {.deterministic = true, .wire_dtype = dtype});

    for (const auto& [wanted_name, wanted] : sources)
        for (const auto& [name, found] : sources)
            EXPECT_EQ(require_source(found, wanted).ok(), name == wanted_name)
                << name << " for " << wanted_name;

    // Without --deterministic the dtype of the wire says nothing about the answers of later
    // workers, and any page will do.
    add("none in f32", {.wire_dtype = Dtype::f32});
    EXPECT_TRUE(require_source(sources.back().second, sources.front().second).ok());
}

}  // namespace
}  // namespace moex
