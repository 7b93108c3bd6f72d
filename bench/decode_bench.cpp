// Measures decode and prefill on the local backend, and the bound that memory bandwidth sets.
//   decode_bench [--shape NAME | --model DIR] [--threads N] [--tokens N] [--repeats N]
//                [--arithmetic exact|int8|both] [--kv-dtype f32|f16|int8]
//                [--hub-dtype int8|int6|int4] [--context TOKENS] [--users N] [--ranges N,M]
//                [--away-us N]
//   NAME: bench-moe, demo, tiny, qwen3-30b-a3b, paper
// CSV: shape, arithmetic, threads, phase, rows per step, tok/s (median), ms per step (p99), bytes
// of weights moved per step, the bound in tok/s at the measured bandwidth, CPU ms of a step (mean
// of the faster three quarters, all threads).
// --arithmetic: int8 by default; `both` measures the two arithmetics alternately, phase by phase,
// so that other load of the machine affects both alike.
// --context: one sequence decodes behind `TOKENS` tokens, and nothing else is measured.
// --users: `N` sequences decode, and nothing else is measured.
// --ranges: measures each number of ranges that a thread's share of a loop is cut into,
// alternately. The CSV then has the median time with the first number over the median time with
// each other number (above 1 the other number is faster), for each turn, and the median of these
// ratios over the turns.
// --away-us: a remote backend answers zeros `N` microseconds after each request. CSV: shape,
// threads, users, away_us, and the hub's own time for a layer without the LM head, in microseconds:
// median and p99 of the steps.
// example: decode_bench --shape bench-moe --threads 2
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "hub/engine/decoder.h"
#include "hub/engine/kernels.h"
#include "hub/engine/kernels/integer.h"
#include "hub/engine/local_experts.h"
#include "hub/model/pack/synth.h"

namespace moex {
namespace {

double seconds_since(TimePoint started) { return to_ms(now_steady() - started) / 1000; }

// Returns the CPU time that all threads of the process have used since it began.
double cpu_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// A backend of remote experts: each round lasts a fixed time, whichever experts it requests. The
// waiting thread polls for the answer, as a hub with nearby workers does.
class AwayExperts : public ExpertBackend {
  public:
    explicit AwayExperts(Duration away) : away_(away) {}
    const char* name() const override { return "away"; }
    bool works_elsewhere() const override { return true; }
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        std::fill(batch.y.begin(), batch.y.end(), 0.0f);
        return std::make_unique<Round>(now_steady() + away_);
    }

  private:
    struct Round : ExpertRound {
        explicit Round(TimePoint end) : end(end) {}
        Result<ExpertAnswer> wait(std::stop_token) override {
            while (now_steady() < end) {}
            return ExpertAnswer{};
        }
        TimePoint end;
    };
    Duration away_;
};

// The wall time and the CPU time of each measured step.
struct StepTimes {
    std::vector<double> seconds, cpu_seconds;

    void add(TimePoint started, double cpu_started) {
        seconds.push_back(seconds_since(started));
        cpu_seconds.push_back(moex::cpu_seconds() - cpu_started);
    }
    // Adds the steps of `from`, from its index `first` on.
    void append(const StepTimes& from, std::size_t first) {
        const auto at = static_cast<std::ptrdiff_t>(first);
        seconds.insert(seconds.end(), from.seconds.begin() + at, from.seconds.end());
        cpu_seconds.insert(cpu_seconds.end(), from.cpu_seconds.begin() + at,
                           from.cpu_seconds.end());
    }
    void sort() {  // by wall time
        std::vector<std::size_t> order(size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::sort(order.begin(), order.end(),
                  [this](std::size_t a, std::size_t b) { return seconds[a] < seconds[b]; });
        StepTimes sorted;
        for (const std::size_t i : order) {
            sorted.seconds.push_back(seconds[i]);
            sorted.cpu_seconds.push_back(cpu_seconds[i]);
        }
        *this = std::move(sorted);
    }
    std::size_t size() const { return seconds.size(); }
    double median() const { return seconds[size() / 2]; }
    double p99() const { return seconds[size() * 99 / 100]; }
    // Returns the mean CPU time of the faster three quarters of the steps. The slower steps also
    // pack experts that are used for the first time. A median would be as coarse as a single step,
    // since the system accounts threads of other cores at its ticks.
    double cpu_mean() const {
        const std::size_t count = std::max<std::size_t>(size() * 3 / 4, 1);
        return std::accumulate(cpu_seconds.begin(),
                               cpu_seconds.begin() + static_cast<std::ptrdiff_t>(count), 0.0) /
               static_cast<double>(count);
    }
};

// Returns the bytes per second that all threads together read from memory. This bounds the speed at
// which a decode step can read its weights.
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

// Returns the bytes of the weights that one token reads, as they are stored in memory.
double bytes_per_token(const ModelPackage& package, Arithmetic arithmetic, PackedDtype hub_dtype) {
    const ModelConfig& c = package.config();
    const double q = double{1} * c.num_heads * c.head_dim,
                 kv = double{1} * c.num_kv_heads * c.head_dim;

    // Bytes per weight. int8: one byte a weight, and 4 bytes of scale for each group of 128; the
    // router stays bf16. int6: three quarters of a byte, and 2 bytes of scale for each group of 64,
    // 32 in the LM head. int4: half a byte, and 4 bytes of scale and zero for each group of 32; the
    // LM head is int6.
    double head = 2, hub = 2;
    if (arithmetic == Arithmetic::int8) {
        head = hub_dtype == PackedDtype::int8 ? 1 + 4.0 / 128 : 0.75 + 2.0 / 32;
        hub = hub_dtype == PackedDtype::int8   ? head
              : hub_dtype == PackedDtype::int6 ? 0.75 + 2.0 / 64
                                               : 0.5 + 4.0 / 32;
    }
    double bytes = head * c.vocab_size * c.hidden_size;
    for (std::uint32_t layer = 0; layer < c.num_layers; ++layer) {
        bytes += hub * c.hidden_size * (2 * q + 2 * kv);
        if (c.is_moe(layer))
            bytes += 2.0 * c.num_experts * c.hidden_size +
                     static_cast<double>(c.top_k) *
                         static_cast<double>(package.expert_blob_bytes());
        else
            bytes += hub * 3 * c.hidden_size * c.intermediate_size;
    }
    return bytes;
}

// The model and engine of one arithmetic. The bench measures the two arithmetics alternately.
struct Variant {
    Arithmetic arithmetic = Arithmetic::exact;
    std::unique_ptr<Decoder> decoder;
    std::unique_ptr<LocalExperts> experts;
    StepTimes steps;

    const char* name() const { return arithmetic == Arithmetic::int8 ? "int8" : "exact"; }
};

struct Bench {
    std::string shape;
    ThreadPool& threads;
    const ModelPackage& package;
    std::vector<Variant> variants;
    double bandwidth;
    KvDtype kv_dtype = KvDtype::f32;
    PackedDtype hub_dtype = PackedDtype::int6;

    void print(const char* phase, std::uint32_t rows_per_step) {
        for (Variant& variant : variants) {
            StepTimes& steps = variant.steps;
            steps.sort();
            const bool is_decode = std::strcmp(phase, "decode") == 0 && rows_per_step == 1;
            const double bytes = is_decode ? bytes_per_token(package, variant.arithmetic, hub_dtype)
                                           : 0;

            std::printf("%s,%s,%zu,%s,%u,%.1f,%.2f,%.0f,%.1f,%.3f\n", shape.c_str(), variant.name(),
                        threads.num_threads(), phase, rows_per_step, rows_per_step / steps.median(),
                        steps.p99() * 1000, bytes, bytes > 0 ? bandwidth / bytes : 0.0,
                        steps.cpu_mean() * 1000);
            std::fflush(stdout);
            steps = {};
        }
    }

    // Decodes `num_sequences` sequences in one batch.
    void decode(std::uint32_t num_sequences, std::uint32_t num_tokens, std::uint32_t repeats) {
        for (std::uint32_t repeat = 0; repeat < repeats; ++repeat)
            for (Variant& variant : variants) {
                const StepTimes times = decode_once(variant, num_sequences,
                                                    std::max(4u, num_tokens / repeats));
                // Leave out the first quarter of the steps, which also read the mapped file into
                // memory.
                variant.steps.append(times, times.size() / 4);
            }
        print("decode", num_sequences);
    }
    StepTimes decode_once(Variant& variant, std::uint32_t num_sequences, std::uint32_t num_tokens) {
        const ModelConfig& config = package.config();
        KvCache cache(config, {16, num_sequences * (num_tokens / 16 + 2), kv_dtype});
        std::vector<KvCache::Sequence> sequences;
        std::vector<TokenId> last(num_sequences);
        for (std::uint32_t i = 0; i < num_sequences; ++i) {
            sequences.emplace_back(cache);
            last[i] = i * 37 % config.vocab_size;
        }

        StepTimes times;
        for (std::uint32_t token = 0; token < num_tokens; ++token) {
            std::vector<StepRows> batch;
            for (std::uint32_t i = 0; i < num_sequences; ++i)
                batch.push_back({.kv = &sequences[i], .tokens = {&last[i], 1}});

            const TimePoint started = now_steady();
            const double cpu_started = cpu_seconds();
            auto step = variant.decoder->step(batch, *variant.experts);
            times.add(started, cpu_started);
            if (!step.ok()) fail(step.error());

            for (std::uint32_t i = 0; i < num_sequences; ++i) {
                const auto logits = std::span(step->logits)
                                        .subspan(std::size_t{i} * config.vocab_size,
                                                 config.vocab_size);
                last[i] = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) -
                                               logits.begin());
            }
            variant.decoder->recycle(*std::move(step));
        }
        return times;
    }

    // Decodes one sequence that already has `context` tokens in its cache.
    void decode_behind(std::uint32_t context, std::uint32_t num_tokens) {
        for (Variant& variant : variants) {
            KvCache cache(package.config(), {16, (context + num_tokens) / 16 + 2, kv_dtype});
            KvCache::Sequence sequence(cache);
            std::vector<TokenId> ids(context + num_tokens);
            for (std::uint32_t i = 0; i < ids.size(); ++i)
                ids[i] = i * 7919 % package.config().vocab_size;

            for (std::uint32_t first = 0; first < ids.size();) {
                const bool is_prompt = first < context;
                const std::uint32_t count = is_prompt ? std::min(256u, context - first) : 1;
                const StepRows rows{.kv = &sequence,
                                    .tokens = std::span(ids).subspan(first, count),
                                    .no_logits = is_prompt};
                const TimePoint started = now_steady();
                const double cpu_started = cpu_seconds();
                auto step = variant.decoder->step({&rows, 1}, *variant.experts);
                if (!step.ok()) fail(step.error());
                if (!is_prompt) variant.steps.add(started, cpu_started);
                variant.decoder->recycle(*std::move(step));
                first += count;
            }
        }
        print(("decode behind " + std::to_string(context)).c_str(), 1);
    }

    // Measures the same loops with each number of ranges per thread (--ranges), alternately.
    void compare_ranges(std::span<const std::size_t> ranges, std::uint32_t num_sequences,
                        std::uint32_t num_tokens, std::uint32_t repeats) {
        std::vector<std::vector<double>> ratios(ranges.size());
        for (std::uint32_t repeat = 0; repeat < repeats; ++repeat) {
            std::vector<double> medians(ranges.size());
            for (std::size_t turn = 0; turn < ranges.size(); ++turn) {
                const std::size_t i = (turn + repeat) % ranges.size();
                threads.set_ranges_per_thread(ranges[i]);
                StepTimes times = decode_once(variants.front(), num_sequences, num_tokens);
                times.sort();
                medians[i] = times.median();
            }
            for (std::size_t i = 0; i < ranges.size(); ++i) {
                ratios[i].push_back(medians[0] / medians[i]);
                std::printf("%s,%zu,%u,%zu,%u,%.3f,%.3f\n", shape.c_str(), threads.num_threads(),
                            num_sequences, ranges[i], repeat + 1, medians[i] * 1000,
                            ratios[i].back());
            }
            std::fflush(stdout);
        }
        for (std::size_t i = 1; i < ranges.size(); ++i) {
            std::sort(ratios[i].begin(), ratios[i].end());
            std::printf("%s,%zu,%u,%zu,median,,%.3f\n", shape.c_str(), threads.num_threads(),
                        num_sequences, ranges[i], ratios[i][ratios[i].size() / 2]);
        }
    }

    // Measures the hub's own time for a layer while the experts are remote.
    void decode_away(std::uint32_t num_sequences, std::uint32_t num_tokens, std::uint32_t away_us) {
        const ModelConfig& config = package.config();
        AwayExperts experts{std::chrono::microseconds(away_us)};
        KvCache cache(config, {16, num_sequences * (num_tokens / 16 + 2), kv_dtype});
        std::vector<KvCache::Sequence> sequences;
        for (std::uint32_t i = 0; i < num_sequences; ++i) sequences.emplace_back(cache);

        std::vector<double> layer_us;
        for (std::uint32_t token = 0; token < num_tokens; ++token) {
            const TokenId id = token * 7919 % config.vocab_size;
            std::vector<StepRows> batch;
            for (KvCache::Sequence& sequence : sequences)
                batch.push_back({.kv = &sequence, .tokens = {&id, 1}, .no_logits = true});
            const TimePoint started = now_steady();
            const auto step = variants.front().decoder->step(batch, experts);
            if (!step.ok()) fail(step.error());
            layer_us.push_back(seconds_since(started) * 1e6 / config.num_layers - away_us);
        }
        std::sort(layer_us.begin(), layer_us.end());
        std::printf("%s,%zu,%u,%u,%.1f,%.1f\n", shape.c_str(), threads.num_threads(), num_sequences,
                    away_us, layer_us[layer_us.size() / 2], layer_us[layer_us.size() * 99 / 100]);
    }

    void prefill(std::uint32_t num_tokens, std::uint32_t repeats) {
        for (std::uint32_t repeat = 0; repeat < repeats; ++repeat)
            for (Variant& variant : variants) prefill_once(variant, num_tokens);
        print("prefill", num_tokens);
    }
    void prefill_once(Variant& variant, std::uint32_t num_tokens) {
        const ModelConfig& config = package.config();
        KvCache cache(config, {16, num_tokens / 16 + 2, kv_dtype});
        std::vector<TokenId> ids(num_tokens);
        for (std::uint32_t i = 0; i < num_tokens; ++i) ids[i] = i * 7919 % config.vocab_size;

        KvCache::Sequence sequence(cache);
        const TimePoint started = now_steady();
        const double cpu_started = cpu_seconds();
        constexpr std::uint32_t chunk = 256;
        for (std::uint32_t first = 0; first < num_tokens; first += chunk) {
            const StepRows rows{.kv = &sequence,
                                .tokens = std::span<const TokenId>(ids).subspan(
                                    first, std::min(chunk, num_tokens - first)),
                                .no_logits = first + chunk < num_tokens};
            const auto step = variant.decoder->step({&rows, 1}, *variant.experts);
            if (!step.ok()) fail(step.error());
        }
        variant.steps.add(started, cpu_started);
    }
    static void fail(const Error& error) {
        std::fprintf(stderr, "decode_bench: %s\n", error.message.c_str());
        std::exit(1);
    }
};

struct Flags {
    std::string shape = "bench-moe", model, arithmetic = "int8";
    std::uint32_t threads = 0, tokens = 128, repeats = 5, context = 0, users = 0, away_us = 0;
    std::vector<std::size_t> ranges;
    KvDtype kv_dtype = KvDtype::f32;
    PackedDtype hub_dtype = PackedDtype::int6;
};

Flags parse(int argc, char** argv) {
    Flags flags;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i], value = argv[i + 1];
        const auto number = static_cast<std::uint32_t>(std::atoi(value.c_str()));
        if (flag == "--shape")
            flags.shape = value;
        else if (flag == "--model")
            flags.shape = flags.model = value;
        else if (flag == "--arithmetic")
            flags.arithmetic = value;
        else if (flag == "--kv-dtype")
            flags.kv_dtype = parse_kv_dtype(value).value_or(KvDtype::f32);
        else if (flag == "--hub-dtype")
            flags.hub_dtype = value == "int4"   ? PackedDtype::int4
                              : value == "int8" ? PackedDtype::int8
                                                : PackedDtype::int6;
        else if (flag == "--context")
            flags.context = number;
        else if (flag == "--users")
            flags.users = number;
        else if (flag == "--ranges") {
            std::istringstream list(value);
            for (std::string one; std::getline(list, one, ',');)
                flags.ranges.push_back(std::strtoul(one.c_str(), nullptr, 10));
        } else if (flag == "--away-us")
            flags.away_us = number;
        else if (flag == "--threads")
            flags.threads = number;
        else if (flag == "--tokens")
            flags.tokens = number;
        else if (flag == "--repeats")
            flags.repeats = number;
        else {
            std::fprintf(stderr, "decode_bench: unknown flag %s\n", flag.c_str());
            std::exit(2);
        }
    }
    return flags;
}

void measure(const Flags& flags, const std::filesystem::path& folder, ThreadPool& threads) {
    const auto package = ModelPackage::open(folder);
    if (!package.ok()) Bench::fail(package.error());
    const double bandwidth = memory_bandwidth(threads);
    std::fprintf(stderr, "decode_bench: kernels %s, integer %s, %.1f GB/s read\n", kernel_target(),
                 integer_path().name, bandwidth / 1e9);
    std::printf("%s\n", flags.away_us > 0 ? "shape,threads,users,away_us,layer_us,layer_p99_us"
                        : flags.ranges.empty()
                            ? "shape,arithmetic,threads,phase,rows_per_step,tok_s_median,p99_ms,"
                              "bytes_per_step,bound_tok_s,cpu_ms"
                            : "shape,threads,users,ranges,turn,step_ms,ratio");

    Bench bench{flags.shape, threads, **package, {}, bandwidth, flags.kv_dtype, flags.hub_dtype};
    for (const Arithmetic one : {Arithmetic::exact, Arithmetic::int8}) {
        if (flags.arithmetic == (one == Arithmetic::exact ? "int8" : "exact")) continue;
        auto decoder = Decoder::create(*package, threads,
                                       {.arithmetic = one, .hub_dtype = flags.hub_dtype});
        if (!decoder.ok()) Bench::fail(decoder.error());
        bench.variants.push_back(
            {one,
             *std::move(decoder),
             std::make_unique<LocalExperts>(*package, threads, ExpertRounding{}, one),
             {}});
    }

    const std::uint32_t users = std::max(flags.users, 1u);
    if (flags.away_us > 0) return bench.decode_away(users, flags.tokens, flags.away_us);
    if (!flags.ranges.empty())
        return bench.compare_ranges(flags.ranges, users, flags.tokens, flags.repeats);
    if (flags.context > 0) return bench.decode_behind(flags.context, flags.tokens);
    if (flags.users > 0) return bench.decode(users, flags.tokens, flags.repeats);
    bench.decode(1, flags.tokens, flags.repeats);
    bench.decode(4, flags.tokens, flags.repeats);
    bench.prefill(128, flags.repeats);
    bench.prefill(512, flags.repeats);
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    using namespace moex;
    const Flags flags = parse(argc, argv);
    ThreadPool threads(flags.threads);
    std::filesystem::path folder = flags.model, made;
    if (flags.model.empty()) {
        made = folder = std::filesystem::temp_directory_path() /
                        ("moex-decode-bench-" + std::to_string(::getpid()));
        const auto config = synth_shape(flags.shape);
        if (!config.ok()) Bench::fail(config.error());
        const auto report = synth_package(*config, flags.shape, 1234, folder, {}, threads, {});
        if (!report.ok()) Bench::fail(report.error());
    }

    measure(flags, folder, threads);
    if (!made.empty()) std::filesystem::remove_all(made);
    return 0;
}
