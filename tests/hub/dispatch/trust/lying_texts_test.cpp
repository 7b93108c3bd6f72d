// Tests liars with the demo model's experts and real threads. The hub computes no expert for its
// replies, but judges answers with its own weights. It must produce every token of a text exactly
// as it does without workers, bit for bit. For a longer run by hand, MOEX_LIES_TOKENS=10000 sets
// the total number of tokens.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "hub/engine/local_experts.h"
#include "hub/engine/perplexity.h"
#include "tests/hub/dispatch/core/thread_host.h"
#include "tests/support/lies.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

// A worker that holds all units, computes in f32, and lies in a share of its answers.
class Liar : public WorkerLink {
  public:
    Liar(ThreadHost& host, const LocalExperts& experts, WireLimits limits, Lie lie, double share)
        : host_(host),
          experts_(experts),
          limits_(limits),
          lie_(lie),
          share_(share) {}

    void join(SwarmBackend& backend, std::shared_ptr<WorkerLink> self, std::string key) {
        backend_ = &backend;
        id_ = backend.on_connect(std::move(self), "127.0.0.1", true);
        Hello hello;
        hello.device.budget_bytes = 1ull << 40;
        hello.worker_key = std::move(key);
        backend.on_frame(id_, encode_hello(hello));
    }
    void send(WireFrame gathered) override {
        const Bytes frame = std::move(gathered).whole();
        const auto header = decode_frame_header(frame);
        if (header->type == FrameType::heartbeat) reply(encode_heartbeat(header->sequence_id));
        if (header->type == FrameType::assign) {
            std::vector<Unit> units;
            const auto assigned = decode_assign(frame, limits_);
            for (const AssignedUnit& unit : assigned->units)
                units.push_back({unit.layer, unit.expert});
            reply(encode_ready(units));
        }
        if (header->type == FrameType::group_dispatch) reply(answer(frame));
    }
    void close(CloseCode code, const std::string& reason) override {
        closed_ = code;
        reason_ = reason;
    }
    void set_frame_limit(std::uint64_t) override {}

    std::optional<CloseCode> closed() const { return closed_; }
    const std::string& reason() const { return reason_; }
    std::uint64_t num_answers() const { return num_answers_; }

  private:
    void reply(Bytes frame) {
        host_.post([this, frame = std::move(frame)] {
            if (!closed_) backend_->on_frame(id_, frame);
        });
    }

    Bytes answer(const Bytes& frame) {
        const auto call = decode_group_dispatch(frame, limits_);
        const std::size_t hidden = limits_.hidden_size;
        const bool lies = static_cast<double>(random_() >> 11) * 0x1p-53 < share_;
        const Lie lie = lies ? lie_ : Lie::none;
        ++num_answers_;

        GroupResult result{.sequence_id = call->sequence_id, .shape = call->shape};
        // with deterministic rounding the answer has one row per pair
        result.y.resize(call->rows.size() * hidden);
        std::size_t pair = 0;
        for (const GroupExpert& expert : call->experts) {
            std::vector<float> x(expert.num_rows * hidden), gates(expert.num_rows);
            for (std::size_t i = 0; i < expert.num_rows; ++i) {
                std::copy_n(call->x.data() + call->rows[pair + i] * hidden, hidden,
                            x.data() + i * hidden);
                gates[i] = half_to_float(call->gates[pair + i]);
            }
            const std::uint32_t asked = expert.expert + (lie == Lie::other_expert);
            EXPECT_TRUE(experts_
                            .compute(call->shape.layer, asked % limits_.num_experts, x, gates,
                                     std::span(result.y).subspan(pair * hidden, x.size()))
                            .ok());
            pair += expert.num_rows;
        }
        tell_lie(lie, std::span(result.y), previous_, random_);
        return encode_group_result(result, false);
    }

    ThreadHost& host_;
    const LocalExperts& experts_;
    const WireLimits limits_;
    const Lie lie_;
    const double share_;
    SwarmBackend* backend_ = nullptr;
    WorkerId id_ = 0;
    std::optional<CloseCode> closed_;
    std::string reason_;
    std::uint64_t num_answers_ = 0;
    std::vector<float> previous_;
    std::mt19937_64 random_{11};
};

class LyingTexts : public testing::Test {
  protected:
    LyingTexts()
        : package_(*ModelPackage::open(repository() / "static/models/demo")),
          threads_(2),
          experts_(package_, threads_, rounding()),
          workers_experts_(package_, workers_threads_, {}),
          decoder_(*Decoder::create(package_, threads_, {})) {
        const auto tokenizer = *Tokenizer::load(*package_->tokenizer_file("tokenizer.json"),
                                                *package_->tokenizer_file("tokenizer_config.json"));
        std::ifstream file(repository() / "tests/golden/demo/val_excerpt.txt");
        tokens_ = tokenizer->encode(std::string(std::istreambuf_iterator<char>(file), {}),
                                    SpecialTokens::as_text);
        if (const char* wanted = std::getenv("MOEX_LIES_TOKENS"))
            num_windows_ = static_cast<std::uint32_t>(std::atoi(wanted) / 12 / window_tokens + 1);
    }
    static ExpertRounding rounding() { return {.deterministic = true}; }

    SwarmOptions options() const {
        const ModelConfig& config = package_->config();
        SwarmOptions options;
        options.limits.hidden_size = config.hidden_size;
        options.limits.num_layers = config.num_layers;
        options.limits.num_experts = config.num_experts;
        options.expert_shape = package_->expert_shape();
        options.top_k = config.top_k;
        options.expert_blob_bytes = package_->expert_blob_bytes();
        options.layer_is_moe = config.layer_is_moe();
        options.blob_hash = [this](std::uint32_t layer, std::uint32_t expert) {
            return package_->blob_hash(layer, expert);
        };
        options.rounding = rounding();
        options.local_fallback = false;
        options.replicas = 3;
        options.round_deadline = 300s;  // long enough for a test on a busy machine
        options.timeout_max = 60s;
        options.checks = {.on = true, .seed = 3};
        return options;
    }

    double mean_nll(ExpertBackend& experts) {
        const auto read = measure_perplexity(
            *decoder_, experts, tokens_,
            {.window_tokens = window_tokens, .num_windows = num_windows_}, {});
        EXPECT_TRUE(read.ok()) << read.error().message;
        return read.ok() ? read->mean_nll : 0;
    }

    // Runs two honest workers and one liar. Checks that the predicted tokens are right, and that
    // the hub saw the lies.
    void expect_unchanged(Lie lie, double share) {
        ThreadHost host;
        auto backend = std::make_unique<SwarmBackend>(options(), host, &experts_, nullptr);
        std::vector<std::shared_ptr<Liar>> workers;
        for (const Lie one : {Lie::none, lie, Lie::none})
            workers.push_back(
                std::make_shared<Liar>(host, workers_experts_, options().limits, one, share));
        host.post([&] {
            for (std::size_t i = 0; i < workers.size(); ++i)
                workers[i]->join(*backend, workers[i], text("worker ", i));
        });

        const double alone = mean_nll(experts_);
        EXPECT_EQ(mean_nll(*backend), alone);
        host.stop();
        const SwarmCounters counts = backend->core().counters();
        EXPECT_GT(counts.pairs_verified, 0u);
        EXPECT_EQ(counts.pairs_unchecked, 0u);
        EXPECT_EQ(counts.calls_local, 0u);
        EXPECT_LE(counts.residual_max, 1.0 / 3);
        EXPECT_GT(workers[1]->num_answers(), 0u);
        // Groups of a prefill seldom have the same size as the group before them, so Lie::previous
        // has no earlier answer to repeat.
        if (share == 1 && lie != Lie::previous) {
            // On a busy machine the hub may have sent the liar fewer than three calls.
            EXPECT_EQ(counts.lies, std::min<std::uint64_t>(3, workers[1]->num_answers()));
            if (counts.lies == 3) {
                EXPECT_EQ(workers[1]->closed(), CloseCode::policy);
            }
        }
        for (const std::size_t honest : {0, 2})
            EXPECT_EQ(workers[honest]->closed(), std::nullopt) << workers[honest]->reason();
        std::printf("%u tokens, %llu rows computed again, residual of honest ones %.3f\n",
                    num_windows_ * window_tokens,
                    static_cast<unsigned long long>(counts.rows_right), counts.residual_max);
    }

    static constexpr std::uint32_t window_tokens = 24;
    std::uint32_t num_windows_ = 2;
    std::shared_ptr<const ModelPackage> package_;
    ThreadPool threads_, workers_threads_{1};
    LocalExperts experts_, workers_experts_;
    std::unique_ptr<Decoder> decoder_;
    std::vector<TokenId> tokens_;
};

TEST_F(LyingTexts, NoneOfElevenKindsOfLiesChangesABit) {
    for (std::size_t i = 0; i < plausible_lies.size(); ++i) {
        SCOPED_TRACE(std::string(plausible_lie_names[i]));
        expect_unchanged(plausible_lies[i], 1);
    }
}

TEST_F(LyingTexts, OccasionalLiesOfANewWorkerChangeNothing) {
    expect_unchanged(Lie::scaled_10, 0.01);
}

}  // namespace
}  // namespace moex
