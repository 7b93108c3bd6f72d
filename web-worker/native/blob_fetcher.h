// Downloads blobs on threads of its own, four (and one that is urgent) at a time over kept
// connections; takes up again where a line broke, verifies SHA-256, and keeps blobs in a folder if
// asked to; what it has brought stays in memory up to a budget. Callbacks run on the owner's
// thread, through `post`.
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

    // `memory_bytes`: of blobs that may stay, in pieces of which `told` hears.
    BlobFetcher(HubAddress hub, BlobFolder::Options cache, std::uint64_t memory_bytes, Post post,
                BlobMemory::Told told);
    ~BlobFetcher();
    BlobFetcher(const BlobFetcher&) = delete;

    // What is here already is told by `progress`, all at once, before `done`.
    // An urgent one stands before all that are not, and has a thread that takes no others.
    void fetch(const Sha256& hash, std::uint64_t size_bytes, bool urgent, Progress progress,
               Done done);
    void cancel();  // forgets all; no callback follows
    void serves_model(std::string_view model) { cache_.serves_model(model); }
    // What stays in memory; none where it does not.
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
    void run(bool urgent_only);
    void answer(const Job& job, bool from_network, Result<Bytes> bytes);
    Result<Bytes> one(const Job& job, HttpClient& client, bool& from_network);
    Result<Bytes> from_hub(const Job& job, HttpClient& client);
    Status download(const Job& job, HttpClient& client, Bytes& bytes, std::uint64_t& have);
    bool wanted(const Job& job) const { return job.generation == *generation_; }

    const HubAddress hub_;
    BlobFolder cache_;
    const Post post_;
    BlobMemory memory_;  // the owner's thread's
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Job> jobs_;
    bool stopping_ = false;
    // of the jobs that are wanted: raised by the owner's thread
    std::shared_ptr<std::atomic<std::uint64_t>> generation_ =
        std::make_shared<std::atomic<std::uint64_t>>(0);
    std::vector<std::thread> threads_;
};

}  // namespace moex::native
