// Downloads blobs on a thread of its own, one after the other over a
// kept connection; verifies SHA-256; keeps them in a folder if asked to.
// Callbacks run on the owner's thread, through `post`.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "protocol/messages.h"
#include "web-worker/native/hub_url.h"

namespace moex::native {

struct FetcherOptions {
    HubUrl hub;
    std::filesystem::path cache;  // empty: none
    std::string ca_file;          // further certificate to trust
    bool insecure_tls = false;
};

class BlobFetcher {
  public:
    using Progress = std::function<void(std::uint64_t bytes, bool from_network)>;
    using Done = std::function<void(Result<Bytes>)>;

    BlobFetcher(FetcherOptions options, std::function<void(std::function<void()>)> post);
    ~BlobFetcher();
    void fetch(const Sha256& hash, std::uint64_t size_bytes, Progress progress, Done done);
    void cancel();  // forgets all; no callback follows

  private:
    struct Job {
        Sha256 hash;
        std::uint64_t size_bytes;
        Progress progress;
        Done done;
        std::uint64_t generation;
    };
    struct Connection;
    void run();
    Result<Bytes> one(const Job& job, bool& from_network);
    Result<Bytes> download(const Job& job);

    FetcherOptions options_;
    std::function<void(std::function<void()>)> post_;
    std::unique_ptr<Connection> connection_;  // of the thread
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Job> jobs_;
    // of the owner's thread
    std::shared_ptr<std::uint64_t> generation_ = std::make_shared<std::uint64_t>(0);
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace moex::native
