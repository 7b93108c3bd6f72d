#include "hub/base/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

namespace moex {
namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

Path trace_path() {
    return std::filesystem::temp_directory_path() / text("moex-trace-", ::getpid(), ".json");
}
std::string content_of(const Path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
}

TEST(TraceTest, TracingIsOffBeforeOpenAndAfterClose) {
    EXPECT_EQ(Trace::on(), nullptr);
    { const TraceSpan unseen(Trace::Row::engine, "unseen"); }
    {
        const auto trace = Trace::open(trace_path());
        ASSERT_TRUE(trace.ok());
        EXPECT_EQ(Trace::on(), trace->get());
    }
    EXPECT_EQ(Trace::on(), nullptr);
    EXPECT_EQ(content_of(trace_path()).find("unseen"), std::string::npos);
    EXPECT_FALSE(Trace::open(trace_path() / "beneath a file").ok());
    std::filesystem::remove(trace_path());
}

TEST(TraceTest, SpansOfManyThreadsKeepTimesAndValues) {
    const TimePoint begin = now_steady();
    {
        const auto trace = Trace::open(trace_path());
        ASSERT_TRUE(trace.ok());
        std::vector<std::thread> threads;
        for (std::uint64_t thread = 0; thread < 4; ++thread)
            threads.emplace_back([&, thread] {
                for (std::uint64_t i = 0; i < 1000; ++i)
                    (*trace)->span(Trace::Row::strand, "one", begin, begin + 1500ns,
                                   {{"thread", thread}, {"number", i}});
            });
        for (std::thread& thread : threads) thread.join();
        (*trace)->worker_span(3, 77, "round", begin, begin + 2ms, {{"layer", 5}});
        (*trace)->worker_span(3, 77, "GPU", begin + 1ms, begin + 1500us);
        (*trace)->worker_counts(3, "asked", begin + 1ms, {{"hits", 7}, {"misses", 2}});
    }

    const Json events = Json::parse(content_of(trace_path()), nullptr, false);
    ASSERT_TRUE(events.is_array());
    std::map<std::uint64_t, std::uint64_t> next;  // by thread
    std::vector<std::string> nested;
    Json counts, process_of_three;
    for (const Json& event : events) {
        if (event["ph"] == "X") {
            EXPECT_EQ(event["dur"], 1.5);
            EXPECT_EQ(event["args"]["number"],
                      next[event["args"]["thread"].get<std::uint64_t>()]++);
        } else if (event["ph"] == "C") {
            counts = event;
        } else if (event["ph"] == "M" && event["args"].value("name", "") == "worker 3") {
            process_of_three = event["pid"];
        } else if (event["ph"] == "b" || event["ph"] == "e") {
            EXPECT_EQ(event["id"], 77);
            nested.push_back(event["ph"].get<std::string>() + event["name"].get<std::string>());
        }
    }
    for (std::uint64_t thread = 0; thread < 4; ++thread) EXPECT_EQ(next[thread], 1000u);
    EXPECT_EQ(counts["name"], "asked");
    EXPECT_EQ(counts["args"], Json({{"hits", 7}, {"misses", 2}}));
    EXPECT_EQ(counts["pid"], process_of_three);
    EXPECT_EQ(nested, (std::vector<std::string>{"bround", "eround", "bGPU", "eGPU"}));
    std::filesystem::remove(trace_path());
}

TEST(TraceTest, AFileHasALargestSize) {
    {
        const auto trace = Trace::open(trace_path(), 4096);
        ASSERT_TRUE(trace.ok());
        // Each write to the file takes all pending spans, so the file has reached its largest size
        // after two writes.
        for (int i = 0; i < 200'000; ++i)
            (*trace)->span(Trace::Row::engine, "step", now_steady(), now_steady());
    }
    const std::string content = content_of(trace_path());
    EXPECT_TRUE(Json::parse(content, nullptr, false).is_array());
    EXPECT_LT(content.size(), 16u << 20);
    std::filesystem::remove(trace_path());
}

}  // namespace
}  // namespace moex
