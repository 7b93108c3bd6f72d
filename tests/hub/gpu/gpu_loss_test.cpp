// The GPU is lost while an engine answers. The answers continue on the device that is opened next,
// or on the hub's cores, with the same text as without the loss.
#include <future>

#include <gtest/gtest.h>

#include "hub/commands/gpu/gpu_steps.h"
#include "hub/engine/decoder.h"
#include "hub/engine/engine.h"
#include "hub/engine/local_experts.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/gpu/losable_device.h"
#include "tests/hub/gpu/requests.h"

namespace moex {
namespace {

struct Answer {
    std::vector<TokenId> ids;
    FinishReason reason = FinishReason::error;
    std::string error;
};

class GpuLossTest : public testing::Test {
  protected:
    GpuStepsOptions options() {
        return {.device = "0",
                .holds_experts = holds_experts_,
                .sequences_max = 4,
                .step_rows_max = 64,
                .micro_batches_max = 2,
                .cores = [this]() -> Result<StepDevice*> {
                    ++cores_asked_;
                    return cores_.get();
                },
                .open_device = losable(fate_)};
    }
    static EngineOptions engine_options(const GpuSteps& steps) {
        const KvCacheOptions pages = steps.kv_pages();
        return {.step_rows_max = 64,
                .kv_bytes_max = steps.kv_bytes(),
                .page_tokens = pages.page_tokens,
                .kv_dtype = pages.dtype,
                .micro_batches = 2};
    }
    // Sends each request when the request before has its first token; `on_token` is called for the
    // tokens of the last request.
    std::vector<Answer> write(GpuSteps& steps, std::span<const GenerationRequest> requests,
                              const std::function<void(std::uint32_t index)>& on_token = {}) {
        std::vector<Answer> answers(requests.size());
        std::vector<std::promise<void>> ends(requests.size());
        Engine engine(steps, experts_, engine_options(steps));
        std::function<void(std::size_t)> send = [&](std::size_t index) {
            if (index == requests.size()) return;
            const bool is_last = index + 1 == requests.size();
            const auto hear = [&, index, is_last](const TokenEvent& event) {
                answers[index].ids.push_back(event.token.id);
                if (event.index == 0) send(index + 1);
                if (is_last && on_token) on_token(event.index);
            };
            const auto end = [&, index](const GenerationEnd& ended) {
                answers[index].reason = ended.reason;
                answers[index].error = ended.error.message;
                ends[index].set_value();
            };
            EXPECT_TRUE(engine.submit(requests[index], {.on_token = hear, .on_end = end}).ok());
        };
        send(0);
        for (auto& end : ends) end.get_future().wait();
        return answers;
    }
    static void expect_same_texts(const std::vector<Answer>& a, const std::vector<Answer>& b) {
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
            EXPECT_EQ(a[i].reason, FinishReason::length) << a[i].error;
            EXPECT_EQ(a[i].ids, b[i].ids);
        }
    }

    std::shared_ptr<const ModelPackage> package_ = test::tiny_package();
    LocalExperts experts_{package_, test::compute_threads(), {}, Arithmetic::exact};
    std::unique_ptr<Decoder> cores_ = must(Decoder::create(package_, test::compute_threads()));
    bool holds_experts_ = true;
    Fate fate_;
    std::uint32_t cores_asked_ = 0;
};

class GpuLossKindsTest : public GpuLossTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(ExpertsElsewhereAndThere, GpuLossKindsTest, testing::Bool());

// The second request has the same prefix as the first and has taken over its page, which is lost
// with the device.
TEST_P(GpuLossKindsTest, AnswersContinueUnchangedOnTheNextDevice) {
    holds_experts_ = GetParam();
    auto first = test::random_tokens(131, 256, 8), second = first;
    second.back() = 7;
    const GenerationRequest requests[] = {greedy(first, 12), greedy(second, 12)};
    const auto steps = must(open_gpu_steps(package_, test::compute_threads(), options()));
    const auto undisturbed = write(*steps, requests);
    ASSERT_EQ(fate_.opened, 1u);

    const auto disturbed = write(*steps, requests, [&](std::uint32_t index) {
        if (index == 2 || index == 8) fate_.next_submit_breaks = true;
    });
    expect_same_texts(disturbed, undisturbed);
    EXPECT_EQ(fate_.opened, 3u);
    EXPECT_EQ(cores_asked_, 0u);
}

TEST_F(GpuLossTest, CoresContinueWhenNoDeviceOpens) {
    const GenerationRequest requests[] = {greedy(test::random_tokens(40, 256, 9), 10),
                                          greedy(test::random_tokens(9, 256, 10), 8)};
    fate_.devices = 1;
    const auto steps = must(open_gpu_steps(package_, test::compute_threads(), options()));
    const auto undisturbed = write(*steps, requests);
    const auto disturbed = write(*steps, requests, [&](std::uint32_t index) {
        if (index == 3) fate_.next_submit_breaks = true;
    });
    expect_same_texts(disturbed, undisturbed);
    EXPECT_EQ(cores_asked_, 1u);
}

TEST_F(GpuLossTest, CoresContinueWhenEveryDeviceBreaksAtOnce) {
    const GenerationRequest requests[] = {greedy(test::random_tokens(20, 256, 11), 6)};
    const auto steps = must(open_gpu_steps(package_, test::compute_threads(), options()));
    const auto undisturbed = write(*steps, requests);
    const auto disturbed = write(*steps, requests, [&](std::uint32_t index) {
        if (index == 1) fate_.every_submit_breaks = true;
    });
    expect_same_texts(disturbed, undisturbed);
    EXPECT_EQ(fate_.opened, 3u);
    EXPECT_EQ(cores_asked_, 1u);
}

TEST_F(GpuLossTest, AnswerEndsWithoutADeviceAndNextRequestRetries) {
    const GenerationRequest requests[] = {greedy(test::random_tokens(20, 256, 12), 6)};
    fate_.devices = 1;
    GpuStepsOptions alone = options();
    alone.cores = {};
    const auto steps = must(open_gpu_steps(package_, test::compute_threads(), alone));
    const auto undisturbed = write(*steps, requests);
    const auto broken = write(*steps, requests, [&](std::uint32_t index) {
        if (index == 2) fate_.next_submit_breaks = true;
    });
    EXPECT_EQ(broken[0].reason, FinishReason::error);
    EXPECT_EQ(broken[0].ids.size(), 3u);
    EXPECT_NE(broken[0].error.find("it broke"), std::string::npos) << broken[0].error;

    fate_.devices = 2;
    expect_same_texts(write(*steps, requests), undisturbed);
}

}  // namespace
}  // namespace moex
