// Tests the class Round: how its rows are encoded, and which workers its answer names.
#include "hub/dispatch/round/round.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "protocol/half.h"

namespace moex {
namespace {

constexpr std::uint32_t hidden = 32, num_experts = 4, top_k = 2;

RoundOptions deterministic_options() {
    RoundOptions options;
    options.limits = {.hidden_size = hidden, .num_layers = 1, .num_experts = num_experts};
    options.rounding = {.deterministic = true, .wire_dtype = Dtype::f16};
    return options;
}

// Rows in which all values are equal. Each row is routed to the experts 1 and 2.
struct Rows {
    explicit Rows(const std::vector<float>& values) {
        for (const float value : values) {
            x.insert(x.end(), hidden, value);
            ids.insert(ids.end(), {1, 2});
            weights.insert(weights.end(), {0.5f, 0.25f});
        }
    }
    ExpertBatch batch() const {
        return {.num_tokens = static_cast<std::uint32_t>(x.size() / hidden),
                .hidden_size = hidden,
                .top_k = top_k,
                .x = x,
                .expert_ids = ids,
                .expert_weights = weights};
    }
    std::vector<float> x, weights;
    std::vector<std::uint16_t> ids;
};

RowReader reader_of(const RoundOptions& options) {
    return {options.rounding, std::make_shared<AnswerMemory>()};
}

Status open(Round& round, const ExpertBatch& batch, const RoundOptions& options) {
    return round.open(batch, reader_of(options).read(batch), options, {});
}

Round opened(const Rows& rows) {
    Round round;
    EXPECT_TRUE(open(round, rows.batch(), deterministic_options()).ok());
    return round;
}

// In an earlier version the value 0.123456 was sent as 0.123474 in a batch of its own, and as
// 0.123535 if another row of the batch contained 70,000.
TEST(RoundTest, RowEncodingDoesNotDependOnItsNeighbours) {
    const Round alone = opened(Rows({0.123456f})),
                beside = opened(Rows({70000.0f, 0.123456f, 3.0f}));
    EXPECT_EQ((*alone.x)[0], half_to_float(float_to_half(0.123456f)));
    EXPECT_EQ((*beside.x)[hidden], (*alone.x)[0]);
    EXPECT_EQ((*beside.x)[0], 70144.0f);  // the bf16 value nearest to 70,000
}

TEST(RoundTest, RowsBeyondF16TravelInGroupsOfTheirOwn) {
    Round round = opened(Rows({70000.0f, 0.5f, 3.0f, 1e6f}));
    ASSERT_EQ(round.slices.size(), 4u);  // two experts in each of two blocks
    for (const bool wide : {false, true}) {
        Attempt attempt;
        attempt.slices = wide ? std::vector<std::uint32_t>{2, 3} : std::vector<std::uint32_t>{0, 1};
        GroupDispatch group;
        round.fill_group(attempt, group);
        EXPECT_EQ(group.shape.dtype, wide ? Dtype::bf16 : Dtype::f16);
        EXPECT_EQ(attempt.tokens,
                  (wide ? std::vector<std::uint32_t>{0, 3} : std::vector<std::uint32_t>{1, 2}));
        round.copy_rows(attempt, group.x);
        EXPECT_EQ(group.x[0], wide ? 70144.0f : 0.5f);
        EXPECT_NE(round.slices[attempt.slices[0]].block, round.slices[wide ? 0 : 2].block);
    }
}

TEST(RoundTest, EverySliceThatALiarAnsweredIsOpenAgain) {
    Round round = opened(Rows({1.0f, 70000.0f}));
    for (const std::uint32_t block : {0u, 1u}) {
        Attempt attempt;
        attempt.worker = 7;
        attempt.slices = {2 * block, 2 * block + 1};
        GroupDispatch group;
        round.fill_group(attempt, group);
        EXPECT_EQ(round.accept(attempt, std::vector<float>(top_k * hidden, 1.0f), true), 2u);
    }
    EXPECT_EQ(round.slices_left, 0u);
    EXPECT_EQ(round.reject_answers_of(8), 0u);
    EXPECT_EQ(round.reject_answers_of(7), 4u);
    EXPECT_EQ(round.slices_left, 4u);
    for (const CallSlice& slice : round.slices) EXPECT_TRUE(slice.is_open());
}

// In f32, 1e8 - 1e8 + 1 is 1, but 1 + 1e8 - 1e8 is 0, so the order of the sum matters.
TEST(RoundTest, SumOrderDoesNotDependOnArrival) {
    const std::vector<float> x(hidden, 1.0f), weights(3, 1.0f);
    const std::vector<std::uint16_t> ids{0, 1, 2};
    const std::vector<float> answers{1e8f, -1e8f, 1.0f};
    RoundOptions options = deterministic_options();
    options.rounding.deterministic = false;
    for (const std::vector<std::uint32_t>& arrivals :
         {std::vector<std::uint32_t>{0, 1, 2}, {2, 0, 1}, {2, 1, 0}}) {
        Round round;
        ASSERT_TRUE(open(round,
                         {.num_tokens = 1,
                          .hidden_size = hidden,
                          .top_k = 3,
                          .x = x,
                          .expert_ids = ids,
                          .expert_weights = weights},
                         options)
                        .ok());
        for (const std::uint32_t slice : arrivals) {
            Attempt attempt;
            attempt.worker = 7 + slice;
            attempt.slices = {slice};
            GroupDispatch group;
            round.fill_group(attempt, group);
            round.accept(attempt, std::vector<float>(hidden, answers[slice]), false);
        }
        ExpertAnswer provenance;
        EXPECT_EQ(round.finish(provenance).values(), std::vector<float>(hidden, 1.0f));
        EXPECT_EQ(provenance.workers, (std::vector<std::uint64_t>{7, 8, 9}));
    }
}

// Returns value `c` of the answer of an expert to a row, before the gate.
float value_of(std::uint32_t expert, std::uint32_t row, std::uint32_t c) {
    return 0.37f * static_cast<float>(expert + 1) - 0.11f * static_cast<float>(row) +
           0.013f * static_cast<float>(c);
}

// Answers slices of the round as a worker does: each row is multiplied by the gate that was sent.
void answer(Round& round, WorkerId worker, std::vector<std::uint32_t> slices) {
    Attempt attempt;
    attempt.worker = worker;
    attempt.slices = std::move(slices);
    GroupDispatch group;
    round.fill_group(attempt, group);
    EXPECT_EQ(group.shape.dtype, Dtype::f32);
    EXPECT_TRUE(group.shape.unsummed);
    std::vector<float> y;
    std::size_t pair = 0;
    for (const GroupExpert& expert : group.experts)
        for (std::uint32_t i = 0; i < expert.num_rows; ++i, ++pair)
            for (std::uint32_t c = 0; c < hidden; ++c)
                y.push_back(value_of(expert.expert, attempt.tokens[group.rows[pair]], c) *
                            half_to_float(group.gates[pair]));
    round.accept(attempt, std::move(y), true);
}

// No gate here is a value of f16. The twin of the sum multiplies and adds in f32, expert by expert.
TEST(RoundTest, AnswersInF32AreMultipliedByTheGatesThemselves) {
    Rows rows({0.5f, -3.0f, 0.25f, 7.0f, 2.0f});
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
        const std::size_t row = i / top_k;
        rows.ids[i] = static_cast<std::uint16_t>(i % top_k == 0 ? 3 - row % 2 : row % 2);
        rows.weights[i] = 0.30798325f + 0.0123457f * static_cast<float>(i);
    }
    std::vector<float> want(rows.x.size());
    for (std::uint32_t row = 0; row < 5; ++row)
        for (std::uint16_t expert = 0; expert < num_experts; ++expert)
            for (std::uint32_t i = row * top_k; i < (row + 1) * top_k; ++i)
                for (std::uint32_t c = 0; rows.ids[i] == expert && c < hidden; ++c) {
                    const float product = value_of(expert, row, c) * rows.weights[i];
                    want[row * hidden + c] += product;
                }

    for (const bool deterministic : {false, true}) {
        RoundOptions options = deterministic_options();
        options.rounding = {.deterministic = deterministic, .wire_dtype = Dtype::f32};
        Round round;
        ASSERT_TRUE(open(round, rows.batch(), options).ok());
        ASSERT_EQ(round.slices.size(), num_experts);
        answer(round, 8, {1, 3});
        answer(round, 7, {0});
        answer(round, 0, {2});
        ExpertAnswer provenance;
        EXPECT_EQ(round.finish(provenance).values(), want);
    }
}

TEST(RoundTest, RowsOfOtherDtypesSendTheirGates) {
    const Rows rows({0.5f, -3.0f});
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::int8})
        for (const bool deterministic : {false, true}) {
            RoundOptions options = deterministic_options();
            options.rounding = {.deterministic = deterministic, .wire_dtype = dtype};
            Round round;
            ASSERT_TRUE(open(round, rows.batch(), options).ok());
            EXPECT_EQ(round.unsummed, deterministic);
            EXPECT_TRUE(round.pair_factor.empty());
            EXPECT_EQ(round.pair_gate, (std::vector<float>{0.5f, 0.5f, 0.25f, 0.25f}));
            EXPECT_EQ(half_to_float(round.wire_gate[2]), 0.25f);
        }
}

// The frame of a group copies its rows from the rows that were encoded once for the round. They are
// equal, bit for bit, to rows encoded for this group alone. This also holds for more than 64 rows,
// for int8, and for rows widened to bf16.
TEST(RoundTest, AGroupsFrameIsThatOfItsOwnRows) {
    std::vector<float> values;
    for (int i = 0; i < 150; ++i) values.push_back(0.01f * static_cast<float>(i - 40));
    values[77] = 80000.0f;
    Rows rows(values);
    for (std::size_t i = 0; i < rows.ids.size(); ++i)
        rows.ids[i] = static_cast<std::uint16_t>((i % top_k) + (i % 3 == 0 ? 2 : 0));
    for (std::size_t i = 0; i < rows.x.size(); ++i)
        rows.x[i] *= 1 + 0.001f * static_cast<float>(i % hidden);
    Round round = opened(rows);
    const RowReader reader = reader_of(deterministic_options());
    const auto held = std::make_shared<RowsHeld>();
    for (const bool x_int8 : {false, true})
        for (std::uint32_t slice = 0; slice < round.slices.size(); ++slice) {
            Attempt attempt;
            attempt.slices = {slice};
            GroupDispatch group;
            round.fill_group(attempt, group);
            EXPECT_TRUE(std::ranges::is_sorted(attempt.tokens));
            group.x_int8 = x_int8 && group.shape.dtype == Dtype::f16;
            for (std::uint32_t i = 0; i < attempt.num_pairs; ++i) {
                const std::uint32_t pair = round.slices[slice].pair_begin + i;
                EXPECT_EQ(attempt.tokens[group.rows[i]], round.pair_row[pair]);
                EXPECT_EQ(half_to_float(group.gates[i]), round.pair_gate[pair]);
            }
            round.copy_rows(attempt, group.x);
            for (const bool lz4 : {false, true})
                EXPECT_EQ(round.encode(attempt, group, lz4, reader, held).whole(),
                          encode_group_dispatch(group, lz4));
        }
}

// Frames share the encoded rows of the round. A connection with too many unwritten rows gets copies
// instead, which count in its outbox; other connections are not affected. The bytes of the frames
// are the same.
TEST(RoundTest, LargeGroupsShareTheRoundsRowsUntilTheirConnectionHoldsTooMany) {
    constexpr std::uint32_t wide = 2048, num_rows = 512;  // x takes 2 MiB as f16
    const std::vector<float> x(std::size_t{num_rows} * wide, 0.5f), weights(num_rows * top_k, 1.0f);
    std::vector<std::uint16_t> ids;
    for (std::uint32_t row = 0; row < num_rows; ++row) ids.insert(ids.end(), {1, 2});
    RoundOptions options = deterministic_options();
    options.limits.hidden_size = wide;
    const RowReader reader = reader_of(options);
    const ExpertBatch batch{.num_tokens = num_rows,
                            .hidden_size = wide,
                            .top_k = top_k,
                            .x = x,
                            .expert_ids = ids,
                            .expert_weights = weights};
    Round round;
    Attempt attempt;
    attempt.slices = {0, 1};
    GroupDispatch group;
    const auto slow_one = std::make_shared<RowsHeld>(), quick_one = std::make_shared<RowsHeld>();
    std::vector<WireFrame> unwritten;
    std::size_t num_shared = 0;
    for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(round.open(batch, reader.read(batch), options, {}).ok());
        round.fill_group(attempt, group);
        unwritten.push_back(round.encode(attempt, group, false, reader, slow_one));
        num_shared += !unwritten.back().is_whole();
        WireFrame quick = round.encode(attempt, group, false, reader, quick_one);
        EXPECT_FALSE(quick.is_whole());
        EXPECT_EQ(std::move(quick).whole(), WireFrame(unwritten.back()).whole());
    }
    EXPECT_EQ(num_shared, 4u) << "8 MiB";
    EXPECT_TRUE(round.encode(attempt, group, true, reader, quick_one).is_whole()) << "compressed";

    round.close();
    EXPECT_EQ(reader.pool()->bytes_out(), 4u * num_rows * wide * 2) << "four frames wait";
    EXPECT_EQ(*slow_one, 4u * num_rows * wide * 2);
    unwritten.clear();
    EXPECT_EQ(reader.pool()->bytes_out(), 0u);
    EXPECT_EQ(*slow_one + *quick_one, 0u);
}

// Rounds alternate: their rows are sent as int8, as f16, widened to bf16, or in several of these
// encodings. The engine's thread makes each needed encoding once per round; the strand encodes no
// rows.
TEST(RoundTest, RowsAreEncodedBeforeTheStrandReceivesThem) {
    const RoundOptions options = deterministic_options();
    const RowReader reader = reader_of(options);
    const Rows mixed({0.5f, 70000.0f, 3.0f}), narrow({0.5f, 3.0f});
    const std::vector<std::pair<const Rows*, bool>> turns{// rows, and true for int8
                                                          {&mixed, true},
                                                          {&narrow, false},
                                                          {&narrow, true},
                                                          {&mixed, false}};
    const auto held = std::make_shared<RowsHeld>();
    std::uint64_t num_late = 0;
    for (int i = 0; i < 40; ++i) {
        const auto [rows, x_int8] = turns[static_cast<std::size_t>(i) % turns.size()];
        const std::uint64_t before = reader.pool()->num_encoded();
        Round round;
        ASSERT_TRUE(round.open(rows->batch(), reader.read(rows->batch()), options, {}).ok());
        const std::uint64_t read = reader.pool()->num_encoded();
        for (std::uint32_t slice = 0; slice < round.slices.size(); ++slice) {
            Attempt attempt;
            attempt.slices = {slice};
            GroupDispatch group;
            round.fill_group(attempt, group);
            group.x_int8 = x_int8 && group.shape.dtype == Dtype::f16;
            (void)round.encode(attempt, group, false, reader, held);
        }
        if (i < 4) continue;  // in the first rounds the reader has not seen both encodings yet
        EXPECT_EQ(read - before, rows == &mixed ? 3u : 2u);
        num_late += reader.pool()->num_encoded() - read;
    }
    EXPECT_EQ(num_late, 0u);
}

TEST(RoundTest, ARowNamesTheWorkersOfItsOwnPairsOnly) {
    Round round = opened(Rows({1.0f, 70000.0f}));
    for (const std::uint32_t block : {0u, 1u}) {
        Attempt attempt;
        attempt.worker = 7 + block;
        attempt.slices = {2 * block, 2 * block + 1};
        GroupDispatch group;
        round.fill_group(attempt, group);
        EXPECT_EQ(round.accept(attempt, std::vector<float>(top_k * hidden, 1.0f), true), 2u);
    }
    ExpertAnswer answer;
    const std::vector<float> y = round.finish(answer).values();
    EXPECT_EQ(answer.workers, (std::vector<std::uint64_t>{7, 8}));
    ASSERT_EQ(answer.row_workers.size(), 2u);

    for (const RowWorker& from : answer.row_workers) EXPECT_EQ(from.worker, 7u + from.row);
    EXPECT_EQ(y, std::vector<float>(2 * hidden, 2.0f));
}

}  // namespace
}  // namespace moex
