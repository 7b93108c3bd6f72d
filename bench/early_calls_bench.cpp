// Measures the time of a token in each lossy mode. One sequence decodes, and the answers of its
// experts arrive a given time after their request. The exact mode and the lossy modes are measured
// alternately. In the early modes a layer's experts are called before the answers of the layer
// below have arrived. In the other lossy modes the hub guesses a layer's experts while it waits.
// Guesses save time only where experts are loaded on demand (bench/on_demand_bench.mjs), so this
// bench shows only what guesses cost.
//   early_calls_bench [--model DIR] [--tokens N] [--repeats N]
// Experts are computed here when they are requested; their round is complete `round_trip_ms` later.
// CSV: round trip in ms, mode (column "way"), number of rounds of a token that follow each other,
// ms per token (median), tok/s, tok/s relative to exact (median of the ratios of each repeat), and
// the processor's ms per token over all threads, which other load on the machine does not change.
// With a round trip of 0 ms sixteen times as many tokens are decoded.
// example: early_calls_bench --tokens 16
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "bench/foresight/speculation.h"
#include "hub/engine/local_experts.h"

namespace moex::bench {
namespace {

constexpr int round_trips_ms[] = {0, 5, 20, 50};
constexpr const char* modes[] = {"exact",
                                 "next-gate",
                                 "next-gate+weights",
                                 "quasi-hidden",
                                 "quasi-hidden+weights",
                                 "estimator",
                                 "estimator+weights",
                                 "hybrid",
                                 "hybrid+weights",
                                 "router-free",
                                 "early:3",
                                 "early:2",
                                 "early:1",
                                 "estimator+early:1"};

class FarExperts : public ExpertBackend {
  public:
    FarExperts(ExpertBackend& experts, Duration away) : experts_(experts), away_(away) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        const TimePoint back = now_steady() + away_;
        return std::make_unique<Round>(experts_.submit(batch), back);
    }
    const char* name() const override { return "far"; }

  private:
    struct Round : ExpertRound {
        Round(std::unique_ptr<ExpertRound> of, TimePoint at) : round(std::move(of)), back(at) {}
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            std::this_thread::sleep_until(back);
            return round->wait(std::move(stop));
        }
        std::unique_ptr<ExpertRound> round;
        TimePoint back;
    };
    ExpertBackend& experts_;
    const Duration away_;
};

template <typename T>
T must(Result<T> result) {
    if (result.ok()) return *std::move(result);
    std::fprintf(stderr, "early_calls_bench: %s\n", result.error().message.c_str());
    std::exit(1);
}

double cpu_ms() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

struct Rate {
    double tok_s = 0, cpu_ms = 0;
};
Rate decode(Decoder& decoder, ExpertBackend& experts, ExpertSpeculator* speculator,
            std::uint32_t num_tokens) {
    KvCache cache(decoder.config(), {16, num_tokens / 16 + 2, KvDtype::f16});
    KvCache::Sequence kv(cache);
    TimePoint started{};
    double cpu_started = 0;
    for (std::uint32_t i = 0; i <= num_tokens; ++i) {  // token 0 warms up and is not timed
        if (i == 1) started = now_steady(), cpu_started = cpu_ms();
        const TokenId token = 100 + 7 * i;
        const StepRows rows{.kv = &kv, .tokens = {&token, 1}, .speculator = speculator};
        decoder.recycle(must(decoder.step({&rows, 1}, experts)));
    }
    return {.tok_s = num_tokens * 1000.0 / to_ms(now_steady() - started),
            .cpu_ms = (cpu_ms() - cpu_started) / num_tokens};
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

int run(const char* model, std::uint32_t num_tokens, int repeats) {
    ThreadPool threads;
    const auto package = must(ModelPackage::open(model));
    const auto decoder = must(Decoder::create(package, threads, {.arithmetic = Arithmetic::int8}));
    LocalExperts local(package, threads, {}, Arithmetic::int8);
    TrialSources sources{.package = must(load_speculation_sources(package, threads))};
    // The layers that hybrid asks the estimator about. The choice does not matter: any two layers
    // take the same time.
    sources.estimator_layers = {1, 2};

    std::vector<std::unique_ptr<Speculator>> speculators;
    std::vector<std::uint32_t> rounds;
    const auto num_moe = static_cast<std::uint32_t>(sources.package.gates->moe_layers().size());
    for (const char* mode : modes) {
        speculators.push_back(nullptr);
        rounds.push_back(num_moe);
        if (std::strcmp(mode, "exact") == 0) continue;
        const Speculation what = must(parse_speculation(mode));
        speculators.back() = must(Speculator::create(what, sources));
        // Each layer with a substitute for its answers, except the last, saves one of the rounds
        // that must run one after the other.
        for (std::uint32_t layer = what.early_from.value_or(num_moe); layer + 1 < num_moe;
             layer += 2)
            --rounds.back();
    }

    std::printf("round_trip_ms,way,rounds_in_turn,token_ms,tok_s,of_exact,cpu_ms\n");
    for (const int away : round_trips_ms) {
        FarExperts experts(local, std::chrono::milliseconds(away));
        const std::uint32_t tokens = away == 0 ? 16 * num_tokens : num_tokens;
        std::vector<std::vector<double>> rates(std::size(modes)), gains(rates), cpu(rates);
        for (int repeat = 0; repeat < repeats; ++repeat)
            for (std::size_t i = 0; i < std::size(modes); ++i) {
                const Rate rate = decode(*decoder, experts, speculators[i].get(), tokens);
                rates[i].push_back(rate.tok_s);
                gains[i].push_back(rate.tok_s / rates[0].back());
                cpu[i].push_back(rate.cpu_ms);
            }
        for (std::size_t i = 0; i < std::size(modes); ++i)
            std::printf("%d,%s,%u,%.3f,%.2f,%.3f,%.3f\n", away, modes[i], rounds[i],
                        1000 / median(rates[i]), median(rates[i]), median(gains[i]),
                        median(cpu[i]));
        std::fflush(stdout);
    }
    return 0;
}

}  // namespace
}  // namespace moex::bench

int main(int argc, char** argv) {
    const char* model = "static/models/demo";
    std::uint32_t num_tokens = 16;
    int repeats = 5;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--model") model = argv[i + 1];
        if (name == "--tokens") num_tokens = static_cast<std::uint32_t>(std::atoi(argv[i + 1]));
        if (name == "--repeats") repeats = std::atoi(argv[i + 1]);
    }
    return moex::bench::run(model, num_tokens, repeats);
}
