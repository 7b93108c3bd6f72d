// Tests SwarmBackend with real threads: the engine's thread waits, and the strand answers.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "hub/dispatch/core/swarm_backend.h"
#include "tests/hub/dispatch/core/thread_host.h"
#include "tests/sim/sim_swarm.h"

namespace moex {
namespace {

SwarmOptions small_options() {
    SwarmOptions options;
    options.limits = {.hidden_size = 32, .num_layers = 1, .num_experts = 8};
    options.expert_shape = {.hidden_size = 32, .moe_intermediate_size = 32, .group_size = 32};
    options.top_k = 2;
    options.expert_blob_bytes = 1000;
    options.layer_is_moe = {1};
    options.rounding.deterministic = true;
    options.token_ok = [](std::string_view) { return true; };
    options.round_deadline = 30s;
    return options;
}

// A worker that answers each request at once, on the strand.
class InstantWorker : public WorkerLink {
  public:
    InstantWorker(ThreadHost& host, WireLimits limits) : host_(host), limits_(limits) {}
    void send(WireFrame gathered) override {
        const Bytes frame = std::move(gathered).whole();
        const auto header = decode_frame_header(frame);
        ASSERT_TRUE(header.ok());
        if (header->type == FrameType::assign) {
            std::vector<Unit> units;
            const auto assigned = decode_assign(frame, limits_);
            for (const AssignedUnit& unit : assigned->units)
                units.push_back({unit.layer, unit.expert});
            reply(encode_ready(units));
        } else if (header->type == FrameType::heartbeat) {
            reply(encode_heartbeat(header->sequence_id));
        } else if (header->type == FrameType::group_dispatch) {
            const auto call = decode_group_dispatch(frame, limits_);
            GroupResult result{.sequence_id = call->sequence_id, .shape = call->shape};
            result.y.resize(std::size_t{call->shape.num_pairs} * 32);
            std::size_t pair = 0;
            for (const GroupExpert& expert : call->experts)
                for (std::uint32_t i = 0; i < expert.num_rows; ++i, ++pair)
                    sim::sim_expert(
                        0, expert.expert, call->x.data() + call->rows[pair] * std::size_t{32},
                        half_to_float(call->gates[pair]), 32, true, result.y.data() + pair * 32);
            reply(encode_group_result(result, false));
        }
    }
    void close(CloseCode, const std::string&) override {}
    void set_frame_limit(std::uint64_t) override {}
    SwarmBackend* backend = nullptr;
    WorkerId id = 0;

  private:
    void reply(Bytes frame) {
        host_.post([this, frame = std::move(frame)] {
            if (backend != nullptr) backend->on_frame(id, frame);
        });
    }
    ThreadHost& host_;
    WireLimits limits_;
};

struct OneRow {
    std::vector<float> x = std::vector<float>(32, 0.5f), y = std::vector<float>(32, -1.0f),
                       weights{0.25f, 0.75f};
    std::vector<std::uint16_t> ids{6, 3};
    ExpertBatch batch() {
        return {.layer = 0,
                .num_tokens = 1,
                .hidden_size = 32,
                .top_k = 2,
                .x = x,
                .expert_ids = ids,
                .expert_weights = weights,
                .y = y};
    }
};

TEST(SwarmBackendTest, AWorkerAnswersTheEnginesThread) {
    ThreadHost host;
    const SwarmOptions options = small_options();
    std::vector<WorkerEvent::Kind> events;
    auto backend = std::make_unique<SwarmBackend>(options, host, nullptr,
                                                  [&](const WorkerEvent& event) {
                                                      EXPECT_NE(event.view, nullptr);
                                                      events.push_back(event.kind);
                                                  });
    const auto worker = std::make_shared<InstantWorker>(host, options.limits);
    host.post([&] {
        worker->backend = backend.get();
        worker->id = backend->on_connect(worker, "127.0.0.1", false);
        Hello hello;
        hello.device.budget_bytes = 1 << 20;
        backend->on_frame(worker->id, encode_hello(hello));
    });
    OneRow row;
    std::vector<float> want(32), part(32);
    sim::sim_expert(0, 3, row.x.data(), 0.75f, 32, true, want.data());
    sim::sim_expert(0, 6, row.x.data(), 0.25f, 32, true, part.data());

    for (std::size_t i = 0; i < 32; ++i) want[i] += part[i];
    for (int i = 0; i < 200; ++i) {
        std::fill(row.y.begin(), row.y.end(), -1.0f);
        // The first round waits inside the backend until the worker is ready.
        const auto answer = backend->submit(row.batch())->wait();
        ASSERT_TRUE(answer.ok()) << answer.error().message;
        EXPECT_EQ(row.y, want);
        EXPECT_EQ(answer->workers, std::vector<std::uint64_t>{worker->id});
        EXPECT_EQ(answer->rows[0].pairs_remote, 2);
    }
    host.stop();
    EXPECT_EQ(events, (std::vector{WorkerEvent::Kind::joined, WorkerEvent::Kind::ready}));
}

TEST(SwarmBackendTest, DroppedRoundsAndADestroyedBackendEndAllWaits) {
    ThreadHost host;
    auto backend = std::make_unique<SwarmBackend>(small_options(), host, nullptr, nullptr);
    for (int i = 0; i < 50; ++i) {
        OneRow row;  // the row is destroyed before its round ends
        backend->submit(row.batch());
    }
    OneRow row;

    auto round = backend->submit(row.batch());
    std::thread engine([&] {
        const auto answer = round->wait();
        ASSERT_FALSE(answer.ok());
        EXPECT_EQ(answer.error().code, ErrorCode::cancelled);
    });
    backend.reset();
    engine.join();
    round.reset();
    host.stop();
}

TEST(SwarmBackendTest, WaitEndsOnAStopRequest) {
    ThreadHost host;
    SwarmOptions options = small_options();
    options.holder_wait = 30s;
    SwarmBackend backend(options, host, nullptr, nullptr);
    OneRow row;
    for (int i = 0; i < 100; ++i) {
        std::stop_source stop;
        auto round = backend.submit(row.batch());
        // The stop request arrives before, at or after the begin of the wait.
        std::thread stopper([&] { stop.request_stop(); });
        const auto answer = round->wait(stop.get_token());
        stopper.join();
        ASSERT_FALSE(answer.ok());
        EXPECT_EQ(answer.error().code, ErrorCode::cancelled);
    }
    host.stop();
}

// A worker that has its own thread, as a connection has. The thread gathers the frames, answers
// them, and decodes the answers, while the strand and the engine continue.
class ThreadedWorker : public WorkerLink {
  public:
    ThreadedWorker(SwarmBackend& backend, ThreadHost& host, WireLimits limits)
        : backend_(backend),
          host_(host),
          limits_(limits) {}
    ~ThreadedWorker() override { own_.stop(); }

    void join(const std::shared_ptr<ThreadedWorker>& self, std::string key) {
        id_ = backend_.on_connect(self, "127.0.0.1", false);
        reader_.emplace(backend_.core().answer_reader(id_));
        Hello hello;
        hello.device.budget_bytes = 1 << 20;
        hello.worker_key = std::move(key);
        backend_.on_frame(id_, encode_hello(hello));
    }
    void send(WireFrame frame) override {
        if (!frame.is_whole()) ++num_gathered;
        auto kept = std::make_shared<WireFrame>(std::move(frame));
        own_.post([this, kept] { read(std::move(*kept).whole()); });
    }
    void close(CloseCode, const std::string&) override {}
    void set_frame_limit(std::uint64_t) override {}

    std::atomic<int> num_gathered = 0, num_answers = 0;

  private:
    void read(const Bytes& frame) {
        const FrameType type = decode_frame_header(frame)->type;
        if (type == FrameType::assign) {
            std::vector<Unit> units;
            const auto assigned = decode_assign(frame, limits_);
            for (const AssignedUnit& unit : assigned->units)
                units.push_back({unit.layer, unit.expert});
            host_.post([this, ready = encode_ready(units)] { backend_.on_frame(id_, ready); });
        } else if (type == FrameType::heartbeat) {
            host_.post([this, frame] { backend_.on_frame(id_, frame); });
        } else if (type == FrameType::group_dispatch) {
            const auto call = decode_group_dispatch(frame, limits_);
            GroupResult result{.sequence_id = call->sequence_id, .shape = call->shape};
            result.y.assign(std::size_t{call->shape.num_pairs} * limits_.hidden_size, 0.5f);
            auto answer = std::make_shared<std::optional<WorkerAnswer>>(
                reader_->read(encode_group_result(result, false)));
            ++num_answers;
            host_.post([this, answer] { backend_.on_answer(id_, **std::move(answer)); });
        }
    }

    SwarmBackend& backend_;
    ThreadHost& host_;
    const WireLimits limits_;
    std::optional<AnswerReader> reader_;
    WorkerId id_ = 0;
    ThreadHost own_;
};

TEST(SwarmBackendTest, ConnectionsGatherAndReadOnThreadsOfTheirOwn) {
    constexpr std::uint32_t hidden = 1024, num_rows = 64;
    ThreadHost host;
    SwarmOptions options = small_options();
    options.limits.hidden_size = options.expert_shape.hidden_size = hidden;
    options.replicas = 1;
    SwarmBackend backend(options, host, nullptr, nullptr);
    std::vector<std::shared_ptr<ThreadedWorker>> workers;
    for (int i = 0; i < 3; ++i)
        workers.push_back(std::make_shared<ThreadedWorker>(backend, host, options.limits));
    host.post([&] {
        for (std::size_t i = 0; i < workers.size(); ++i)
            workers[i]->join(workers[i], text("worker ", i));
    });

    const std::vector<float> x(std::size_t{num_rows} * hidden, 0.25f),
        weights(std::size_t{2} * num_rows, 0.5f);
    std::vector<std::uint16_t> ids;
    for (std::uint16_t row = 0; row < num_rows; ++row)
        ids.insert(ids.end(), {static_cast<std::uint16_t>(row % 8),
                               static_cast<std::uint16_t>((row + 3) % 8)});
    for (int i = 0; i < 50; ++i) {
        std::vector<float> y(x.size(), -1.0f);
        const ExpertBatch batch{.num_tokens = num_rows,
                                .hidden_size = hidden,
                                .top_k = 2,
                                .x = x,
                                .expert_ids = ids,
                                .expert_weights = weights,
                                .y = y};
        auto round = backend.submit(batch);
        backend.submit(batch);  // the round is dropped while its calls are in flight
        const auto answer = round->wait();
        ASSERT_TRUE(answer.ok()) << answer.error().message;
        EXPECT_EQ(y, std::vector<float>(y.size(), 1.0f));
    }

    int num_gathered = 0;
    for (const auto& worker : workers) num_gathered += worker->num_gathered;
    EXPECT_GT(num_gathered, 0);
    host.stop();
}

TEST(SwarmBackendTest, RoundWithoutHoldersFailsAtItsDeadline) {
    ThreadHost host;
    SwarmOptions options = small_options();
    options.round_deadline = 20ms;
    SwarmBackend backend(options, host, nullptr, nullptr);
    OneRow row;
    const auto answer = backend.submit(row.batch())->wait();
    ASSERT_FALSE(answer.ok());
    EXPECT_EQ(answer.error().code, ErrorCode::unavailable);
    host.stop();
}

}  // namespace
}  // namespace moex
