// Measures the time of a round inside a native worker, the parts of this time, and the bound that
// the GPU's memory bandwidth sets.
//   kernel_bench [--device NAME] [--shape qwen3-30b-a3b|gpt-oss-20b|gpt-oss-20b-mxfp4|paper|demo]
//                [--layers N] [--experts N] [--rounds N] [--pause US] [--robust
//                on|off|unless-checked]
//                [--kernels lanes|threads] [--check FILE] [--link on]
// CSV: what, shape, slots, rows, routing, p10_us, p50_us, p99_us, gpu_us, dispatches, mb, gb_s.
//   empty_round  one empty kernel, submitted and read back: the fixed cost of a round
//   upload       copy of `rows` experts from this machine's memory to the GPU's, through staging
//                memory; waits for the end of the one submission
//   transfer     the same copy by the GPU itself, from imported host pages, as for experts on
//                demand; absent where the GPU cannot import pages. transfer_beside: while the GPU
//                copies 2 GB of its own memory
//   transfer_ahead  the copy of one expert that a call waits for, behind 63 prefetched experts
//   transfer_call  CPU time of the thread that requests a copy, for one request
//   row_round    4 KB are written and submitted, 4 bytes are read back; row_round_beside: while
//                experts are copied all the time. --link on: measures only upload and these rows
//   read         a kernel that only reads: its gb_s is the bound of the other rows
//   round        a round from frame to frame (decoded group in, checked bytes out); gpu_us and
//                dispatches are of one round, mb is the size of the weights that it must read once,
//                gb_s the rate
//   gate_up, silu_mul, down, total, readback: the published kernels, for one expert; page_round and
//                group_...: a round of 8 experts and its kernels. /bench.html prints the same rows,
//                so that the rates of page and bench can be divided. The kernels of gpt-oss-20b,
//                whose experts have biases and a clamp, are named ..._clamped; with the weights as
//                they are released (gpt-oss-20b-mxfp4), ..._mxfp4_clamped
// slots: experts are stored in the arenas by layer, or in the order of their hashes. routing: all
// rows use the same 8 experts, or each row uses 8 experts of its own. gpu_us is a slope over rounds
// of several layers, repeated within one submission.
// A software rasteriser gets less work, which shows that the program works.
// --check FILE: FILE is the output of an earlier run, below a comment "# Machine: ADAPTER". On that
// adapter the bench exits with 1 when a round reaches less than half of its recorded share of the
// bandwidth, each measured in its own run. On another adapter it prints that and passes.
// example: kernel_bench --layers 48 --rounds 960
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "protocol/expert_reference.h"
#include "tests/support/posted_loop.h"
#include "web-worker/expert_runner.h"
#include "web-worker/gpu/recording_device.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/kernel_timing.h"

namespace moex {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t top_k = 8;
constexpr std::uint32_t rows_max = 64;
// Rounds of this number of layers form one repetition of a slope.
constexpr std::uint32_t lanes = 4;
constexpr std::uint64_t read_bytes_wanted = 1ull << 30, read_bytes_software = 4ull << 20;

double us_since(Clock::time_point started) {
    return std::chrono::duration<double, std::micro>(Clock::now() - started).count();
}

double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size()));
    return values[std::min(values.size() - 1, at)];
}

struct Options {
    std::string device, shape = "qwen3-30b-a3b";
    std::uint32_t layers = 48, experts = 128, rounds = 480;
    int pause_us = 0;  // --pause: microseconds between rounds, as in a decode loop
    bool link_only = false;
    std::string check_file;
    gpu::RobustAccess robust_access = gpu::RobustAccess::unless_checked;
    RoundKernels kernels = RoundKernels::by_adapter;
};

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "kernel_bench: %s\n", what.c_str());
    std::exit(1);
}
template <class Value>
Value must(Result<Value> result) {
    if (!result.ok()) fail(result.error().message);
    return std::move(*result);
}
void must(const Status& status) {
    if (!status.ok()) fail(status.error().message);
}

// Each round's weight rate divided by the bandwidth that was measured in the same run. The key is
// "shape,slots,rows,routing".
struct Shares {
    std::string machine;
    std::map<std::string, double> of_round;
};

// Reads the output of an earlier run of this program, in which the row with the bandwidth precedes
// the rounds.
Shares read_shares(const std::string& path) {
    std::ifstream in(path);
    if (!in) fail("cannot read " + path);
    Shares shares;
    double bandwidth = 0;
    for (std::string line; std::getline(in, line);) {
        const std::string machine = "# Machine: ";
        if (line.starts_with(machine)) shares.machine = line.substr(machine.size());
        std::vector<std::string> cells;
        std::istringstream parts(line);
        for (std::string cell; std::getline(parts, cell, ',');) cells.push_back(cell);
        if (cells.size() < 12) continue;
        if (cells[0] == "read") bandwidth = std::atof(cells[11].c_str());
        if (cells[0] == "round" && bandwidth > 0)
            shares.of_round[cells[1] + ',' + cells[2] + ',' + cells[3] + ',' + cells[4]] =
                std::atof(cells[11].c_str()) / bandwidth;
    }
    return shares;
}

// Builds a group that looks as if it was decoded from a frame of the hub.
struct Group {
    Bytes x;
    GroupDispatchView view;
};

Group make_group(const ExpertShape& shape, std::uint32_t num_experts, std::uint32_t layer,
                 std::uint32_t rows, bool routed, std::mt19937& random) {
    std::vector<std::uint32_t> all(num_experts);
    for (std::uint32_t i = 0; i < num_experts; ++i) all[i] = i;
    std::vector<std::vector<std::uint16_t>> rows_of(num_experts);
    for (std::uint32_t row = 0; row < rows; ++row) {
        if (row == 0 || routed) std::shuffle(all.begin(), all.end(), random);
        for (std::uint32_t k = 0; k < std::min(top_k, num_experts); ++k)
            rows_of[all[k]].push_back(static_cast<std::uint16_t>(row));
    }

    Group group;
    for (std::uint32_t expert = 0; expert < num_experts; ++expert) {
        if (rows_of[expert].empty()) continue;
        group.view.experts.push_back({static_cast<std::uint16_t>(expert),
                                      static_cast<std::uint16_t>(rows_of[expert].size())});
        for (const std::uint16_t row : rows_of[expert]) {
            group.view.rows.push_back(row);
            group.view.gates.push_back(float_to_half(0.125f));
        }
    }

    std::vector<float> x(std::size_t{rows} * shape.hidden_size);
    for (float& value : x) value = std::uniform_real_distribution<float>(-1, 1)(random);
    group.x.resize(wire_rows_bytes(Dtype::f16, rows, shape.hidden_size));
    encode_rows(Dtype::f16, x, shape.hidden_size, group.x);

    group.view.shape = {.layer = static_cast<std::uint16_t>(layer),
                        .num_tokens = rows,
                        .hidden_dim = static_cast<std::uint16_t>(shape.hidden_size),
                        .dtype = Dtype::f16,
                        .num_pairs = static_cast<std::uint32_t>(group.view.rows.size()),
                        .num_experts = static_cast<std::uint16_t>(group.view.experts.size())};
    return group;
}

class Bench {
  public:
    explicit Bench(const Options& options)
        : options_(options),
          shape_(must(timing_shape(options.shape))),
          opened_(must(gpu::open_vulkan_device(
              {.device = options.device, .robust_access = options.robust_access}, loop_.poster()))),
          device_(*opened_),
          readback_(must(device_.create_buffer(4096, gpu::BufferUsage::readback, "readback"))) {
        std::fprintf(stderr, "kernel_bench: %s\n", device_.adapter().description.c_str());
        std::printf(
            "what,shape,slots,rows,routing,p10_us,p50_us,p99_us,gpu_us,dispatches,mb,"
            "gb_s\n");
    }

    void run() {
        upload();
        transfer();
        if (options_.link_only) return;
        read();
        kernels();
        rounds("layer", false);
        rounds("hash", true);
    }

    // Returns true if every round reaches at least half of the share of the bandwidth that
    // `recorded` has for it.
    bool holds_against(const Shares& recorded) const {
        const std::string& here = device_.adapter().description;
        if (recorded.machine.find(here.substr(0, here.find(','))) == std::string::npos) {
            std::fprintf(stderr, "kernel_bench: nothing is recorded for %s\n", here.c_str());
            return true;
        }
        bool holds = true;
        for (const auto& [round, share] : shares_) {
            const auto found = recorded.of_round.find(round);
            if (found == recorded.of_round.end() || share >= found->second / 2) continue;
            holds = false;
            std::fprintf(stderr, "kernel_bench: %s has %.3f of the bandwidth, recorded is %.3f\n",
                         round.c_str(), share, found->second);
        }
        return holds;
    }

  private:
    gpu::PipelineId pipeline(std::string_view kernel) {
        gpu::PipelineId id;
        bool finished = false;
        device_.create_pipeline(kernel, {}, [&](Result<gpu::PipelineId> made) {
            id = must(std::move(made));
            finished = true;
        });
        loop_.run_until(finished);
        return id;
    }

    // Returns the time of one submission and its readback, in us.
    double submitted(std::span<const gpu::Command> commands) {
        bool finished = false;
        const auto started = Clock::now();
        device_.submit(commands);
        device_.read_buffer(readback_, 4, [&](Result<ByteView> bytes) {
            if (!bytes.ok()) fail(bytes.error().message);
            finished = true;
        });
        loop_.run_until(finished);
        return us_since(started);
    }

    // Returns the GPU time of `commands` in us: the slope between 1 and `repeats` + 1 repetitions.
    double slope(const std::vector<gpu::Command>& commands, std::uint32_t repeats) {
        std::vector<gpu::Command> many;
        for (std::uint32_t i = 0; i <= repeats; ++i)
            many.insert(many.end(), commands.begin(), commands.end());
        double few_us = 1e18, many_us = 1e18;
        const int turns = device_.adapter().software ? 1 : 4;
        for (int turn = 0; turn < turns; ++turn) {
            few_us = std::min(few_us, submitted(commands));
            many_us = std::min(many_us, submitted(many));
        }
        return (many_us - few_us) / repeats;
    }

    void upload() {
        constexpr std::uint32_t at_once_max = 64;
        const Bytes blob = random_blob();
        const std::vector<Bytes> blobs(at_once_max, blob);  // together larger than any cache
        const gpu::BufferId target = must(
            device_.create_buffer(at_once_max * blob.size(), gpu::BufferUsage::storage, "experts"));
        for (const std::uint32_t at_once : {1u, 8u, at_once_max}) {
            std::vector<double> times;
            for (std::uint32_t turn = 0; turn < 4 + 256 / at_once; ++turn) {
                const auto started = Clock::now();
                for (std::uint32_t i = 0; i < at_once; ++i)
                    device_.write_buffer(target, i * blob.size(), blobs[i]);
                submitted({});
                // The first turns allocate staging memory.
                if (turn >= 4) times.push_back(us_since(started));
            }
            print_link("upload", at_once, at_once * blob.size(), times);
        }
        device_.destroy_buffer(target);
    }

    void print_link(const char* what, std::uint32_t at_once, std::uint64_t bytes,
                    const std::vector<double>& times) const {
        const double mb = static_cast<double>(bytes) / 1e6;
        std::printf("%s,%s,,%u,,%.1f,%.1f,%.1f,,,%.1f,%.2f\n", what, options_.shape.c_str(),
                    at_once, quantile(times, 0.1), quantile(times, 0.5), quantile(times, 0.99), mb,
                    mb * 1e3 / quantile(times, 0.5));
        std::fflush(stdout);
    }

    // Copies half of a buffer to the other half, four times; then calls `finished`. This keeps the
    // GPU's memory busy.
    void copy_own_memory(gpu::BufferId buffer, std::uint64_t half_bytes, bool& finished) {
        gpu::Command copy;
        copy.kind = gpu::Command::Kind::copy;
        copy.source = copy.target = buffer;
        copy.target_offset_bytes = copy.size_bytes = half_bytes;
        device_.submit(std::vector(4, copy));
        device_.read_buffer(readback_, 4, [&](Result<ByteView> bytes) {
            if (!bytes.ok()) fail(bytes.error().message);
            finished = true;
        });
    }

    void transfer() {
        constexpr std::uint32_t at_once_max = 64;
        constexpr std::uint64_t page_bytes = 64u << 10;
        const Bytes blob = random_blob();
        const std::uint64_t bytes = at_once_max * blob.size();
        const std::uint64_t shared_bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
        const std::unique_ptr<std::byte, decltype(&std::free)> memory(
            static_cast<std::byte*>(std::aligned_alloc(page_bytes, shared_bytes)), &std::free);
        for (std::uint64_t i = 0; i < at_once_max; ++i)
            std::copy(blob.begin(), blob.end(), memory.get() + i * blob.size());
        const ByteView shared(memory.get(), shared_bytes);
        if (!device_.share_memory(shared).ok()) return;
        const gpu::BufferId target = must(
            device_.create_buffer(bytes, gpu::BufferUsage::storage, "experts"));
        const std::uint64_t half_bytes = device_.adapter().software ? 4u << 20 : 512u << 20;
        const gpu::BufferId own = must(
            device_.create_buffer(2 * half_bytes, gpu::BufferUsage::storage, "own"));
        submitted({});

        for (const bool beside : {false, true})
            for (const std::uint32_t at_once : {1u, 8u, at_once_max}) {
                std::vector<double> times;
                for (std::uint32_t turn = 0; turn < 4 + 256 / at_once; ++turn) {
                    bool copied = !beside;
                    if (beside) copy_own_memory(own, half_bytes, copied);
                    const auto started = Clock::now();
                    std::uint64_t last = 0;
                    for (std::uint32_t i = 0; i < at_once; ++i)
                        last = device_.transfer(target, i * blob.size(),
                                                shared.subspan(i * blob.size(), blob.size()),
                                                gpu::TransferKind::awaited, [] {});
                    device_.transferred(last, true);
                    if (turn >= 4) times.push_back(us_since(started));
                    loop_.run_until(copied);
                }
                print_link(beside ? "transfer_beside" : "transfer", at_once, at_once * blob.size(),
                           times);
            }
        print_link("transfer_ahead", 1, blob.size(), times_ahead(target, shared, blob.size()));
        for (const bool beside : {false, true})
            row_rounds(own, target, shared.first(bytes), beside);
        device_.unshare_memory(shared);
        device_.destroy_buffer(own);
        device_.destroy_buffer(target);
    }

    // Measures the time of one awaited copy that is queued behind many prefetched copies.
    std::vector<double> times_ahead(gpu::BufferId target, ByteView shared, std::size_t size) {
        std::vector<double> times;
        for (std::uint32_t turn = 0; turn < 20; ++turn) {
            std::vector<std::uint64_t> foreseen;
            for (std::uint64_t i = 1; i < shared.size() / size; ++i)
                foreseen.push_back(device_.transfer(target, i * size,
                                                    shared.subspan(i * size, size),
                                                    gpu::TransferKind::prefetch, [] {}));
            const auto started = Clock::now();
            const std::uint64_t awaited = device_.transfer(target, 0, shared.first(size),
                                                           gpu::TransferKind::awaited, [] {});
            device_.transferred(awaited, true);
            times.push_back(us_since(started));
            for (const std::uint64_t number : foreseen) device_.transferred(number, true);
        }
        return times;
    }

    // Measures the time of a row to the GPU and back while the link is saturated.
    void row_rounds(gpu::BufferId rows, gpu::BufferId target, ByteView experts, bool beside) {
        const Bytes row(4096);
        const std::uint64_t expert_bytes = experts.size() / 8 / 4 * 4;
        // numbers of the newest transfer and of the transfer before it
        std::uint64_t last = 0, before_last = 0;
        std::vector<double> times, calls;
        for (std::uint32_t i = 0; i < options_.rounds; ++i) {
            for (int more = 0; more < 2 && beside && device_.transferred(before_last, false);
                 ++more) {
                before_last = last;
                const auto began = Clock::now();
                for (std::uint64_t at = 0; at + expert_bytes <= experts.size(); at += expert_bytes)
                    last = device_.transfer(target, at, experts.subspan(at, expert_bytes),
                                            gpu::TransferKind::awaited, [] {});
                calls.push_back(us_since(began) / 8);
            }
            const auto started = Clock::now();
            device_.write_buffer(rows, 0, row);
            submitted({});
            times.push_back(us_since(started));
        }
        device_.transferred(last, true);
        print_times(beside ? "row_round_beside" : "row_round", times);
        if (beside) print_times("transfer_call", calls);
    }

    static void print_times(const char* what, const std::vector<double>& times) {
        std::printf("%s,,,1,,%.1f,%.1f,%.1f,,,,\n", what, quantile(times, 0.1),
                    quantile(times, 0.5), quantile(times, 0.99));
        std::fflush(stdout);
    }

    // Measures the fixed cost of a round (empty_round) and the memory bandwidth that bounds rounds
    // (read).
    void read() {
        const std::uint64_t size_bytes = std::min(
            {device_.adapter().max_binding_bytes, device_.adapter().max_buffer_bytes,
             device_.adapter().software ? read_bytes_software : read_bytes_wanted});
        const auto blocks = static_cast<std::uint32_t>(size_bytes >> 16);
        const gpu::BufferId words = must(
            device_.create_buffer(size_bytes, gpu::BufferUsage::storage, "words"));
        const gpu::BufferId sums = must(
            device_.create_buffer(4 * std::uint64_t{blocks}, gpu::BufferUsage::storage, "sums"));

        gpu::Command command;
        command.pipeline = pipeline("read_words");
        const gpu::Binding bindings[] = {{words}, {sums}};
        command.bind_group = must(device_.create_bind_group(command.pipeline, bindings));

        std::vector<double> empty;
        for (std::uint32_t i = 0; i < options_.rounds; ++i)
            empty.push_back(submitted(std::span(&command, 1)));
        std::printf("empty_round,,,,,%.1f,%.1f,%.1f,,1,,\n", quantile(empty, 0.1),
                    quantile(empty, 0.5), quantile(empty, 0.99));

        command.workgroups = {blocks, 1, 1};
        const double gpu_us = slope({command}, 8);
        std::printf("read,,,,,,,,%.1f,1,%.1f,%.0f\n", gpu_us, (blocks << 16) / 1e6,
                    blocks * 65.536 / gpu_us);
        std::fflush(stdout);
        bandwidth_ = blocks * 65.536 / gpu_us;
        device_.destroy_bind_group(command.bind_group);
        device_.destroy_buffer(words);
        device_.destroy_buffer(sums);
    }

    // Measures the rows that /bench.html prints too. That page's rounds are those of KernelTiming,
    // with one layer in each arena; here only the kernels are measured.
    void kernels() {
        TimingOptions timing = TimingOptions::bench(options_.shape, device_.adapter());
        timing.shape = shape_;
        timing.read_bytes = 0;
        KernelTiming kernels(*opened_, timing, [began = Clock::now()] { return us_since(began); });
        bool finished = false;
        kernels.start(
            [](const TimingRow& row) {
                const std::string what = row.what == "round" ? "page_round" : row.what;
                std::printf("%s,%s,,%u,same,%.1f,%.1f,%.1f,%.1f,%u,%.1f,%.0f\n", what.c_str(),
                            row.shape.c_str(), row.rows, row.p10_us, row.p50_us, row.p99_us,
                            row.gpu_us, row.dispatches, row.mb, row.gb_s());
                std::fflush(stdout);
            },
            [&](Status done) {
                must(done);
                finished = true;
            });
        loop_.run_until(finished);
    }

    void rounds(const char* slots, bool shuffled) {
        const Bytes blob = random_blob();
        std::vector<Unit> units;
        for (std::uint32_t layer = 0; layer < options_.layers; ++layer)
            for (std::uint32_t expert = 0; expert < options_.experts; ++expert)
                units.push_back(
                    {static_cast<std::uint16_t>(layer), static_cast<std::uint16_t>(expert)});
        std::mt19937 random(1);
        if (shuffled) std::shuffle(units.begin(), units.end(), random);

        const std::uint32_t layer_units = shuffled ? 0 : options_.experts;
        ExpertStore store(device_, blob.size(), units.size() * blob.size(),
                          {.layer_units = layer_units});
        must(store.reserve(static_cast<std::uint32_t>(units.size())));
        for (const Unit& unit : units) must(store.put(unit, blob));
        submitted({});

        const WireLimits limits{.hidden_size = shape_.hidden_size,
                                .num_layers = options_.layers,
                                .num_experts = options_.experts,
                                .num_tokens_max = rows_max,
                                .num_pairs_max = rows_max * top_k};
        ExpertRunner runner(
            device_, store,
            {.limits = limits, .shape = shape_, .num_lanes = lanes, .kernels = options_.kernels});
        bool created = false;
        runner.create([&](Status made) {
            must(made);
            created = true;
        });
        loop_.run_until(created);
        std::fprintf(stderr, "kernel_bench: slots by %s, %zu arenas\n", slots,
                     store.arenas().size());

        const std::uint32_t rows_most = device_.adapter().software ? 8 : rows_max;
        for (const bool routed : {false, true})
            for (const std::uint32_t rows : {1u, 8u, 64u})
                if (rows <= rows_most && (rows > 1 || !routed))
                    round(runner, slots, rows, routed, blob.size());
    }

    void round(ExpertRunner& runner, const char* slots, std::uint32_t rows, bool routed,
               std::uint64_t blob_bytes) {
        std::mt19937 random(7);
        std::vector<Group> groups;
        for (std::uint32_t i = 0; i < lanes; ++i) {
            const std::uint32_t layer = i * options_.layers / lanes;
            groups.push_back(make_group(shape_, options_.experts, layer, rows, routed, random));
            groups.back().view.x_bytes = groups.back().x;
        }

        std::vector<double> times;
        device_.dispatches = 0;
        const std::uint32_t num_rounds = rows > 8 ? options_.rounds / 4 + 1 : options_.rounds;
        for (std::uint32_t i = 0; i < num_rounds; ++i) {
            bool finished = false;
            const auto started = Clock::now();
            must(runner.run_group(groups[i % lanes].view, [&](Result<ByteView> y) {
                if (!y.ok()) fail(y.error().message);
                finished = true;
            }));
            loop_.run_until(finished);
            times.push_back(us_since(started));
            pause();
        }
        const double dispatches = static_cast<double>(device_.dispatches) / num_rounds;

        std::uint32_t unfinished = lanes;
        bool finished = false;
        double weights_mb = 0;
        device_.holds = true;
        for (const Group& group : groups) {
            weights_mb += static_cast<double>(group.view.experts.size() * blob_bytes) / 1e6 / lanes;
            must(runner.run_group(group.view,
                                  [&](Result<ByteView>) { finished = --unfinished == 0; }));
        }
        device_.holds = false;
        const double gpu_us = slope(device_.commands, rows > 8 ? 3 : 12) / lanes;
        device_.release();
        loop_.run_until(finished);

        std::printf("round,%s,%s,%u,%s,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.0f\n",
                    options_.shape.c_str(), slots, rows, routed ? "routed" : "same",
                    quantile(times, 0.1), quantile(times, 0.5), quantile(times, 0.99), gpu_us,
                    dispatches, weights_mb, weights_mb * 1e3 / gpu_us);
        std::fflush(stdout);
        shares_[text(options_.shape, ',', slots, ',', rows, ',', routed ? "routed" : "same")] =
            weights_mb * 1e3 / gpu_us / bandwidth_;
    }

    void pause() const {
        const auto until = Clock::now() + std::chrono::microseconds(options_.pause_us);
        while (Clock::now() < until) {}
    }

    Bytes random_blob() const {
        std::mt19937 random(1);
        ExpertWeights weights{.shape = shape_};
        for (auto* matrix : {&weights.gate, &weights.up, &weights.down}) {
            matrix->resize(std::size_t{shape_.hidden_size} * shape_.moe_intermediate_size);
            for (float& value : *matrix)
                value = std::uniform_real_distribution<float>(-0.05f, 0.05f)(random);
        }
        if (shape_.has_bias) {
            weights.gate_bias.assign(shape_.moe_intermediate_size, 0.25f);
            weights.up_bias = weights.gate_bias;
            weights.down_bias.assign(shape_.hidden_size, 0.25f);
        }
        return quantize_expert(weights);
    }

    Options options_;
    ExpertShape shape_;
    test::PostedLoop loop_;
    std::unique_ptr<gpu::Device> opened_;
    gpu::RecordingDevice device_;
    gpu::BufferId readback_;
    double bandwidth_ = 0;                  // GB/s
    std::map<std::string, double> shares_;  // keyed by round
};

Options options_of(int argc, char** argv) {
    Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i], value = argv[i + 1];
        const auto number = static_cast<std::uint32_t>(std::atoi(value.c_str()));
        if (flag == "--device")
            options.device = value;
        else if (flag == "--shape")
            options.shape = value;
        else if (flag == "--layers")
            options.layers = std::max(1u, number);
        else if (flag == "--experts")
            options.experts = std::max(1u, number);
        else if (flag == "--check")
            options.check_file = value;
        else if (flag == "--link")
            options.link_only = value == "on";
        else if (flag == "--rounds")
            options.rounds = std::max(1u, number);
        else if (flag == "--kernels")
            options.kernels = value == "lanes" ? RoundKernels::lanes : RoundKernels::threads;
        else if (flag == "--pause")
            options.pause_us = static_cast<int>(number);
        else if (flag == "--robust")
            options.robust_access = value == "on"    ? gpu::RobustAccess::always
                                    : value == "off" ? gpu::RobustAccess::never
                                                     : gpu::RobustAccess::unless_checked;
        else
            fail("unknown flag " + flag);
    }
    return options;
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    const moex::Options options = moex::options_of(argc, argv);
    moex::Bench bench(options);
    bench.run();
    if (options.check_file.empty()) return 0;
    return bench.holds_against(moex::read_shares(options.check_file)) ? 0 : 1;
}
