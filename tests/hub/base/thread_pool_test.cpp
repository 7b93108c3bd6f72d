#include "hub/base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace moex {
namespace {

TEST(ThreadPoolTest, EveryIndexIsVisitedOnceWhateverTheSizes) {
    for (const std::size_t num_threads : {1u, 2u, 3u, 8u}) {
        ThreadPool pool(num_threads);
        EXPECT_EQ(pool.num_threads(), num_threads);
        for (const std::size_t count : {0u, 1u, 2u, 7u, 64u, 1000u})
            for (const std::size_t grain : {1u, 3u, 100u, 5000u}) {
                // The counters are plain integers: if two threads visited one index, the sanitizer
                // would also report a race.
                std::vector<int> visits(count, 0);
                pool.parallel_for(count, grain, [&](std::size_t begin, std::size_t end) {
                    for (std::size_t i = begin; i < end; ++i) ++visits[i];
                });
                EXPECT_EQ(std::count(visits.begin(), visits.end(), 1),
                          static_cast<std::ptrdiff_t>(count))
                    << num_threads << ' ' << count << ' ' << grain;
            }
    }
}

// Jobs as short as a decoder's follow each other directly, and each job sees what the previous job
// wrote.
TEST(ThreadPoolTest, ManyShortJobsFollowEachOther) {
    ThreadPool pool(4);
    std::vector<std::uint64_t> values(64, 0);
    constexpr std::uint64_t num_jobs = 20'000;
    for (std::uint64_t job = 0; job < num_jobs; ++job)
        pool.parallel_for(values.size(), 4, [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin; i < end; ++i) values[i] += i + job;
        });

    for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(values[i], num_jobs * i + num_jobs * (num_jobs - 1) / 2);
}

TEST(ThreadPoolTest, CallersShareThePoolAndNestedCallsRunInline) {
    ThreadPool pool(3);
    std::atomic<std::uint64_t> sum{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller)
        callers.emplace_back([&] {
            for (int repeat = 0; repeat < 200; ++repeat)
                pool.parallel_for(32, 1, [&](std::size_t begin, std::size_t end) {
                    pool.parallel_for(end - begin, 1,
                                      [&](std::size_t from, std::size_t to) { sum += to - from; });
                });
        });

    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(sum, 4u * 200u * 32u);
}

TEST(ThreadPoolTest, EveryCutOfALoopCoversEverythingOnce) {
    ThreadPool pool(3);
    for (const std::size_t ranges : {0u, 1u, 4u, 100u}) {
        pool.set_ranges_per_thread(ranges);
        std::vector<std::atomic<int>> met(50);
        std::atomic<std::size_t> num_ranges{0}, num_long{0};
        pool.parallel_for(met.size(), 1, [&](std::size_t begin, std::size_t end) {
            ++num_ranges;
            if (end - begin > met.size() / (3 * std::clamp<std::size_t>(ranges, 1, 16))) ++num_long;
            for (std::size_t i = begin; i < end; ++i) ++met[i];
        });
        for (const auto& count : met) EXPECT_EQ(count, 1);
        // Each thread gets the same number of ranges, and two ranges differ in length by one
        // iteration at most.
        EXPECT_EQ(num_ranges, ranges <= 1 ? 3u : ranges == 4 ? 12u : 48u);
        EXPECT_EQ(num_long, 50u % num_ranges);
    }
}

#if defined(__linux__)
TEST(ThreadPoolTest, ComputeThreadsAreNamed) {
    ThreadPool pool(3);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> others = 0;
    while (others == 0)
        pool.parallel_for(64, 1, [&](std::size_t, std::size_t) {
            if (std::this_thread::get_id() == caller) return;
            char name[16] = {};
            pthread_getname_np(pthread_self(), name, sizeof name);
            EXPECT_STREQ(name, "compute");
            ++others;
        });
}
#endif

// Each of the two ranges of a job waits until the other has begun: if the pool did not wake its
// sleeping thread, the test would wait for ever. Some pauses between jobs are longer than the time
// for which threads spin, and some are shorter.
TEST(ThreadPoolTest, SleepingThreadsAreWokenForAJob) {
    ThreadPool pool(2);
    pool.set_ranges_per_thread(1);
    for (int job = 0; job < 400; ++job) {
        const auto begin = std::chrono::steady_clock::now() + std::chrono::microseconds(job);
        while (std::chrono::steady_clock::now() < begin) std::this_thread::yield();

        std::atomic<int> num_there{0};
        pool.parallel_for(2, 1, [&](std::size_t, std::size_t) {
            ++num_there;
            while (num_there < 2) std::this_thread::yield();
        });
        ASSERT_EQ(num_there, 2);
    }
}

// Like SleepingThreadsAreWokenForAJob, but expect_job() announced the job before. The announced
// time is the job's start, or earlier, or much later; the announced memory is read by the job, or
// has been freed.
TEST(ThreadPoolTest, ExpectedJobRunsWheneverItStarts) {
    ThreadPool pool(4);
    pool.set_ranges_per_thread(1);
    const std::vector<std::byte> kept(100'000);
    for (int job = 0; job < 300; ++job) {
        const std::vector<std::byte> gone(1000);
        const ThreadPool::Reads reads[] = {{{kept, {}, gone}}, {{gone, std::span(kept).first(7)}}};
        const TimePoint begin = now_steady() + std::chrono::microseconds(job * 3);
        pool.expect_job(begin + std::chrono::microseconds(job % 7 * 150 - 450),
                        std::span(reads).first(static_cast<std::size_t>(job % 3)));
        while (now_steady() < begin) std::this_thread::yield();

        std::atomic<int> num_there{0};
        pool.parallel_for(4, 1, [&](std::size_t, std::size_t) {
            ++num_there;
            while (num_there < 4) std::this_thread::yield();
        });
        ASSERT_EQ(num_there, 4);
    }
}

TEST(ThreadPoolTest, LoopGrainFollowsTheCostOfIterations) {
    // the loop costs less than four ranges, so it is not divided
    EXPECT_EQ(loop_grain(8, 1000, 4000), 8u);
    EXPECT_EQ(loop_grain(16, 1000, 4000), 4u);
    // a range of two iterations would cost less than 4000
    EXPECT_EQ(loop_grain(16, 1500, 4000), 3u);
    EXPECT_EQ(loop_grain(4, 9000, 4000), 1u);
    EXPECT_EQ(loop_grain(5, 0, 4000), 5u);
}

}  // namespace
}  // namespace moex
