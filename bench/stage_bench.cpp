// Measures each stage of a step on the hub's own cores, and in the same run the bound for this
// stage.
//   stage_bench [--shape NAME] [--threads N] [--context TOKENS] [--header] [--check FILE]
// A step with one row reads every weight once from memory: its bound is the read bandwidth. A step
// with many rows reuses the weights: its bound is the rate of the same kernel on weights in a
// core's caches. `share` is the measured rate over the bound.
// --check: compares each stage's share with the share that FILE recorded for this machine and
// number of threads, and exits with 1 where a share is below half of the recorded one. Where FILE
// has no such machine, the bench prints that and exits with 0.
// example: stage_bench --shape bench-moe --header
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "hub/base/clock.h"
#include "hub/engine/attention.h"
#include "hub/engine/kernels/matmul.h"
#include "hub/model/pack/synth.h"
#include "protocol/half.h"
#include "protocol/hub_codes.h"
#include "protocol/tensor_format.h"

namespace moex {
namespace {

// More bytes than the largest cache holds.
constexpr std::size_t ring_bytes = std::size_t{256} << 20;
constexpr int repeats = 5;

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "stage_bench: %s\n", message.c_str());
    std::exit(2);
}

// Returns the time of the fastest of several runs: other load on a shared machine only makes a run
// slower.
template <class Run>
double best_seconds(const Run& run) {
    double best = 0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        const TimePoint started = now_steady();
        run();
        const double seconds = to_ms(now_steady() - started) / 1000;
        best = repeat == 0 ? seconds : std::min(best, seconds);
    }
    return best;
}

// Copies of one matrix: as many as fill `ring_bytes`, so that no cache holds them all, or in one
// copy that stays in the cache.
struct Ring {
    PackedMatrix shape;
    AlignedBuffer memory;
    std::size_t count = 1;

    Ring(PackedDtype dtype, std::uint32_t num_out, std::uint32_t num_in, std::size_t bytes,
         std::uint32_t group_size = 0) {
        shape = {.dtype = dtype,
                 .num_out = num_out,
                 .num_in = num_in,
                 .group_size = group_size != 0 ? group_size : packed_group_size(num_in)};
        count = std::max<std::size_t>(1, bytes / shape.size_bytes());
        memory = AlignedBuffer(count * shape.size_bytes());

        if (dtype == PackedDtype::int4 || dtype == PackedDtype::mxfp4)
            pack_random_codes();
        else
            pack_random_weights();
        for (std::size_t i = 1; i < count; ++i)
            std::copy_n(memory.data(), shape.size_bytes(), memory.data() + i * shape.size_bytes());
    }
    PackedMatrix at(std::size_t i) const {
        PackedMatrix one = shape;
        one.data = memory.data() + i % count * shape.size_bytes();
        return one;
    }

  private:
    void pack_random_weights() {
        std::mt19937 random(1);
        std::vector<bfloat16> weights(std::size_t{shape.num_out} * shape.num_in);
        for (bfloat16& one : weights)
            one = float_to_bfloat16(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
        const WeightMatrix from{weights.data(), WeightDtype::bf16, shape.num_out, shape.num_in};
        if (shape.dtype == PackedDtype::int8)
            pack_int8(memory.data(), shape, from, 0, shape.num_panels());
        else
            pack_int6(memory.data(), shape, from, 0, shape.num_panels());
    }
    void pack_random_codes() {
        std::mt19937 random(1);
        std::vector<std::uint32_t> codes(std::size_t{shape.num_out} * shape.num_in / 8),
            scale_zero(std::size_t{shape.num_out} * shape.num_groups());
        const std::vector<std::uint8_t> mxfp4_scales(scale_zero.size(), 119);
        for (auto& word : codes) word = random();
        for (auto& word : scale_zero)
            word = pack_scale_zero(float_to_half(0.01f), float_to_half(8.0f));
        Int4Matrix from{codes.data(), scale_zero.data(), shape.num_out, shape.num_in,
                        shape.group_size};
        if (shape.dtype == PackedDtype::mxfp4) from.mxfp4_scales = mxfp4_scales.data();
        pack_int4(memory.data(), shape, from, 0, shape.num_panels());
    }
};

struct Row {
    std::string stage;
    std::uint32_t rows = 0;
    double amount = 0, rate = 0, bound = 0;  // GB and GB/s for one row, otherwise GMAC and GMAC/s
    double share() const { return rate / bound; }
};

class StageBench {
  public:
    StageBench(const ModelConfig& config, ThreadPool& threads)
        : config_(config),
          threads_(threads) {
        measure_bandwidth();
    }

    // Multiplies `rows_each` rows by each matrix of the ring, one matrix after the other.
    void product(const std::string& name, const Ring& ring, std::uint32_t matrices,
                 std::uint32_t rows_each) {
        QuantizedBuffer buffer;
        const std::vector<float> x(std::size_t{rows_each} * ring.shape.num_in, 0.5f);
        const QuantizedRows rows = quantize_rows(buffer, {x.data(), ring.shape.num_in, rows_each},
                                                 ring.shape.num_in, ring.shape.group_size,
                                                 threads_);
        std::vector<float> out(std::size_t{matrices} * rows_each * ring.shape.num_out);

        const std::size_t turns = std::max<std::size_t>(1, ring.count / matrices);
        const double seconds = best_seconds([&] {
            for (std::size_t turn = 0; turn < turns; ++turn) {
                std::vector<PackedMatmulJob> jobs;
                for (std::uint32_t i = 0; i < matrices; ++i)
                    jobs.push_back({{out.data() + std::size_t{i} * rows_each * ring.shape.num_out,
                                     ring.shape.num_out},
                                    ring.at(turn * matrices + i),
                                    rows});
                matmul_packed(jobs, threads_);
            }
        });

        const double products = static_cast<double>(turns) * matrices;
        const double macs = products * rows_each * ring.shape.num_out * ring.shape.num_in / 1e9,
                     bytes = products * static_cast<double>(ring.shape.size_bytes()) / 1e9;
        if (rows_each == 1)
            rows_.push_back({name, 1, bytes, bytes / seconds, bandwidth_});
        else
            rows_.push_back(
                {name, rows_each, macs, macs / seconds, cached_rate(ring.shape, rows_each)});
    }

    // Computes attention of one row over the sequence's whole cache, layer after layer.
    void attention(std::uint32_t context, KvDtype dtype) {
        ModelConfig config = config_;
        const AttentionShape shape{config.num_heads, config.num_kv_heads, config.head_dim};
        const double layer_bytes = 2.0 * context * config.num_kv_heads *
                                   static_cast<double>(kv_head_bytes(dtype, config.head_dim));
        config.num_layers = static_cast<std::uint32_t>(
            std::clamp(static_cast<double>(ring_bytes) / layer_bytes, 1.0, 1024.0));
        config.layers.assign(config.num_layers, LayerPlan{});
        KvCache cache(config, {16, context / 16 + 1, dtype});
        KvCache::Sequence sequence(cache);
        if (!sequence.reserve(context)) fail("no room for keys and values");

        const std::size_t row_floats = std::size_t{config.num_kv_heads} * config.head_dim;
        const std::vector<float> row(row_floats, 0.25f),
            q(std::size_t{config.num_heads} * config.head_dim, 0.5f);
        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
            for (std::uint32_t position = 0; position < context; ++position)
                sequence.store(layer, position, row, row);

        std::vector<float> out(std::size_t{config.num_layers} * q.size());
        const std::size_t tasks = std::size_t{config.num_layers} * config.num_kv_heads,
                          group = std::size_t{shape.heads_per_kv()} * config.head_dim;
        const double seconds = best_seconds([&] {
            threads_.parallel_for(tasks, 1, [&](std::size_t begin, std::size_t end) {
                for (std::size_t i = begin; i < end; ++i) {
                    const AttendTask task{
                        .q = {q.data() + i % config.num_kv_heads * group, q.size(), 1},
                        .kv = &sequence,
                        .layer = static_cast<std::uint32_t>(i / config.num_kv_heads),
                        .kv_head = static_cast<std::uint32_t>(i % config.num_kv_heads),
                        .first_position = context - 1};
                    attend({out.data() + i * group, group}, task, shape);
                }
            });
        });
        const double bytes = layer_bytes * config.num_layers / 1e9;
        rows_.push_back({std::string("attention_") + kv_dtype_name(dtype), 1, bytes,
                         bytes / seconds, bandwidth_});
    }

    const std::vector<Row>& rows() const { return rows_; }

  private:
    void measure_bandwidth() {
        const std::vector<float> data(ring_bytes / sizeof(float), 1.0f);
        constexpr std::uint32_t num_in = 1024;
        const auto num_out = static_cast<std::uint32_t>(data.size() / num_in);
        std::vector<float> x(num_in, 1.0f), out(num_out);
        const double seconds = best_seconds([&] {
            threads_.parallel_for(num_out, 64, [&](std::size_t begin, std::size_t end) {
                matmul({out.data(), num_out}, {data.data(), WeightDtype::f32, num_out, num_in},
                       {x.data(), num_in, 1}, static_cast<std::uint32_t>(begin),
                       static_cast<std::uint32_t>(end));
            });
        });
        bandwidth_ = static_cast<double>(ring_bytes) / 1e9 / seconds;
    }

    // Returns the rate of the kernel in GMAC/s without memory and thread waits: the panels that it
    // processes at once stay in a core's caches, and no thread waits for another.
    double cached_rate(const PackedMatrix& shape, std::uint32_t num_rows) {
        double& known = cached_[{shape.dtype, num_rows}];
        if (known > 0) return known;
        constexpr std::uint32_t num_out = 3 * panel_outs;
        const Ring ring(shape.dtype, num_out, config_.hidden_size, 0, shape.group_size);
        QuantizedBuffer buffer;
        const std::vector<float> x(std::size_t{num_rows} * ring.shape.num_in, 0.5f);
        const QuantizedRows rows = quantize_rows(buffer, {x.data(), ring.shape.num_in, num_rows},
                                                 ring.shape.num_in, ring.shape.group_size,
                                                 threads_);
        constexpr std::size_t turns_each = 150;
        const std::size_t turns = turns_each * threads_.num_threads();
        const double seconds = best_seconds([&] {
            threads_.parallel_for(turns, 16, [&](std::size_t begin, std::size_t end) {
                std::vector<float> out(std::size_t{num_rows} * num_out);
                for (std::size_t i = begin; i < end; ++i)
                    multiply({out.data(), num_out}, ring.at(0), rows, 0, ring.shape.num_panels());
            });
        });
        return known = static_cast<double>(turns) * num_rows * num_out * config_.hidden_size / 1e9 /
                       seconds;
    }

    const ModelConfig config_;
    ThreadPool& threads_;
    double bandwidth_ = 0;
    std::map<std::pair<PackedDtype, std::uint32_t>, double> cached_;
    std::vector<Row> rows_;
};

std::string machine_name(std::size_t num_threads) {
    std::ifstream info("/proc/cpuinfo");
    std::string name = "unknown";
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name")) {
            name = line.substr(line.find(':') + 2);
            break;
        }
    std::replace(name.begin(), name.end(), ',', ' ');
    return text(name, " ", integer_path().name, " ", num_threads, " threads");
}

// Splits a CSV line into columns. Comments and the header also have columns, but those name no
// machine.
std::vector<std::string> columns_of(const std::string& line) {
    std::vector<std::string> columns;
    std::istringstream in(line);
    for (std::string column; std::getline(in, column, ',');) columns.push_back(column);
    return columns;
}

// Returns the exit code: 0 if no share is too low, or if the file has no row of this machine.
int check(const std::string& path, const std::string& machine, const std::string& shape,
          const std::vector<Row>& rows) {
    std::ifstream in(path);
    if (!in) fail(path + " cannot be read");
    std::map<std::string, double> recorded;
    for (std::string line; std::getline(in, line);) {
        const auto columns = columns_of(line);
        if (columns.size() == 8 && columns[0] == machine && columns[1] == shape)
            recorded[columns[2] + " " + columns[3]] = std::strtod(columns[7].c_str(), nullptr);
    }
    if (recorded.empty()) {
        std::printf("# %s knows no \"%s\": nothing to compare with\n", path.c_str(),
                    machine.c_str());
        return 0;
    }

    int failed = 0;
    for (const Row& row : rows) {
        const auto found = recorded.find(text(row.stage, " ", row.rows));
        if (found == recorded.end() || row.share() >= found->second / 2) continue;
        std::printf("# %s of %u rows reaches %.2f of its bound, recorded: %.2f\n",
                    row.stage.c_str(), row.rows, row.share(), found->second);
        failed = 1;
    }
    return failed;
}

struct Flags {
    std::string shape = "bench-moe", check;
    std::uint32_t threads = 0, context = 4096;
    bool header = false;
};

Flags parse(int argc, char** argv) {
    Flags flags;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag == "--header") {
            flags.header = true;
            continue;
        }
        if (i + 1 == argc) fail(flag + " wants a value");
        const char* value = argv[++i];
        const auto number = static_cast<std::uint32_t>(std::strtoul(value, nullptr, 10));
        if (flag == "--shape")
            flags.shape = value;
        else if (flag == "--threads")
            flags.threads = number;
        else if (flag == "--context")
            flags.context = std::max(1u, number);
        else if (flag == "--check")
            flags.check = value;
        else
            fail("unknown flag " + flag);
    }
    return flags;
}

int run(const Flags& flags) {
    const auto found = synth_shape(flags.shape);
    if (!found.ok()) fail(found.error().message);
    const ModelConfig& c = *found;
    ThreadPool threads(flags.threads);
    StageBench bench(c, threads);

    const std::uint32_t qkv_out = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    const Ring attention(PackedDtype::int8, qkv_out, c.hidden_size, ring_bytes),
        attention_int6(PackedDtype::int6, qkv_out, c.hidden_size, ring_bytes, hub_int6_group_size),
        attention_int4(PackedDtype::int4, qkv_out, c.hidden_size, ring_bytes, 32),
        head(PackedDtype::int8, c.vocab_size, c.hidden_size, ring_bytes),
        head_int6(PackedDtype::int6, c.vocab_size, c.hidden_size, ring_bytes, 32),
        up(PackedDtype::int4, 2 * c.moe_intermediate_size, c.hidden_size, ring_bytes),
        down(PackedDtype::int4, c.hidden_size, c.moe_intermediate_size, ring_bytes),
        up_mxfp4(PackedDtype::mxfp4, 2 * c.moe_intermediate_size, c.hidden_size, ring_bytes,
                 mxfp4_block),
        down_mxfp4(PackedDtype::mxfp4, c.hidden_size, c.moe_intermediate_size, ring_bytes,
                   mxfp4_block);

    bench.product("qkv_int8", attention, 1, 1);
    bench.product("qkv_int6", attention_int6, 1, 1);
    bench.product("qkv_int4", attention_int4, 1, 1);
    bench.product("head_int8", head, 1, 1);
    bench.product("head_int6", head_int6, 1, 1);
    bench.product("experts_up_int4", up, c.top_k, 1);
    bench.product("experts_down_int4", down, c.top_k, 1);
    bench.product("experts_up_mxfp4", up_mxfp4, c.top_k, 1);
    bench.product("experts_down_mxfp4", down_mxfp4, c.top_k, 1);
    for (const KvDtype dtype : {KvDtype::f32, KvDtype::f16, KvDtype::int8})
        bench.attention(flags.context, dtype);
    for (const std::uint32_t users : {4u, 8u, 16u}) {
        bench.product("qkv_int6", attention_int6, 1, users);
        bench.product("head_int6", head_int6, 1, users);
    }
    bench.product("qkv_int8", attention, 1, 256);
    bench.product("qkv_int6", attention_int6, 1, 256);
    bench.product("experts_up_int4", up, c.num_experts, 32);
    bench.product("experts_down_int4", down, c.num_experts, 32);
    bench.product("experts_up_mxfp4", up_mxfp4, c.num_experts, 32);
    bench.product("experts_down_mxfp4", down_mxfp4, c.num_experts, 32);

    const std::string machine = machine_name(threads.num_threads());
    if (flags.header)
        std::printf("machine,shape,stage,rows,gb_or_gmac,per_second,bound_per_second,share\n");
    for (const Row& row : bench.rows())
        std::printf("%s,%s,%s,%u,%.3f,%.1f,%.1f,%.2f\n", machine.c_str(), flags.shape.c_str(),
                    row.stage.c_str(), row.rows, row.amount, row.rate, row.bound, row.share());
    return flags.check.empty() ? 0 : check(flags.check, machine, flags.shape, bench.rows());
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) { return moex::run(moex::parse(argc, argv)); }
