// Tests of `pack --group auto`: the smallest group that needs no more bytes than groups of 128 do.
#include <set>

#include <gtest/gtest.h>

#include "hub/model/pack/pack_plan.h"
#include "hub/model/pack/packer.h"
#include "tests/support/checkpoint_builder.h"

namespace moex {
namespace {

using test::CheckpointBuilder;
using test::CheckpointOptions;
using test::TempFolder;

class SmallestGroupTest : public testing::Test {
  protected:
    // Writes a checkpoint; its hub grows with the vocabulary.
    std::filesystem::path checkpoint(std::uint32_t num_experts, std::uint32_t vocab_size) {
        const auto folder = folder_ / text("in-", num_experts, '-', vocab_size);
        CheckpointBuilder({.hidden_size = 128,
                           .moe_intermediate_size = 128,
                           .num_experts = num_experts,
                           .num_layers = 1,
                           .vocab_size = vocab_size,
                           .mlp_only_layers = {}})
            .write(folder);
        return folder;
    }
    static std::uint64_t bytes_of(const std::filesystem::path& model, const PackOptions& options) {
        const auto plan = plan_package(model, options);
        EXPECT_TRUE(plan.ok()) << plan.error().message;
        return plan.ok() ? plan->output_bytes() : 0;
    }

    TempFolder folder_{"smallest-group"};
};

TEST_F(SmallestGroupTest, GroupIsTheSmallestThatFits) {
    std::set<std::uint32_t> found;
    for (const std::uint32_t vocab_size : {96u, 200u, 600u, 2000u}) {
        SCOPED_TRACE(vocab_size);
        const auto model = checkpoint(64, vocab_size);
        const auto chosen = with_smallest_group(model, {}, true);
        ASSERT_TRUE(chosen.ok()) << chosen.error().message;
        const std::uint64_t wanted = bytes_of(model, {});
        EXPECT_LE(bytes_of(model, *chosen), wanted);

        for (std::uint32_t smaller = chosen->group_size_max / 2; smaller >= 32; smaller /= 2)
            EXPECT_GT(bytes_of(model, {.group_size_max = smaller, .hub_dtype = HubDtype::int8}),
                      wanted);
        EXPECT_EQ(chosen->hub_dtype,
                  chosen->group_size_max == 128 ? HubDtype::bf16 : HubDtype::int8);
        found.insert(chosen->group_size_max);
    }
    EXPECT_EQ(found, (std::set<std::uint32_t>{32, 64, 128}));
}

TEST_F(SmallestGroupTest, PackageHasTheChosenForm) {
    const auto model = checkpoint(4, 2000);
    const auto chosen = with_smallest_group(model, {}, true);
    ASSERT_TRUE(chosen.ok()) << chosen.error().message;
    ThreadPool threads(2);
    const auto plain = pack_checkpoint(model, folder_ / "plain", {}, threads, {}),
               small = pack_checkpoint(model, folder_ / "small", *chosen, threads, {});
    ASSERT_TRUE(plain.ok() && small.ok());
    EXPECT_LE(small->output_bytes, plain->output_bytes);
    EXPECT_EQ(small->output_bytes, bytes_of(model, *chosen));
}

TEST_F(SmallestGroupTest, OptionsStayWithoutRoomOrInt4Experts) {
    const auto model = checkpoint(4, 2000);
    EXPECT_EQ(with_smallest_group(model, {}, false)->group_size_max, 128u);
    const auto f32 = with_smallest_group(model, {.expert_dtype = ExpertDtype::f32}, true);
    EXPECT_EQ(f32->group_size_max, 128u);
    EXPECT_EQ(f32->hub_dtype, HubDtype::bf16);
}

}  // namespace
}  // namespace moex
