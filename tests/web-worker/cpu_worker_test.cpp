// A worker that computes on the processor. Its answers have the bits of the hub's local backend in
// both arithmetics, whatever rows share a group. Other tests: the experts that the worker keeps
// when its memory limit changes, and WorkerCore on the processor.
#include <cstring>
#include <map>

#include "protocol/expert_reference.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/web-worker/integer_cases.h"
#include "tests/web-worker/stage.h"
#include "web-worker/cpu/cpu_compute.h"

namespace moex {
namespace {

// A group as the hub sends it, and the values that the group was made from.
struct Asked {
    std::vector<float> x;
    std::vector<std::uint16_t> ids;
    std::vector<float> weights;  // rounded to f16
    GroupDispatch group;
};

using Form = std::tuple<WorkerArithmetic, ExpertForm>;

class CpuWorkerTest : public testing::TestWithParam<Form> {
  protected:
    CpuWorkerTest()
        : package_(package_of(std::get<ExpertForm>(GetParam()))),
          config_(package_->config()),
          compute_(platform_, {.arithmetic = arithmetic(), .threads = 2}) {
        EXPECT_EQ(package_->expert_shape().form(), std::get<ExpertForm>(GetParam()));
        welcome_.limits = {.hidden_size = config_.hidden_size,
                           .num_layers = config_.num_layers,
                           .num_experts = config_.num_experts,
                           .num_tokens_max = 64,
                           .num_pairs_max = 128};
        welcome_.expert_shape = package_->expert_shape();
        welcome_.expert_blob_bytes = expert_blob_layout(welcome_.expert_shape).size_bytes;
        parts_ = compute_.make(welcome_, config_.num_experts * welcome_.expert_blob_bytes, 8 << 20);
        for (std::uint16_t expert = 0; expert < config_.num_experts; ++expert)
            EXPECT_TRUE(parts_.store->put({2, expert}, *package_->blob(2, expert)).ok());
    }

    static WorkerArithmetic arithmetic() { return std::get<WorkerArithmetic>(GetParam()); }

    // About half of the values reach the clamp.
    static std::shared_ptr<const ModelPackage> package_of(ExpertForm form) {
        if (form == ExpertForm::plain) return test::tiny_package();
        const bool is_mxfp4 = form != ExpertForm::clamped;
        ModelConfig config = test::tiny_config();
        for (LayerPlan& plan : config.layers) {
            if (!plan.is_routed || form == ExpertForm::mxfp4) continue;
            plan.activation = Activation::clamped_swiglu;
            plan.activation_limit = 0.1;
            plan.has_expert_bias = true;
        }
        static std::map<ExpertForm, std::shared_ptr<const ModelPackage>> packages;
        std::shared_ptr<const ModelPackage>& package = packages[form];
        if (!package)
            package = test::synth(config, text("form-", static_cast<int>(form)),
                                  is_mxfp4 ? ExpertDtype::mxfp4 : ExpertDtype::int4);
        return package;
    }

    Asked ask(std::uint32_t num_tokens, Dtype dtype, bool unsummed) const {
        const std::uint32_t hidden = config_.hidden_size, top_k = config_.top_k;
        Asked asked;
        asked.x = test::random_floats(std::size_t{num_tokens} * hidden, num_tokens);
        for (std::uint32_t token = 0; token < num_tokens; ++token)
            for (std::uint32_t i = 0; i < top_k; ++i) {
                asked.ids.push_back(static_cast<std::uint16_t>((token * 3 + i * 5) % 8));
                asked.weights.push_back(half_to_float(float_to_half(0.3f + 0.21f * float(i))));
            }

        GroupDispatch& group = asked.group;
        group.shape = {.layer = 2,
                       .num_tokens = num_tokens,
                       .hidden_dim = static_cast<std::uint16_t>(hidden),
                       .dtype = dtype,
                       .unsummed = unsummed,
                       .num_pairs = num_tokens * top_k};
        for (std::uint16_t expert = 0; expert < config_.num_experts; ++expert) {
            std::uint16_t num_rows = 0;
            for (std::uint32_t pair = 0; pair < asked.ids.size(); ++pair) {
                if (asked.ids[pair] != expert) continue;
                ++num_rows;
                group.rows.push_back(static_cast<std::uint16_t>(pair / top_k));
                group.gates.push_back(float_to_half(asked.weights[pair]));
            }
            if (num_rows > 0) group.experts.push_back({expert, num_rows});
        }
        group.shape.num_experts = static_cast<std::uint16_t>(group.experts.size());
        group.x = asked.x;
        return asked;
    }

    // Returns the worker's answer, decoded: [num_tokens or num_pairs, hidden_size].
    Result<std::vector<float>> run(const GroupDispatch& group) {
        const Bytes frame = encode_group_dispatch(group, false);
        GroupDispatchView view;
        Bytes scratch;
        MOEX_TRY(decode_group_dispatch_into(view, frame, welcome_.limits, scratch));

        Result<std::vector<float>> answer = Error{ErrorCode::internal, "nothing was delivered"};
        const auto take = [&](Result<ByteView> y) {
            if (!y.ok()) {
                answer = y.error();
                return;
            }
            const std::uint32_t rows = group.shape.unsummed ? group.shape.num_pairs
                                                            : group.shape.num_tokens;
            std::vector<float> values(std::size_t{rows} * config_.hidden_size);
            EXPECT_TRUE(decode_rows(group.shape.dtype, *y, config_.hidden_size, values));
            answer = std::move(values);
        };
        MOEX_TRY(parts_.runner->run_group(view, take, {}));
        EXPECT_FALSE(parts_.runner->has_free_lane());
        platform_.run_until([&] { return parts_.runner->has_free_lane(); });
        return answer;
    }

    std::vector<float> local(const Asked& asked, std::span<const float> x, bool deterministic) {
        LocalExperts experts(package_, test::compute_threads(),
                             {.deterministic = deterministic, .wire_dtype = Dtype::f16},
                             deterministic || arithmetic() == WorkerArithmetic::exact
                                 ? Arithmetic::exact
                                 : Arithmetic::int8);
        std::vector<float> y(x.size());
        const auto answer = experts
                                .submit({.layer = 2,
                                         .num_tokens = asked.group.shape.num_tokens,
                                         .hidden_size = config_.hidden_size,
                                         .top_k = config_.top_k,
                                         .x = x,
                                         .expert_ids = asked.ids,
                                         .expert_weights = asked.weights,
                                         .y = y})
                                ->wait();
        EXPECT_TRUE(answer.ok());
        return y;
    }

    static bool same_bits(std::span<const float> a, std::span<const float> b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
    }

    std::shared_ptr<const ModelPackage> package_;
    const ModelConfig& config_;
    Stage platform_;
    CpuCompute compute_;
    Welcome welcome_;
    Compute::Parts parts_;
};

INSTANTIATE_TEST_SUITE_P(
    BothArithmetics, CpuWorkerTest,
    testing::Combine(testing::Values(WorkerArithmetic::exact, WorkerArithmetic::int8),
                     testing::Values(ExpertForm::plain, ExpertForm::clamped, ExpertForm::mxfp4,
                                     ExpertForm::mxfp4_clamped)),
    [](const auto& info) {
        const ExpertForm form = std::get<ExpertForm>(info.param);
        const auto arithmetic = std::get<WorkerArithmetic>(info.param);
        return text(worker_arithmetic_name(arithmetic), form == ExpertForm::mxfp4 ? "_mxfp4"
                                                        : form == ExpertForm::mxfp4_clamped
                                                            ? "_mxfp4_clamped"
                                                        : form == ExpertForm::clamped ? "_clamped"
                                                                                      : "");
    });

TEST_P(CpuWorkerTest, AnAnswerHasTheBitsOfTheHubsLocalBackend) {
    for (const std::uint32_t num_tokens : {1u, 2u, 7u, 64u}) {
        const Asked asked = ask(num_tokens, Dtype::f32, false);
        const auto answer = run(asked.group);
        ASSERT_TRUE(answer.ok()) << answer.error().message;
        EXPECT_TRUE(same_bits(*answer, local(asked, asked.x, false))) << num_tokens << " rows";
    }
}

// With the wire dtypes f16 and int8, x and the answer are rounded. No other value is rounded.
TEST_P(CpuWorkerTest, OnTheWireOnlyRowsAreRounded) {
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::int8}) {
        const Asked asked = ask(5, dtype, false);
        auto x = asked.x;
        round_rows(dtype, x, config_.hidden_size);
        auto wanted = local(asked, x, false);
        round_rows(dtype, wanted, config_.hidden_size);
        const auto answer = run(asked.group);
        ASSERT_TRUE(answer.ok()) << answer.error().message;
        EXPECT_TRUE(same_bits(*answer, wanted)) << dtype_name(dtype);
    }
}

// A hub with --deterministic adds the workers' answers to a sum with the same bits as its local
// backend.
TEST_P(CpuWorkerTest, UnsummedAnswersAddUpToADeterministicLocalBackend) {
    if (arithmetic() == WorkerArithmetic::int8)
        GTEST_SKIP() << "SKIPPED: a deterministic hub asks for exact answers";
    const Asked asked = ask(9, Dtype::f16, true);
    const auto answers = run(asked.group);
    ASSERT_TRUE(answers.ok()) << answers.error().message;

    const std::size_t hidden = config_.hidden_size;
    std::vector<float> sums(asked.x.size(), 0.0f);
    for (std::size_t slot = 0; slot < asked.group.rows.size(); ++slot)
        for (std::size_t i = 0; i < hidden; ++i)
            sums[asked.group.rows[slot] * hidden + i] += (*answers)[slot * hidden + i];
    EXPECT_TRUE(same_bits(sums, local(asked, asked.x, true)));
}

TEST_P(CpuWorkerTest, RowDoesNotDependOnTheRowsBesideIt) {
    const Asked asked = ask(17, Dtype::f16, true);
    const auto together = run(asked.group);
    ASSERT_TRUE(together.ok());

    const std::size_t hidden = config_.hidden_size;
    std::size_t slot = 0;
    for (const GroupExpert& expert : asked.group.experts)
        for (std::uint16_t i = 0; i < expert.num_rows; ++i, ++slot) {
            GroupDispatch alone = asked.group;
            alone.shape.num_tokens = alone.shape.num_pairs = 1;
            alone.shape.num_experts = 1;
            alone.experts = {{expert.expert, 1}};
            alone.rows = {0};
            alone.gates = {asked.group.gates[slot]};
            const auto row = asked.x.begin() + std::ptrdiff_t(asked.group.rows[slot] * hidden);
            alone.x.assign(row, row + std::ptrdiff_t(hidden));
            const auto single = run(alone);
            ASSERT_TRUE(single.ok());
            EXPECT_TRUE(same_bits(*single, std::span(*together).subspan(slot * hidden, hidden)))
                << "slot " << slot;
        }
}

TEST_P(CpuWorkerTest, GroupsThatItCannotTakeAreRefused) {
    Asked asked = ask(4, Dtype::f32, false);
    asked.group.shape.layer = 1;
    EXPECT_EQ(run(asked.group).error().code, ErrorCode::unknown_expert);

    asked = ask(4, Dtype::f16, false);
    // The dtype f16 can represent x, but not the answers of plain experts. A clamp bounds answers.
    for (float& value : asked.group.x) value *= 30000.0f;
    for (float& value : asked.group.x) value = std::clamp(value, -65000.0f, 65000.0f);
    for (half& gate : asked.group.gates) gate = float_to_half(60000.0f);
    const auto large = run(asked.group);
    EXPECT_EQ(large.ok(), !package_->expert_shape().is_plain());
    if (!large.ok()) EXPECT_EQ(large.error().code, ErrorCode::non_finite);

    parts_.runner->refit(welcome_, 20'000, nullptr);
    const std::uint32_t pairs_max = parts_.runner->pairs_max(1);
    ASSERT_LT(pairs_max, 128u);
    EXPECT_EQ(run(ask(64, Dtype::f32, false).group).error().code, ErrorCode::num_tokens_range);
    EXPECT_TRUE(run(ask(1, Dtype::f32, false).group).ok());
}

TEST_P(CpuWorkerTest, KeptExpertsAnswerAsBeforeUnderASmallerLimit) {
    const auto only = [&](std::uint16_t expert) {
        Asked asked = ask(1, Dtype::f32, false);
        asked.group.shape.num_pairs = asked.group.shape.num_experts = 1;
        asked.group.experts = {{expert, 1}};
        asked.group.rows = {0};
        asked.group.gates.resize(1);
        return asked.group;
    };
    const auto first = run(only(1)), last = run(only(7));

    UnitStore& store = *parts_.store;
    EXPECT_EQ(store.put({3, 0}, *package_->blob(3, 0)).error().code, ErrorCode::no_space);
    for (const std::uint16_t expert : {0, 2, 3, 4, 5}) store.drop({2, expert});
    ASSERT_TRUE(store.resize(3 * welcome_.expert_blob_bytes).ok());
    EXPECT_EQ(store.bytes_max(), 3 * welcome_.expert_blob_bytes);
    EXPECT_EQ(store.units_from_the_end().size(), 3u);
    EXPECT_TRUE(same_bits(*run(only(1)), *first));
    EXPECT_TRUE(same_bits(*run(only(7)), *last));

    ASSERT_TRUE(store.resize(6 * welcome_.expert_blob_bytes).ok());
    ASSERT_TRUE(store.put({2, 0}, *package_->blob(2, 0)).ok());
    EXPECT_TRUE(same_bits(*run(only(7)), *last));
}

// The same cases run as WASM (simd128.test.mjs), and their answers must have the same bits.
TEST(IntegerCasesTest, ThisMachineGivesTheBitsOfEveryOther) {
    EXPECT_EQ(integer_disagreements(), "");
    EXPECT_EQ(answers_digest(test::compute_threads()), expected_answers_digest)
        << std::hex << answers_digest(test::compute_threads());
}

// ---- the core

WorkerOptions on_the_processor(WorkerArithmetic arithmetic) {
    return {.backend = WorkerBackend::cpu, .arithmetic = arithmetic, .threads = 1};
}

TEST(CpuWorkerCoreTest, WorkerReportsItsArithmeticAndAnswers) {
    for (const auto arithmetic : {WorkerArithmetic::exact, WorkerArithmetic::int8}) {
        Stage stage(64u << 20, on_the_processor(arithmetic));
        stage.core->start();
        const auto hello = decode_hello(stage.next(FrameType::hello));
        ASSERT_TRUE(hello.ok());
        EXPECT_EQ(hello->arithmetic, arithmetic);
        EXPECT_EQ(hello->device.backend, "cpu");
        EXPECT_FALSE(hello->device.software);
        EXPECT_EQ(stage.devices_opened, 0);

        stage.give(stage.welcome_frame());
        stage.assign({1, 4});
        const GroupDispatch group = group_of(11, 4);
        stage.give(encode_group_dispatch(group, false));
        const auto result = decode_group_result(stage.next(FrameType::group_result), stage.limits);
        ASSERT_TRUE(result.ok()) << result.error().message;
        EXPECT_LE(error_of(result->y, group), arithmetic == WorkerArithmetic::exact ? 1e-6 : 2e-2);
        EXPECT_LE(stage.status().self_test_nrmse, 1e-6);
        EXPECT_EQ(std::ranges::count(hello->caps, std::string_view(mxfp4_cap)), 1);
    }
}

TEST(CpuWorkerCoreTest, WorkerComputesClampedExpertsInBothArithmetics) {
    for (const auto arithmetic : {WorkerArithmetic::exact, WorkerArithmetic::int8}) {
        Stage stage(64u << 20, on_the_processor(arithmetic));
        stage.shape = clamped_shape;
        stage.serve({1, 4});
        const GroupDispatch group = group_of(11, 4);
        stage.give(encode_group_dispatch(group, false));
        const auto result = decode_group_result(stage.next(FrameType::group_result), stage.limits);
        ASSERT_TRUE(result.ok()) << result.error().message;
        EXPECT_LE(error_of(result->y, group, clamped_shape),
                  arithmetic == WorkerArithmetic::exact ? 1e-6 : 2e-2);
        EXPECT_GT(error_of(result->y, group, stage_shape), 0.1);
        EXPECT_EQ(stage.status().self_test_rounds, 2u);
    }
}

TEST(CpuWorkerCoreTest, WorkerAnswersExactlyIfTheHubAsks) {
    Stage stage(64u << 20, on_the_processor(WorkerArithmetic::int8));
    stage.hub_asks = WorkerArithmetic::exact;
    stage.serve({2});
    stage.expect_answer(5, 2);  // fails if the error is above 1e-6, so the arithmetic was exact
}

TEST(CpuWorkerCoreTest, AGpuDoesNotAnswerInInt8) {
    Stage stage;
    stage.hub_asks = WorkerArithmetic::int8;
    stage.core->start();
    stage.welcome();
    const auto error = decode_error(stage.next(FrameType::error));
    EXPECT_EQ(error->code, "unsupported");
    EXPECT_TRUE(error->fatal);
}

TEST(CpuWorkerCoreTest, WorkerWithoutAGpuComputesOnTheProcessor) {
    for (const auto backend : {WorkerBackend::gpu, WorkerBackend::automatic}) {
        Stage stage(64u << 20, {.backend = backend});
        stage.no_gpu = true;
        stage.core->start();
        if (backend == WorkerBackend::gpu) {
            stage.run_until_phase(WorkerPhase::failed);
            continue;
        }
        stage.welcome();
        stage.assign({1});
        stage.run_until_phase(WorkerPhase::serving);
        EXPECT_EQ(stage.status().adapter.backend, "cpu");
        EXPECT_EQ(stage.status().no_gpu, "no adapter");
    }
}

TEST(CpuWorkerCoreTest, GpuLostRepeatedlyFallsBackToTheProcessor) {
    Stage stage(64u << 20, {.backend = WorkerBackend::automatic});
    stage.serve({1});
    EXPECT_EQ(stage.status().adapter.backend, "vulkan");
    stage.long_waits = true;
    for (int loss = 0; stage.status().adapter.backend == "vulkan"; ++loss) {
        ASSERT_LT(loss, 10);
        stage.device->break_down("reset");
        stage.welcome();
    }
    EXPECT_EQ(stage.status().adapter.backend, "cpu");
    stage.long_waits = false;
    stage.assign({1});
    stage.run_until_phase(WorkerPhase::serving);
}

}  // namespace
}  // namespace moex
