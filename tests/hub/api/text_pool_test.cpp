// Tests of the text pool: the order in which clients are served, and refusals of full queues.
#include "hub/api/text_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <mutex>
#include <string>
#include <thread>

namespace moex {
namespace {

constexpr std::uint64_t long_bytes = 1 << 20, short_bytes = 10;

// Occupies the pool's only thread for long texts until open() is called.
class Plug {
  public:
    explicit Plug(TextPool& pool) {
        EXPECT_TRUE(pool.submit("plug", long_bytes,
                                [this] {
                                    running_.count_down();
                                    let_go_.get_future().wait();
                                })
                        .ok());
        running_.wait();
    }
    ~Plug() { open(); }
    void open() {
        if (!opened_) let_go_.set_value();
        opened_ = true;
    }

  private:
    std::latch running_{1};
    std::promise<void> let_go_;
    bool opened_ = false;
};

TEST(TextPoolTest, ClientsTakeTurnsHoweverMuchOneOfThemAsks) {
    std::mutex mutex;
    std::string order;
    std::latch done(24);
    TextPool pool({.long_threads = 1});
    Plug plug(pool);
    const auto ask = [&](char client, int count) {
        for (int i = 0; i < count; ++i)
            ASSERT_TRUE(pool.submit(std::string(1, client), 1000 + 16'000,
                                    [&, client] {
                                        const std::lock_guard lock(mutex);
                                        order += client;
                                        done.count_down();
                                    })
                            .ok());
    };
    ask('g', 20);  // a greedy client
    ask('a', 2);
    ask('b', 2);
    plug.open();
    done.wait();

    EXPECT_EQ(order.substr(0, 6), "gabgab") << order;
}

TEST(TextPoolTest, AShortTextWaitsForNoLongOne) {
    TextPool pool({.long_threads = 1});
    Plug plug(pool);
    std::promise<void> ran;
    ASSERT_TRUE(pool.submit("plug", short_bytes, [&] { ran.set_value(); }).ok());

    ran.get_future().wait();  // the long job is still running here
}

TEST(TextPoolTest, AFullQueueSaysToWhomItIsFull) {
    TextPool pool({.long_threads = 1,
                   .jobs_max = 4,
                   .jobs_per_client_max = 2,
                   .bytes_max = 6 * long_bytes,
                   .bytes_per_client_max = 2 * long_bytes});
    Plug plug(pool);
    const auto ask = [&](const char* client, std::uint64_t bytes) {
        const Checked<void> queued = pool.submit(client, bytes, [] {});
        return queued.ok() ? 200u : queued.refusal().status;
    };

    EXPECT_EQ(ask("a", long_bytes), 200u);
    EXPECT_EQ(ask("a", 2 * long_bytes), 429u);  // refused: too many bytes queued
    EXPECT_EQ(ask("a", long_bytes), 200u);
    EXPECT_EQ(ask("a", 20'000), 429u);  // refused: too many texts queued
    EXPECT_EQ(ask("b", long_bytes), 200u);
    EXPECT_EQ(ask("c", long_bytes), 200u);
    EXPECT_EQ(ask("d", long_bytes), 503u);
    EXPECT_EQ(pool.num_waiting(), 4u);

    const Checked<void> refused = pool.submit("a", long_bytes, [] {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.refusal().headers[0].first, "Retry-After");
}

TEST(TextPoolTest, TheEndDropsWhatWaits) {
    bool ran = false;
    TextPool pool({.long_threads = 1});
    Plug plug(pool);
    ASSERT_TRUE(pool.submit("a", long_bytes, [&] { ran = true; }).ok());

    std::thread stopper([&] { pool.stop(); });
    while (pool.submit("b", short_bytes, [] {}).ok()) std::this_thread::yield();
    plug.open();
    stopper.join();
    EXPECT_FALSE(ran);
}

TEST(TextPoolTest, WorkThatThrowsEndsAlone) {
    TextPool pool({.long_threads = 1});
    ASSERT_TRUE(pool.submit("a", short_bytes, [] { throw std::runtime_error("no memory"); }).ok());

    std::promise<void> ran;
    ASSERT_TRUE(pool.submit("a", short_bytes, [&] { ran.set_value(); }).ok());

    ran.get_future().wait();
}

}  // namespace
}  // namespace moex
