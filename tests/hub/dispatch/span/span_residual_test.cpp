// Tests which differences of a span's answer honest arithmetic explains. The hub's rows are random;
// an honest worker has another expert in a row, and rounding noise in all of them.
#include "hub/dispatch/span/span_residual.h"

#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "protocol/half.h"

namespace moex {
namespace {

class SpanResidualTest : public testing::TestWithParam<double> {
  protected:
    static constexpr std::size_t hidden = 64, kv_size = 32, num_rows = 3;
    static constexpr double tolerance = 0.5;
    // Keys and values, then the inputs of a gated delta rule, then keys and values.
    const std::vector<std::vector<std::size_t>> row_parts = {
        {kv_size, kv_size}, {32, 32, 64, 4, 4}, {kv_size, kv_size}};
    using Layer = std::vector<std::vector<float>>;  // by row
    struct Rows {
        std::vector<float> x;
        std::vector<Layer> kept;
    };

    SpanResidualTest() {
        for (std::size_t i = 0; i < num_rows * hidden; ++i) {
            before_.push_back(draw());
            hub_.x.push_back(before_.back() + draw());
        }
        for (const auto& parts : row_parts) {
            Layer layer(num_rows);
            for (auto& row : layer)
                for (const std::size_t size : parts)
                    for (std::size_t i = 0; i < size; ++i) row.push_back(draw());
            hub_.kept.push_back(std::move(layer));
        }
        worker_ = hub_;
        // The noise of the hub's arithmetic: of an int8 hub, or of an exact one.
        for (float& value : worker_.x) value += noise();
        for (Layer& layer : worker_.kept)
            for (auto& row : layer)
                for (float& value : row) value += noise();
    }

    float draw() { return normal_(random_); }
    float noise() { return static_cast<float>(GetParam()) * draw(); }
    // Adds a vector of about the size of the values.
    void exchange_expert(std::span<float> values, float share = 1) {
        for (float& value : values) value += share * draw();
    }
    std::span<float> row_of_x(std::size_t row) {
        return std::span(worker_.x).subspan(row * hidden, hidden);
    }
    std::span<float> part(std::size_t layer, std::size_t row, std::size_t index) {
        std::size_t first = 0;
        for (std::size_t i = 0; i < index; ++i) first += row_parts[layer][i];
        return std::span(worker_.kept[layer][row]).subspan(first, row_parts[layer][index]);
    }
    static Bytes halves_of(const Rows& rows) {
        Bytes bytes;
        for (const Layer& layer : rows.kept)
            for (const auto& row : layer)
                for (const float value : row) {
                    const half one = float_to_half(value);
                    const auto* const begin = reinterpret_cast<const std::byte*>(&one);
                    bytes.insert(bytes.end(), begin, begin + sizeof one);
                }
        return bytes;
    }

    // Expects a difference beyond the tolerance, and returns whether it is wrong.
    bool is_wrong_answer() const {
        const Bytes hub = halves_of(hub_), worker = halves_of(worker_);
        const SpanShape shape{hidden, num_rows, row_parts};
        EXPECT_GT(span_residual(shape, before_, {hub_.x, hub}, {worker_.x, worker}).largest(),
                  tolerance);
        return route_traces(shape, before_, {hub_.x, hub}, {worker_.x, worker}, tolerance)
            .is_wrong();
    }

    std::mt19937 random_{3};
    std::normal_distribution<float> normal_;
    std::vector<float> before_;
    Rows hub_, worker_;
};

TEST_P(SpanResidualTest, AnotherExpertIsNoLie) {
    exchange_expert(row_of_x(1));
    EXPECT_FALSE(is_wrong_answer());
    // The layers behind it see another row, too.
    for (std::size_t index = 0; index < 5; ++index) exchange_expert(part(1, 1, index), 0.5f);
    for (std::size_t index = 0; index < 2; ++index) exchange_expert(part(2, 1, index), 1.5f);
    EXPECT_FALSE(is_wrong_answer());
}

// Four values may all be near zero by chance. Their difference is then many times their size.
TEST_P(SpanResidualTest, FewSmallValuesMayDifferByTheirSize) {
    exchange_expert(row_of_x(1), 0.2f);
    for (std::size_t row = 0; row < num_rows; ++row)
        for (std::size_t i = 0; i < 4; ++i) {
            hub_.kept[1][row][128 + i] /= 20;
            part(1, row, 3)[i] = hub_.kept[1][row][128 + i] + 0.2f * draw();
        }
    EXPECT_FALSE(is_wrong_answer());
}

TEST_P(SpanResidualTest, RowsWithOtherSignsOrScaleAreWrong) {
    const std::vector<std::pair<const char*, std::function<float(std::size_t, float)>>> lies = {
        {"zeros", [](std::size_t, float) { return 0.0f; }},
        {"other signs", [](std::size_t, float value) { return -value; }},
        {"half of the signs", [](std::size_t i, float value) { return i % 2 ? value : -value; }},
        {"scaled by 2", [](std::size_t, float value) { return 2 * value; }},
        {"scaled by 0.3", [](std::size_t, float value) { return 0.3f * value; }},
        {"one large value", [](std::size_t i, float value) { return i == 3 ? 100 : value; }},
    };
    const Rows honest = worker_;
    for (const auto& [name, lie] : lies) {
        SCOPED_TRACE(name);
        worker_ = honest;
        for (std::size_t i = 0; i < hidden; ++i) row_of_x(2)[i] = lie(i, row_of_x(2)[i]);
        EXPECT_TRUE(is_wrong_answer());
        // The same in keys alone, or values alone, of every layer that has them or of the last one.
        for (const std::size_t first : {0u, 2u})
            for (const std::size_t index : {0u, 1u}) {
                worker_ = honest;
                for (std::size_t layer = first; layer < 3; layer += 2)
                    for (std::size_t row = 0; row < num_rows; ++row)
                        for (std::size_t i = 0; i < kv_size; ++i) {
                            float& value = part(layer, row, index)[i];
                            value = lie(i, value);
                        }
                EXPECT_TRUE(is_wrong_answer()) << first << ' ' << index;
            }
    }
}

TEST_P(SpanResidualTest, RowsThatWereNotComputedAreWrong) {
    std::copy(before_.begin(), before_.end(), worker_.x.begin());
    EXPECT_TRUE(is_wrong_answer());
}

// No router comes before the first layer's parts, and a row that stays as it is shows that none of
// another layer has changed its choice.
TEST_P(SpanResidualTest, ReplacedKeysOrInputsAreWrong) {
    const Rows honest = worker_;
    for (const std::size_t layer : {0u, 1u, 2u})
        for (std::size_t index = 0; index < std::min<std::size_t>(row_parts[layer].size(), 3);
             ++index) {
            worker_ = honest;
            for (std::size_t row = 0; row < num_rows; ++row)
                for (float& value : part(layer, row, index)) value = draw();
            EXPECT_TRUE(is_wrong_answer()) << layer << ' ' << index;
        }
    // In the first layer also beside rows of another expert.
    worker_ = honest;
    exchange_expert(row_of_x(0));
    EXPECT_FALSE(is_wrong_answer());
    for (std::size_t row = 0; row < num_rows; ++row)
        for (float& value : part(0, row, 1)) value = draw();
    EXPECT_TRUE(is_wrong_answer());
}

INSTANTIATE_TEST_SUITE_P(Noise, SpanResidualTest, testing::Values(0.06, 0.002));

}  // namespace
}  // namespace moex
