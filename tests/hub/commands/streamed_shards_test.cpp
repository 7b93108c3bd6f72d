// Tests which tensors of a checkpoint leave the disk with a layer that is packed.
#include "hub/commands/pull/streamed_shards.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

TEST(StreamedShardsTest, ExpertsOfLayersLeaveAndThoseOfTheDraftHeadStay) {
    EXPECT_EQ(layer_of_expert_tensor("model.layers.3.mlp.experts.7.up_proj.weight"), 3u);
    EXPECT_EQ(layer_of_expert_tensor("model.language_model.layers.12.mlp.experts.gate_up_proj"),
              12u);
    for (const char* stays :
         {"mtp.layers.0.mlp.experts.7.up_proj.weight", "mtp.layers.0.mlp.experts.gate_up_proj",
          "model.layers.3.mlp.shared_expert.up_proj.weight", "model.embed_tokens.weight"})
        EXPECT_EQ(layer_of_expert_tensor(stays), std::nullopt) << stays;
}

}  // namespace
}  // namespace moex
