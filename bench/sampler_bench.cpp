// Measures the time of sampling one row, for each kind of request; the compute threads sample rows
// in parallel.
//   sampler_bench [--vocab N] [--rows N] [--threads N] [--steps N] [--header]
// Logits are normal with a standard deviation of 3, and 20 tokens have much larger logits, as in a
// trained model. The header line names the CSV columns. ms_row_*: a step's time divided by its
// number of rows; goal: 0.5 ms with a vocabulary of 151,936 with top-p.
// example: sampler_bench --rows 1 --threads 1 --header
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "hub/base/clock.h"
#include "hub/base/thread_pool.h"
#include "hub/engine/scores.h"

namespace moex {
namespace {

struct Kind {
    const char* name;
    SamplingOptions sampling;
};

std::vector<float> make_logits(std::size_t rows, std::size_t vocab_size) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> logits(rows * vocab_size);
    for (float& logit : logits) logit = normal(random);
    for (std::size_t row = 0; row < rows; ++row)
        for (int i = 0; i < 20; ++i)
            logits[row * vocab_size + random() % vocab_size] = 16.0f + normal(random);
    return logits;
}

void measure(const Kind& kind, std::size_t rows, std::size_t vocab_size, std::uint32_t steps,
             ThreadPool& threads) {
    const std::vector<float> logits = make_logits(rows, vocab_size);
    const std::vector<TokenId> prompt{1, 2, 3, 5, 8, 13, 21, 34};
    std::vector<Sampler> samplers;
    for (std::size_t row = 0; row < rows; ++row) {
        SamplingOptions sampling = kind.sampling;
        sampling.seed = row;
        samplers.emplace_back(sampling, prompt);
    }

    std::vector<double> times;
    for (std::uint32_t step = 0; step < steps; ++step) {
        const TimePoint started = now_steady();
        threads.parallel_for(rows, 1, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                samplers[row].accept(sample(samplers[row],
                                            std::span(logits).subspan(row * vocab_size, vocab_size),
                                            0)
                                         .id);
        });
        times.push_back(to_ms(now_steady() - started) / static_cast<double>(rows));
    }

    std::sort(times.begin(), times.end());
    std::printf("%zu,%zu,%zu,%s,%.3f,%.3f\n", vocab_size, rows, threads.num_threads(), kind.name,
                times[times.size() / 2], times[times.size() * 99 / 100]);
    std::fflush(stdout);
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    using namespace moex;
    std::size_t vocab_size = 151936, rows = 1, num_threads = 0;
    std::uint32_t steps = 200;
    bool with_header = false;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag == "--header") {
            with_header = true;
            continue;
        }
        const auto value = i + 1 < argc ? std::strtoul(argv[++i], nullptr, 10) : 0;
        if (flag == "--vocab" && value > 0)
            vocab_size = value;
        else if (flag == "--rows" && value > 0)
            rows = value;
        else if (flag == "--threads")
            num_threads = value;
        else if (flag == "--steps" && value > 0)
            steps = static_cast<std::uint32_t>(value);
        else {
            std::fprintf(stderr, "sampler_bench: wrong flag or value at %s\n", flag.c_str());
            return 2;
        }
    }

    ThreadPool threads(num_threads);
    if (with_header) std::printf("vocab_size,rows,threads,sampling,ms_row_median,ms_row_p99\n");
    for (const Kind& kind :
         {Kind{"greedy", {.temperature = 0}}, Kind{"temperature 0.8", {.temperature = 0.8}},
          Kind{"top_p 0.95", {.temperature = 0.8, .top_p = 0.95}},
          Kind{"top_p 0.95 + top_k 20", {.temperature = 0.8, .top_p = 0.95, .sample_top_k = 20}},
          Kind{"top_p 0.95 + repetition 1.1",
               {.temperature = 0.8, .top_p = 0.95, .repetition_penalty = 1.1}},
          Kind{"top_p 0.95 + temperature 2", {.temperature = 2, .top_p = 0.95}}})
        measure(kind, rows, vocab_size, steps, threads);
    return 0;
}
