// Decode and prefill on the local backend: how far from what the memory allows.
//   decode_bench [--shape NAME | --model DIR] [--threads N] [--tokens N] [--repeats N]
//   NAME: bench-moe, demo, tiny, qwen3-30b-a3b, paper
// CSV: shape, threads, phase, rows per step, tok/s median, p99 ms per step, bytes of weights moved
// per step, bound tok/s at the measured bandwidth.
// example: decode_bench --shape bench-moe --threads 2
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "hub/engine/decoder.h"
#include "hub/engine/kernels.h"
#include "hub/engine/local_experts.h"
#include "hub/model/pack/synth.h"

namespace moex {
namespace {

double seconds_since(TimePoint started) { return to_ms(now_steady() - started) / 1000; }

// Bytes per second of reading by all threads: what a decode step cannot pass.
double memory_bandwidth(ThreadPool& threads) {
    std::vector<float> data(std::size_t{64} << 20, 1.0f);
    const float one = 1.0f;
    const std::uint32_t num_in = 1024, num_out = static_cast<std::uint32_t>(data.size() / num_in);
    std::vector<float> x(num_in, one), out(num_out);

    double best = 0;
    for (int repeat = 0; repeat < 5; ++repeat) {
        const TimePoint started = now_steady();
        threads.parallel_for(num_out, 64, [&](std::size_t begin, std::size_t end) {
            matmul({out.data(), num_out}, {data.data(), WeightDtype::f32, num_out, num_in},
                   {x.data(), num_in, 1}, static_cast<std::uint32_t>(begin),
                   static_cast<std::uint32_t>(end));
        });
        best = std::max(best,
                        static_cast<double>(data.size() * sizeof(float)) / seconds_since(started));
    }
    return best;
}

// Weights that one token meets, as they lie in memory.
double bytes_per_token(const ModelPackage& package) {
    const ModelConfig& c = package.config();
    const double q = double{1} * c.num_heads * c.head_dim,
                 kv = double{1} * c.num_kv_heads * c.head_dim;

    double bytes = 2.0 * c.vocab_size * c.hidden_size;
    for (std::uint32_t layer = 0; layer < c.num_layers; ++layer) {
        bytes += 2.0 * c.hidden_size * (2 * q + 2 * kv);
        if (c.is_moe(layer))
            bytes += 2.0 * c.num_experts * c.hidden_size +
                     static_cast<double>(c.top_k) *
                         static_cast<double>(package.expert_blob_bytes());
        else
            bytes += 2.0 * 3 * c.hidden_size * c.intermediate_size;
    }
    return bytes;
}

struct Bench {
    std::string shape;
    ThreadPool& threads;
    const ModelPackage& package;
    Decoder& decoder;
    LocalExperts experts;
    double bandwidth;

    void row(const char* phase, std::uint32_t rows_per_step, std::vector<double> step_seconds,
             double bytes) const {
        std::sort(step_seconds.begin(), step_seconds.end());
        const double median = step_seconds[step_seconds.size() / 2],
                     p99 = step_seconds[step_seconds.size() * 99 / 100];

        std::printf("%s,%zu,%s,%u,%.1f,%.2f,%.0f,%.1f\n", shape.c_str(), threads.num_threads(),
                    phase, rows_per_step, rows_per_step / median, p99 * 1000, bytes,
                    bytes > 0 ? rows_per_step * bandwidth / bytes : 0.0);
        std::fflush(stdout);
    }

    // `num_sequences` sequences decode side by side.
    void decode(std::uint32_t num_sequences, std::uint32_t num_tokens) {
        const ModelConfig& config = package.config();
        KvCache cache(config, {16, num_sequences * (num_tokens / 16 + 2)});
        std::vector<KvCache::Sequence> sequences;
        std::vector<TokenId> last(num_sequences);
        for (std::uint32_t i = 0; i < num_sequences; ++i) {
            sequences.emplace_back(cache);
            last[i] = i * 37 % config.vocab_size;
        }

        std::vector<double> times;
        for (std::uint32_t token = 0; token < num_tokens; ++token) {
            std::vector<StepRows> batch;
            for (std::uint32_t i = 0; i < num_sequences; ++i)
                batch.push_back({.kv = &sequences[i], .tokens = {&last[i], 1}});

            const TimePoint started = now_steady();
            const auto step = decoder.step(batch, experts);
            times.push_back(seconds_since(started));
            if (!step.ok()) return fail(step.error());

            for (std::uint32_t i = 0; i < num_sequences; ++i) {
                const auto logits = std::span(step->logits)
                                        .subspan(std::size_t{i} * config.vocab_size,
                                                 config.vocab_size);
                last[i] = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) -
                                               logits.begin());
            }
        }

        // The first steps also page the map in.
        times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4));
        row("decode", num_sequences, times, num_sequences == 1 ? bytes_per_token(package) : 0);
    }

    void prefill(std::uint32_t num_tokens, std::uint32_t repeats) {
        const ModelConfig& config = package.config();
        KvCache cache(config, {16, num_tokens / 16 + 2});
        std::vector<TokenId> ids(num_tokens);
        for (std::uint32_t i = 0; i < num_tokens; ++i) ids[i] = i * 7919 % config.vocab_size;

        std::vector<double> times;
        for (std::uint32_t repeat = 0; repeat < repeats; ++repeat) {
            KvCache::Sequence sequence(cache);
            const TimePoint started = now_steady();
            constexpr std::uint32_t chunk = 256;

            for (std::uint32_t first = 0; first < num_tokens; first += chunk) {
                const StepRows rows{.kv = &sequence,
                                    .tokens = std::span<const TokenId>(ids).subspan(
                                        first, std::min(chunk, num_tokens - first)),
                                    .no_logits = first + chunk < num_tokens};
                const auto step = decoder.step({&rows, 1}, experts);
                if (!step.ok()) return fail(step.error());
            }
            times.push_back(seconds_since(started));
        }
        row("prefill", num_tokens, times, 0);
    }
    static void fail(const Error& error) {
        std::fprintf(stderr, "decode_bench: %s\n", error.message.c_str());
        std::exit(1);
    }
};

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    using namespace moex;
    std::string shape = "bench-moe", model;
    std::uint32_t num_threads = 0, num_tokens = 128, repeats = 5;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i];
        if (flag == "--shape")
            shape = argv[i + 1];
        else if (flag == "--model")
            shape = model = argv[i + 1];
        else if (flag == "--threads")
            num_threads = static_cast<std::uint32_t>(std::atoi(argv[i + 1]));
        else if (flag == "--tokens")
            num_tokens = static_cast<std::uint32_t>(std::atoi(argv[i + 1]));
        else if (flag == "--repeats")
            repeats = static_cast<std::uint32_t>(std::atoi(argv[i + 1]));
        else {
            std::fprintf(stderr, "decode_bench: unknown flag %s\n", argv[i]);
            return 2;
        }
    }

    ThreadPool threads(num_threads);
    std::filesystem::path folder = model, made;
    if (model.empty()) {
        made = folder = std::filesystem::temp_directory_path() /
                        ("moex-decode-bench-" + std::to_string(::getpid()));
        const auto config = synth_shape(shape);
        if (!config.ok()) Bench::fail(config.error());
        const auto report = synth_package(*config, shape, 1234, folder, {}, threads, {});
        if (!report.ok()) Bench::fail(report.error());
    }

    {
        const auto package = ModelPackage::open(folder);
        if (!package.ok()) Bench::fail(package.error());
        const auto decoder = Decoder::create(*package, threads);
        if (!decoder.ok()) Bench::fail(decoder.error());

        const double bandwidth = memory_bandwidth(threads);
        std::fprintf(stderr, "decode_bench: kernels %s, %.1f GB/s read\n", kernel_target(),
                     bandwidth / 1e9);
        std::printf(
            "shape,threads,phase,rows_per_step,tok_s_median,p99_ms,bytes_per_step,bound_tok_s\n");
        Bench bench{shape,    threads, **package, **decoder, LocalExperts(*package, threads, {}),
                    bandwidth};
        bench.decode(1, num_tokens);
        bench.decode(4, num_tokens);
        bench.prefill(128, repeats);
        bench.prefill(512, repeats);
    }

    if (!made.empty()) std::filesystem::remove_all(made);
    return 0;
}
