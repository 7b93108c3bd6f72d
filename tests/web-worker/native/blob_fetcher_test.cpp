// Tests how a native worker fetches blobs, from a server of this test.
#include "web-worker/native/blob_fetcher.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <set>

#include "protocol/text.h"
#include "tests/web-worker/native/loopback_listener.h"

namespace moex::native {
namespace {

Sha256 hash_of(ByteView bytes) {
    Sha256 hash{};
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
           reinterpret_cast<unsigned char*>(hash.data()));
    return hash;
}
Bytes blob_of(std::size_t number, std::size_t bytes) {
    Bytes blob(bytes);
    for (std::size_t i = 0; i < bytes; ++i) blob[i] = static_cast<std::byte>(i * 7 + number);
    return blob;
}

// Serves blobs by their hashes, to any number of connections.
class BlobServer {
  public:
    BlobServer() {
        acceptor_ = std::thread([this] {
            for (int client = 0; (client = listener_.next()) >= 0;)
                threads_.emplace_back([this, client] {
                    serve(client);
                    close(client);
                });
        });
    }
    ~BlobServer() {
        listener_.stop();
        acceptor_.join();
        for (std::thread& thread : threads_) thread.join();
    }
    // Call this before the first fetch.
    Sha256 add(Bytes blob) {
        const Sha256 hash = hash_of(blob);
        blobs_[to_hex(hash)] = std::move(blob);
        return hash;
    }
    // Waits until the blob was sent.
    bool wait_for(const Sha256& hash) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(30),
                                 [&] { return served_.contains(to_hex(hash)); });
    }
    std::size_t num_served() {
        const std::lock_guard lock(mutex_);
        return served_.size();
    }
    void damage(const Sha256& hash) { blobs_[to_hex(hash)][0] ^= std::byte{1}; }
    HubAddress address() const { return listener_.address(); }

  private:
    void serve(int client) {
        for (;;) {
            std::string request;
            char byte = 0;
            while (!request.ends_with("\r\n\r\n")) {
                if (recv(client, &byte, 1, 0) != 1) return;
                request += byte;
            }
            const std::size_t name = request.find("/weights/") + 9;
            const std::string hash = request.substr(name, 64);
            const Bytes& blob = blobs_.at(hash);
            const std::string head = text("HTTP/1.1 200 OK\r\nContent-Length: ", blob.size(),
                                          "\r\n\r\n");
            (void)!send(client, head.data(), head.size(), MSG_NOSIGNAL);
            for (std::size_t at = 0; at < blob.size();) {
                const ssize_t sent = send(client, blob.data() + at, blob.size() - at, MSG_NOSIGNAL);
                if (sent <= 0) return;
                at += static_cast<std::size_t>(sent);
            }
            {
                const std::lock_guard lock(mutex_);
                served_.insert(hash);
            }
            changed_.notify_all();
        }
    }

    LoopbackListener listener_{64};
    std::map<std::string, Bytes> blobs_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::set<std::string> served_;
    std::vector<std::thread> threads_;
    std::thread acceptor_;
};

// The owner's event loop: it runs what was posted when the test says so.
class Loop {
  public:
    void post(std::function<void()> function) {
        {
            const std::lock_guard lock(mutex_);
            posted_.push_back(std::move(function));
        }
        changed_.notify_all();
    }
    // Waits until at least `count` functions are posted. Returns how many are.
    std::size_t wait_for(std::size_t count) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::seconds(30), [&] { return posted_.size() >= count; });
        return posted_.size();
    }
    void run_one() {
        std::unique_lock lock(mutex_);
        const auto function = std::move(posted_.front());
        posted_.pop_front();
        lock.unlock();
        function();
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> posted_;
};

struct Fetching {
    BlobServer server;
    Loop loop;
    std::optional<BlobFetcher> fetcher;
    std::map<Sha256, Result<Bytes>> done;

    void begin() {
        fetcher.emplace(
            server.address(), BlobFolder::Options{}, 0,
            [this](std::function<void()> function) { loop.post(std::move(function)); },
            BlobMemory::Notify{});
    }
    void fetch(const Sha256& hash, std::uint64_t size_bytes, bool urgent = false) {
        fetcher->fetch(
            hash, size_bytes, urgent, [](std::uint64_t, bool) {},
            [this, hash](Result<Bytes> blob) { done.emplace(hash, std::move(blob)); });
    }
    ~Fetching() { fetcher.reset(); }
};

TEST(BlobFetcherTest, BlobsArriveWholeAndADamagedOneIsRefused) {
    Fetching test;
    std::map<Sha256, Bytes> blobs;
    for (std::size_t i = 0; i < 20; ++i) {
        Bytes blob = blob_of(i, 100'000 + 7919 * i);
        const Sha256 hash = test.server.add(blob);
        blobs[hash] = std::move(blob);
    }
    const Sha256 damaged = blobs.begin()->first;
    test.server.damage(damaged);
    test.begin();
    for (const auto& [hash, blob] : blobs) test.fetch(hash, blob.size());
    while (test.done.size() < blobs.size() && test.loop.wait_for(1) > 0) test.loop.run_one();
    ASSERT_EQ(test.done.size(), blobs.size());
    for (const auto& [hash, blob] : blobs) {
        const Result<Bytes>& got = test.done.at(hash);
        if (hash == damaged)
            EXPECT_EQ(got.error().code, ErrorCode::hash_mismatch);
        else
            EXPECT_TRUE(got.ok() && *got == blob);
    }
}

// The owner takes nothing for a while. Urgent blobs are fetched meanwhile, and the others wait.
TEST(BlobFetcherTest, BlobsThatTheOwnerHasNotTakenAreBounded) {
    constexpr std::size_t blob_bytes = 4u << 20, num_blobs = 60, num_urgent = 20,
                          at_once = BlobFetcher::unread_bytes_max / blob_bytes;
    Fetching test;
    std::vector<Sha256> hashes;
    for (std::size_t i = 0; i < num_blobs + num_urgent; ++i)
        hashes.push_back(test.server.add(blob_of(i, blob_bytes)));
    test.begin();
    for (std::size_t i = 0; i < num_blobs; ++i) test.fetch(hashes[i], blob_bytes);
    ASSERT_GE(test.loop.wait_for(at_once), at_once);

    // In the time of so many urgent fetches the other threads would fetch all that is left.
    for (std::size_t i = num_blobs; i < hashes.size(); ++i) {
        test.fetch(hashes[i], blob_bytes, true);
        ASSERT_TRUE(test.server.wait_for(hashes[i])) << "an urgent blob waits";
    }
    EXPECT_LE(test.server.num_served(), at_once + num_urgent + BlobFetcher::num_threads());

    for (std::size_t i = 0; i < hashes.size(); ++i) {
        ASSERT_GE(test.loop.wait_for(1), 1u) << "the fetches stopped";
        test.loop.run_one();
    }
    EXPECT_EQ(test.done.size(), hashes.size());
}

}  // namespace
}  // namespace moex::native
