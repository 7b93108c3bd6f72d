// Downloader: fetches the files of a checkpoint over several connections at once and checks each
// file's hash before the file gets its name.
//
// One connection rarely fills a link, and one that breaks after 60 GB must not cost 60 GB. Files
// are therefore split into ranges. Each connection takes the first range that nobody fetches, in
// the order of the files, so that files become complete one after the other. If a transfer breaks,
// its range continues after the last byte received. The address to which the endpoint redirected is
// used again for the other ranges of the file until that address refuses. A wrong hash discards the
// whole file, because the wrong byte is unknown; the file is then fetched anew, at most twice.
// Limits: a server that ignores `Range` is read by one connection per file.
//
// Owner: run() owns all state under one lock; stop() may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hub/fetch/part_file.h"

namespace moex {

struct DownloadOptions {
    WebAddress endpoint;
    std::string token;
    WebClientOptions http;
    std::string repository;  // "OWNER/NAME"
    std::string revision;    // commit hash if the endpoint names one, else the name asked for
    unsigned num_connections = 6;
    unsigned failures_max = 6;  // limit of attempts in a row that fetch almost no bytes of a range
};

struct DownloadProgress {
    std::uint64_t done_bytes = 0, total_bytes = 0;
    std::size_t num_finished = 0, num_files = 0;
};

// The result of one attempt to fetch a range.
struct RangeAttempt {
    std::optional<Error> error;  // empty: no error, the range is complete
    bool may_retry = true;
    bool is_whole_only = false;   // the server ignored `Range` and sent the whole file
    std::uint64_t wait_s = 0;     // seconds to wait, from the header `Retry-After`
    std::uint64_t num_bytes = 0;  // bytes that this attempt wrote to the part file
};

class Downloader {
  public:
    Downloader(DownloadOptions options, std::vector<std::unique_ptr<PartFile>> parts);

    // Fetches all files. `show` is called about ten times a second, and `save` about once a second
    // and at the end, with the parts that are not finished and the files that are; both on the
    // calling thread. Returns the first error that no retry mends, or `cancelled` after stop().
    using Show = std::function<void(const DownloadProgress&)>;
    using Save = std::function<Status(const std::vector<const PartFile*>&,
                                      const std::vector<FinishedFile>&)>;
    Status run(const Show& show, const Save& save);
    void stop();

    const std::vector<FinishedFile>& finished() const { return finished_; }

  private:
    struct File {
        std::unique_ptr<PartFile> part;
        // the address behind the endpoint's redirect; empty: ask the endpoint
        std::optional<WebAddress> direct;
        unsigned num_restarts = 0;
        bool sends_whole_only = false, is_checking = false, is_finished = false;
    };
    struct Claim {
        File* file = nullptr;
        FileRange* range = nullptr;  // nullptr: all bytes are present, check the hash
    };
    void work();
    // Waits for the next range or check and returns it; returns nullopt at the end.
    std::optional<Claim> next_claim();
    std::optional<Claim> find_claim(TimePoint now, TimePoint& wake_at);
    RangeAttempt fetch(Endpoint& endpoint, File& file, FileRange& range);
    void take_result(File& file, FileRange& range, const RangeAttempt& attempt);
    void check(File& file);
    void fail(Error error);
    DownloadProgress progress() const;
    Status save_state(const Save& save);

    const DownloadOptions options_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<File> files_;
    std::vector<FinishedFile> finished_;
    std::optional<Error> error_;
    TimePoint hold_until_{};  // no request starts earlier: the endpoint asked to wait
    std::atomic<bool> stop_ = false;
    std::size_t num_working_ = 0;  // download threads that have not ended yet
};

}  // namespace moex
