// Measures the cost of an empty parallel loop: the time in which compute threads start and join.
//   pool_bench [--threads N] [--gap-us N] [--early-us N] [--all-there]
//              [--loops N] [--header]
// --gap-us: a loop begins `N` microseconds after the last one ended. In a decoder the gap is 1 to
// 20 microseconds. --early-us: threads begin to poll `N` microseconds before a loop begins.
// CSV: threads, gap_us, early_us, and microseconds from the call to its return: p50, p90, p99.
// --all-there: a loop lasts until all threads have entered it, so that sleep counts in full.
// example: pool_bench --threads 2 --gap-us 2 --header
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "hub/base/clock.h"
#include "hub/base/thread_pool.h"

int main(int argc, char** argv) {
    using namespace moex;
    std::size_t num_threads = 0;
    unsigned long gap_us = 2, num_loops = 20000;
    bool header = false, all_there = false;
    std::optional<unsigned long> early_us;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        const auto value = [&] { return std::strtoul(i + 1 < argc ? argv[++i] : "", nullptr, 10); };
        if (flag == "--threads")
            num_threads = value();
        else if (flag == "--gap-us")
            gap_us = value();
        else if (flag == "--early-us")
            early_us = value();
        else if (flag == "--all-there")
            all_there = true;
        else if (flag == "--loops")
            num_loops = std::max(value(), 100ul);
        else if (flag == "--header")
            header = true;
        else {
            std::fprintf(stderr, "pool_bench: unknown flag %s\n", flag.c_str());
            return 2;
        }
    }

    ThreadPool threads(num_threads);
    std::vector<double> took_us;
    for (unsigned long loop = 0; loop < num_loops; ++loop) {
        const TimePoint begin = now_steady() + std::chrono::microseconds(gap_us);
        if (early_us) threads.expect_job(begin - std::chrono::microseconds(*early_us));
        while (now_steady() < begin) {}
        const TimePoint called = now_steady();
        if (all_there) {
            std::atomic<std::size_t> there{0};
            threads.parallel_for(threads.num_threads(), 1, [&](std::size_t, std::size_t) {
                ++there;
                while (there < threads.num_threads()) {}
            });
        } else {
            threads.parallel_for(4 * threads.num_threads(), 1, [](std::size_t, std::size_t) {});
        }
        took_us.push_back(to_ms(now_steady() - called) * 1000);
    }
    std::sort(took_us.begin(), took_us.end());
    const auto at = [&](std::size_t percent) { return took_us[took_us.size() * percent / 100]; };
    if (header) std::printf("threads,gap_us,early_us,p50_us,p90_us,p99_us\n");
    std::printf("%zu,%lu,%s,%.2f,%.2f,%.2f\n", threads.num_threads(), gap_us,
                early_us ? std::to_string(*early_us).c_str() : "", at(50), at(90), at(99));
    return 0;
}
