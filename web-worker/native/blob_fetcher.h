// Downloads blobs from the hub, verifies their SHA-256, and keeps them in a folder and in memory.
// Four to eight threads download over kept connections, and a further one takes urgent fetches
// only. A thread waits for the hub, then computes a hash: on a machine with many cores more of them
// keep both sides busy. They take no further job while 64 MiB of blobs wait for the owner's event
// loop, so that a slow owner does not fill this machine's memory; each may bring one more. After a
// connection broke, a download resumes at the byte where it broke. The folder is optional; memory
// keeps the newest blobs up to a budget. Callbacks run on the owner's thread, through `post`.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/sha256.h"
#include "web-worker/native/blob_folder.h"
#include "web-worker/native/blob_memory.h"
#include "web-worker/native/http_client.h"

namespace moex::native {

class BlobFetcher {
  public:
    using Progress = std::function<void(std::uint64_t bytes, bool from_network)>;
    using Done = std::function<void(Result<Bytes>)>;
    using Post = std::function<void(std::function<void()>)>;

    // `memory_bytes`: the budget for blobs in memory, which is allocated in pieces. `notify` is
    // called before a piece stores its first blob and before it is freed.
    BlobFetcher(HubAddress hub, BlobFolder::Options cache, std::uint64_t memory_bytes, Post post,
                BlobMemory::Notify notify);
    ~BlobFetcher();
    BlobFetcher(const BlobFetcher&) = delete;

    static constexpr std::uint64_t unread_bytes_max = 64u << 20;
    static std::size_t num_threads();  // without the one for urgent fetches

    // Calls `progress` once, with all bytes of the blob, and then `done` with the blob. An urgent
    // fetch is queued in front of all others, and has a thread that takes only urgent fetches.
    void fetch(const Sha256& hash, std::uint64_t size_bytes, bool urgent, Progress progress,
               Done done);
    // Later downloads come from `hub`; those that run go on.
    void use(HubAddress hub);
    void cancel();  // drops all fetches; their callbacks are not called
    void serves_model(std::string_view model) { cache_.serves_model(model); }
    // Returns the blob from the cache in memory; empty if it is not stored there.
    HeldBlob find(const Sha256& hash) { return memory_.find(hash); }
    std::vector<ByteView> memory_pieces() const { return memory_.pieces(); }

  private:
    struct Job {
        Sha256 hash;
        std::uint64_t size_bytes;
        bool urgent;
        Progress progress;
        Done done;
        std::uint64_t generation;
    };
    // The lock of the queue, and the bytes of blobs that were posted and that the owner has not
    // taken. It outlives this object, because what was posted may run later.
    struct Gate {
        std::mutex mutex;
        std::condition_variable wake;
        std::uint64_t unread_bytes = 0;
    };
    void run(bool urgent_only);
    void answer(const Job& job, bool from_network, Result<Bytes> bytes);
    Result<Bytes> one(const Job& job, HttpClient& client, bool& from_network);
    Result<Bytes> from_hub(const Job& job, HttpClient& client);
    Status download(const Job& job, HttpClient& client, Bytes& bytes, std::uint64_t& have);
    bool wanted(const Job& job) const { return job.generation == *generation_; }

    BlobFolder cache_;
    const Post post_;
    BlobMemory memory_;  // used only on the owner's thread
    const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
    // ---- guarded by the gate's mutex
    std::deque<Job> jobs_;
    HubAddress hub_;
    std::uint64_t hub_number_ = 0;
    bool stopping_ = false;
    // ----
    // Generation number of the jobs that are still wanted. The owner's thread increments it to
    // cancel older jobs.
    std::shared_ptr<std::atomic<std::uint64_t>> generation_ =
        std::make_shared<std::atomic<std::uint64_t>>(0);
    std::vector<std::thread> threads_;
};

}  // namespace moex::native
