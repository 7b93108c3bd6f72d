// Measures the hub's own cost of one grouped round, without network and worker time. Times are CPU
// time of the thread, so that other load of the machine affects them only through cache misses.
// CSV: what, workers, rows, experts, hidden, median_us, p99_us, bound_us, groups, connections_us,
// engine_us. median_us and p99_us are times of the strand, from on_round to RoundDone. bound_us is
// the goal for them. `connections_us` is the time in which all connections' threads together decode
// and measure the answers of a round; `engine_us` is the time in which the engine's thread encodes
// rows and adds answers up. `experts` is the number of different experts that the rows may choose:
// 8 fixed experts for all rows, or any of the layer's 128, of which each row has 8 of its own.
// Goals: 20 us of the strand for 8 experts, 64 rows and 1,000 workers; 60 us for any experts (20 us
// for one row); 5 ms for a worker that joins.
// example: dispatch_bench 6 20000     only the sixth row, with 20,000 rounds, for a profile
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <random>
#include <set>

#include "hub/dispatch/core/swarm_core.h"

namespace {
using namespace moex;

constexpr std::uint32_t num_layers = 48, num_experts = 128, top_k = 8;
constexpr std::uint64_t blob_bytes = 1000;

double cpu_us() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

SwarmOptions options_of(std::uint32_t num_workers, std::uint32_t hidden) {
    SwarmOptions options;
    options.limits = {.hidden_size = hidden, .num_layers = num_layers, .num_experts = num_experts};
    options.layer_is_moe.assign(num_layers, 1);
    options.top_k = top_k;
    options.expert_blob_bytes = blob_bytes;
    options.rounding.deterministic = true;
    options.workers_max = num_workers;
    options.token_ok = [](std::string_view) { return true; };
    return options;
}

// A swarm of simulated workers that answer each group at once.
class RoundBench {
  public:
    RoundBench(std::uint32_t num_workers, std::uint32_t hidden)
        : options_(options_of(num_workers, hidden)),
          core_(options_),
          hidden_(hidden) {
        for (std::uint32_t i = 0; i < num_workers; ++i) join(i);
        // The workers report READY only after all have joined. Until then the hub may move experts
        // from one worker to another freely.
        for (const auto& [worker, units] : told_)
            core_.on_frame(now_, worker, encode_ready({units.begin(), units.end()}), actions_);
        actions_.clear();
    }

    // Returns the microseconds from HELLO to ASSIGN for each worker, in the order in which the
    // workers joined.
    const std::vector<double>& join_times() const { return join_times_; }

    // Returns the times of rounds in microseconds, sorted. If `any_expert`, each row has experts of
    // its own.
    std::vector<double> rounds(std::uint32_t num_rows, int num_rounds, bool any_expert) {
        const std::vector<float> x(std::size_t{num_rows} * hidden_, 0.25f);
        y_.resize(x.size());
        connections_.clear();
        engine_.clear();
        const std::vector<float> weights(std::size_t{num_rows} * top_k, 0.125f);
        std::vector<std::uint16_t> ids, all(num_experts);
        for (std::uint16_t i = 0; i < num_experts; ++i) all[i] = i;
        std::mt19937 random(7);

        std::vector<double> times;
        for (int i = 0; i < num_rounds; ++i) {
            ids.clear();
            for (std::uint32_t row = 0; row < num_rows; ++row)
                for (std::uint32_t k = 0; k < top_k; ++k) {
                    if (any_expert) std::swap(all[k], all[k + random() % (num_experts - k)]);
                    ids.push_back(any_expert ? all[k] : static_cast<std::uint16_t>(k * 16));
                }
            times.push_back(round({.layer = static_cast<std::uint32_t>(i) % num_layers,
                                   .num_tokens = num_rows,
                                   .hidden_size = hidden_,
                                   .top_k = top_k,
                                   .x = x,
                                   .expert_ids = ids,
                                   .expert_weights = weights}));
        }
        std::sort(times.begin(), times.end());
        return times;
    }

    // Medians over the newest rounds: connections_us() is the time of all connections' threads for
    // one round, without the gathering of rows; engine_us() is the time of the engine's thread.
    double connections_us() const { return median(connections_); }
    double engine_us() const { return median(engine_); }

    double groups_per_round() const {
        const SwarmCounters counts = core_.counters();
        return static_cast<double>(counts.groups_sent) / static_cast<double>(counts.rounds);
    }

  private:
    static double median(std::vector<double> times) {
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }

    using Replies = std::vector<std::pair<WorkerId, Bytes>>;

    void join(std::uint32_t number) {
        const WorkerId id = core_.on_connect(
            now_, text("10.", number / 250, '.', number % 250, ".1"), false, actions_);
        Hello hello;
        // The memory limit is so large that the experts of every layer get holders.
        hello.device.budget_bytes = std::max<std::uint64_t>(
                                        400, 3 * num_layers * num_experts / options_.workers_max) *
                                    blob_bytes;
        const Bytes greeting = encode_hello(hello);

        const double start = cpu_us();
        core_.on_frame(now_, id, greeting, actions_);
        join_times_.push_back(cpu_us() - start);

        for (SwarmAction& action : actions_)
            if (auto* sent = std::get_if<SendFrame>(&action))
                read_order(sent->worker, sent->frame.head());
        actions_.clear();
    }

    void read_order(WorkerId worker, ByteView frame) {
        const FrameType type = decode_frame_header(frame)->type;
        if (type == FrameType::assign) {
            const auto units = decode_assign(frame, options_.limits);
            for (const AssignedUnit& unit : units->units)
                told_[worker].insert({unit.layer, unit.expert});
        } else if (type == FrameType::release) {
            const auto units = decode_units(frame, options_.limits);
            for (const Unit& unit : *units) told_[worker].erase(unit);
        }
    }

    // Returns the hub's own time for a round, without the time that the workers need for their
    // answers.
    double round(const ExpertBatch& batch) {
        now_ += 1ms;
        const double given = cpu_us();
        RoundRows rows = core_.row_reader().read(batch);
        const double start = cpu_us();
        core_.on_round(now_, batch, std::move(rows), actions_);
        const double sent = cpu_us();

        const Replies replies = answers();

        const double arrived = cpu_us();
        std::vector<std::pair<WorkerId, WorkerAnswer>> read;
        for (const auto& [worker, frame] : replies)
            read.emplace_back(worker, *core_.answer_reader(worker).read(frame));
        const double decoded = cpu_us();
        for (auto& [worker, answer] : read)
            core_.on_answer(now_, worker, std::move(answer), actions_);
        const double done = cpu_us();
        for (SwarmAction& action : actions_)
            if (auto* ended = std::get_if<RoundDone>(&action)) ended->sum.write(y_);
        const double added = cpu_us();
        const double spent = (sent - start) + (done - decoded);
        connections_.push_back(decoded - arrived);
        engine_.push_back((start - given) + (added - done));

        actions_.clear();
        core_.on_tick(now_, actions_);
        echo_heartbeats();
        return spent;
    }

    // Answers the heartbeats of the hub, since the workers of a long run would otherwise count as
    // silent.
    void echo_heartbeats() {
        Replies echoes;
        for (SwarmAction& action : actions_)
            if (auto* sent = std::get_if<SendFrame>(&action))
                if (const auto header = decode_frame_header(sent->frame.head());
                    header.ok() && header->type == FrameType::heartbeat)
                    echoes.emplace_back(sent->worker, encode_heartbeat(header->sequence_id));
        for (auto& [worker, frame] : echoes) core_.on_frame(now_, worker, frame, actions_);
        actions_.clear();
    }

    // Makes the answers of the workers to the groups that were sent.
    Replies answers() {
        Replies replies;
        for (SwarmAction& action : actions_) {
            auto* sent = std::get_if<SendFrame>(&action);
            if (!sent) continue;
            const Bytes frame = std::move(sent->frame).whole();
            if (decode_frame_header(frame)->type == FrameType::group_dispatch)
                replies.emplace_back(sent->worker, result(frame));
        }
        actions_.clear();
        return replies;
    }

    Bytes result(ByteView frame) const {
        const auto call = decode_group_dispatch(frame, options_.limits);
        const std::size_t num_values = std::size_t{call->shape.num_pairs} * hidden_;
        return encode_group_result({.sequence_id = call->sequence_id,
                                    .shape = call->shape,
                                    .y = std::vector<float>(num_values, 0.5f)},
                                   false);
    }

    SwarmOptions options_;
    SwarmCore core_;
    std::uint32_t hidden_;
    TimePoint now_{1s};
    std::vector<SwarmAction> actions_;
    std::vector<double> join_times_, connections_, engine_;
    std::vector<float> y_;
    // Units that are assigned to a worker and not released.
    std::map<WorkerId, std::set<Unit>> told_;
};

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const int only = argc > 1 ? std::atoi(argv[1]) : 0;
    const int num_rounds = argc > 2 ? std::atoi(argv[2]) : 1000;
    int number = 0;
    std::printf(
        "what,workers,rows,experts,hidden,median_us,p99_us,bound_us,groups,connections_us,"
        "engine_us\n");
    for (const auto& [workers, rows, hidden, any_expert] : {std::tuple{2u, 1u, 384u, false},
                                                            {2u, 1u, 2048u, false},
                                                            {200u, 1u, 2048u, false},
                                                            {200u, 64u, 32u, false},
                                                            {200u, 64u, 2048u, false},
                                                            {1000u, 1u, 32u, true},
                                                            {1000u, 64u, 32u, true},
                                                            {1000u, 64u, 2048u, true},
                                                            {1000u, 256u, 2048u, true},
                                                            {1000u, 64u, 32u, false}}) {
        if (++number != only && only != 0) continue;
        RoundBench bench(workers, hidden);
        const std::vector<double> times = bench.rounds(rows, num_rounds, any_expert);
        std::printf("grouped_round,%u,%u,%u,%u,%.1f,%.1f,%d,%.1f,%.1f,%.1f\n", workers, rows,
                    any_expert ? num_experts : top_k, hidden, times[times.size() / 2],
                    times[times.size() * 99 / 100], any_expert && rows > 1 ? 60 : 20,
                    bench.groups_per_round(), bench.connections_us(), bench.engine_us());
        if (workers < 1000 || any_expert) continue;

        // The newest 100 joins were made to an almost full swarm. The slowest join is among the
        // first.
        const std::vector<double>& joins = bench.join_times();
        std::vector<double> last(joins.end() - 100, joins.end());
        std::sort(last.begin(), last.end());
        std::printf("join,%u,0,6144,%u,%.1f,%.1f,5000,,,\n", workers, hidden, last[50], last[99]);
        std::printf("slowest_join,%u,0,6144,%u,%.1f,,5000,,,\n", workers, hidden,
                    *std::max_element(joins.begin(), joins.end()));
    }
}
