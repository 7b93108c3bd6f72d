#include "hub/engine/own_layers.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

// A backend that notes the layers of its rounds and the hints that it gets.
class NotedBackend : public ExpertBackend {
  public:
    explicit NotedBackend(const char* name) : name_(name) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        layers.push_back(batch.layer);
        return nullptr;
    }
    const char* name() const override { return name_; }
    bool works_elsewhere() const override { return true; }
    bool wants_hints() const override { return true; }
    void hint(std::span<const ExpertHint> hints) override { num_hints += hints.size(); }
    std::vector<std::uint32_t> layers;
    std::size_t num_hints = 0;

  private:
    const char* name_;
};

TEST(OwnLayersTest, AreTheFirstOnesAndTheLastOne) {
    using Layers = std::vector<std::uint8_t>;
    EXPECT_EQ(own_layers(5, 0), (Layers{0, 0, 0, 0, 0}));
    EXPECT_EQ(own_layers(5, 1), (Layers{0, 0, 0, 0, 1}));
    EXPECT_EQ(own_layers(5, 3), (Layers{1, 1, 0, 0, 1}));
    EXPECT_EQ(own_layers(5, 5), (Layers{1, 1, 1, 1, 1}));
    EXPECT_EQ(own_layers(0, 0), Layers{});
}

TEST(OwnLayersTest, EachLayerHasOneBackend) {
    NotedBackend here("local"), checks("local"), elsewhere("swarm");
    OwnLayers both(here, checks, elsewhere, own_layers(6, 3));
    for (std::uint32_t layer = 0; layer < 6; ++layer) {
        ExpertBatch batch;
        batch.layer = layer;
        both.submit(batch);
    }
    EXPECT_EQ(here.layers, (std::vector<std::uint32_t>{0, 1, 5}));
    EXPECT_EQ(elsewhere.layers, (std::vector<std::uint32_t>{2, 3, 4}));

    for (const std::uint32_t layer : {1u, 3u}) {
        ExpertBatch batch;
        batch.layer = layer;
        batch.is_check = true;
        both.submit(batch);
    }
    EXPECT_EQ(here.layers.back(), 1u) << "an own layer is never a worker's";
    EXPECT_EQ(checks.layers, std::vector<std::uint32_t>{3});

    EXPECT_STREQ(both.name(), "swarm");
    EXPECT_TRUE(both.works_elsewhere());
    EXPECT_TRUE(both.wants_hints());
    const std::vector<ExpertHint> hints(4);
    both.hint(hints);
    EXPECT_EQ(elsewhere.num_hints, 4u);
    EXPECT_EQ(here.num_hints, 0u);
}

}  // namespace
}  // namespace moex
