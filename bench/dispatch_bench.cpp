// The hub's own cost of one grouped round: on_round to RoundDone, frames
// built and answers checked, without network and without the worker's time.
// Prints CSV: what, workers, rows, experts, median_us, p99_us, bound_us (the goal:
// 20 us of dispatch for 8 experts, 64 rows, 1,000 workers; 5 ms for a join).
// example: dispatch_bench
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "hub/dispatch/swarm_core.h"

namespace {
using namespace moex;

double measure_us(std::uint32_t num_workers, std::uint32_t num_tokens, std::uint32_t top_k,
                  std::uint32_t hidden, int rounds, std::vector<double>& times,
                  std::vector<double>& join_times) {
    SwarmOptions options;
    options.limits = {.hidden_size = hidden, .num_layers = 48, .num_experts = 128};
    options.layer_is_moe.assign(48, 1);
    options.top_k = top_k;
    options.expert_blob_bytes = 1000;
    options.rounding.deterministic = true;
    options.workers_max = num_workers;
    options.token_ok = [](std::string_view) { return true; };
    SwarmCore core(options);
    TimePoint now{1s};
    std::vector<SwarmAction> actions;
    const auto answer = [&](bool work) {  // what a worker would say to these frames
        std::vector<std::pair<WorkerId, Bytes>> replies;
        for (SwarmAction& action : actions) {
            auto* frame = std::get_if<SendFrame>(&action);
            if (frame == nullptr) continue;
            const FrameHeader header = *decode_frame_header(frame->frame);
            if (header.type == FrameType::assign) {
                std::vector<Unit> units;
                const auto assigned = decode_assign(frame->frame, options.limits);
                for (const AssignedUnit& unit : *assigned)
                    units.push_back({unit.layer, unit.expert});
                replies.emplace_back(frame->worker, encode_ready(units));
            } else if (work && header.type == FrameType::group_dispatch) {
                const auto call = decode_group_dispatch(frame->frame, options.limits);
                replies.emplace_back(
                    frame->worker,
                    encode_group_result({.sequence_id = call->sequence_id,
                                         .shape = call->shape,
                                         .y = std::vector<float>(
                                             std::size_t{call->shape.num_pairs} * hidden, 0.5f)},
                                        false));
            }
        }
        actions.clear();
        return replies;
    };
    for (std::uint32_t i = 0; i < num_workers; ++i) {
        const WorkerId id = core.on_connect(now, text("10.", i / 250, '.', i % 250, ".1"), false,
                                            actions);
        Hello hello;
        hello.device.budget_bytes = 400 * 1000;
        const Bytes greeting = encode_hello(hello);
        const TimePoint start = now_steady();
        core.on_frame(now, id, greeting, actions);
        const Duration placed = now_steady() - start;
        join_times.push_back(to_ms(placed) * 1000);
        for (auto& [worker, frame] : answer(false)) core.on_frame(now, worker, frame, actions);
        actions.clear();
    }
    std::vector<float> x(std::size_t{num_tokens} * hidden, 0.25f),
        weights(std::size_t{num_tokens} * top_k, 0.125f);
    std::vector<std::uint16_t> ids;
    for (std::uint32_t row = 0; row < num_tokens; ++row)
        for (std::uint32_t k = 0; k < top_k; ++k) ids.push_back(static_cast<std::uint16_t>(k * 16));
    for (int i = 0; i < rounds; ++i) {
        now += 1ms;
        const ExpertBatch batch{.layer = static_cast<std::uint32_t>(i % 48),
                                .num_tokens = num_tokens,
                                .hidden_size = hidden,
                                .top_k = top_k,
                                .x = x,
                                .expert_ids = ids,
                                .expert_weights = weights};
        const TimePoint start = now_steady();
        core.on_round(now, batch, actions);
        const TimePoint sent = now_steady();
        auto replies = answer(true);
        const TimePoint arrived = now_steady();
        for (auto& [worker, frame] : replies) core.on_frame(now, worker, frame, actions);
        const Duration spent = (sent - start) + (now_steady() - arrived);
        actions.clear();
        core.on_tick(now, actions);
        actions.clear();
        times.push_back(to_ms(spent) * 1000);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}
}  // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    std::printf("what,workers,rows,experts,hidden,median_us,p99_us,bound_us\n");
    for (const auto& [workers, rows, hidden] : {std::tuple{2u, 1u, 384u},
                                                {2u, 1u, 2048u},
                                                {200u, 1u, 2048u},
                                                {200u, 64u, 32u},
                                                {200u, 64u, 2048u},
                                                {1000u, 64u, 32u}}) {
        std::vector<double> times, join_times;
        const double median = measure_us(workers, rows, 8, hidden, 500, times, join_times);
        std::printf("grouped_round,%u,%u,8,%u,%.1f,%.1f,20\n", workers, rows, hidden, median,
                    times[times.size() * 99 / 100]);
        if (workers < 1000) continue;
        // The last 100 joins of a full swarm, HELLO to ASSIGN;
        // and the slowest of all, which is among the first.
        std::vector<double> last(join_times.end() - 100, join_times.end());
        std::sort(last.begin(), last.end());
        std::printf("join,%u,0,6144,%u,%.1f,%.1f,5000\n", workers, hidden, last[50], last[99]);
        std::printf("slowest_join,%u,0,6144,%u,%.1f,,5000\n", workers, hidden,
                    *std::max_element(join_times.begin(), join_times.end()));
    }
}
