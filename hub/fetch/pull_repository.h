// pull_repository: downloads a checkpoint from an endpoint of Hugging Face's shape into a folder.
// Every file is checked before it gets its name. An interrupted pull keeps the bytes it has, and
// the same call continues from there. A call after a finished pull changes no file and no record.
//   FOLDER/config.json, model-00001-of-00002.safetensors, ...   finished files
//   FOLDER/moex-pull.json         the record: repository, commit, and hash and size of each file
//   FOLDER/.pull/                 during a pull: lock, state.json and the parts of files
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "hub/fetch/downloader.h"

namespace moex {

struct PullOptions {
    WebAddress endpoint;
    std::string token;  // HF_TOKEN; empty: none
    WebClientOptions http;
    RepositoryName repository;
    std::string file;  // --file: one GGUF or safetensors file; empty: the whole checkpoint
    std::filesystem::path folder;
    std::uint64_t range_bytes = 64u << 20;
    // Free disk space that `--pack` needs besides the checkpoint, as a share of the weights' bytes.
    double pack_share = 0;
};

struct PullReport {
    std::string commit;  // commit of the checkpoint, 40 hexadecimal digits; empty: not named
    std::size_t num_files = 0, num_kept = 0;  // all files; files found complete at the start
    std::uint64_t size_bytes = 0, fetched_bytes = 0;
    // Files for which the endpoint lists no hash, so that their size alone was checked.
    std::vector<std::string> unchecked;
};

// Downloads one repository. stop() may be called from any thread.
class Pull {
  public:
    explicit Pull(PullOptions options);
    ~Pull();

    // The callback gets the size of the chosen files before the first file is fetched.
    using OnPlan = std::function<void(std::size_t num_files, std::uint64_t size_bytes,
                                      std::uint64_t fetch_bytes)>;
    Result<PullReport> run(const OnPlan& on_plan, const Downloader::Show& show);
    void stop();

    // The steps of run(), for a caller that fetches the files one after the other. choose() asks
    // for the list of files; fetch() fetches some of them into the folder; read_start() returns the
    // first bytes of a file, which no hash has confirmed. The folder is locked during fetch().
    Result<std::vector<RepositoryFile>> choose(PullReport& report);
    Status fetch(const std::vector<RepositoryFile>& chosen, PullReport& report,
                 const OnPlan& on_plan, const Downloader::Show& show);
    Result<Bytes> read_start(const RepositoryFile& file, std::uint64_t num_bytes);

  private:
    // Calls `ask` until it succeeds, fails for good, or has failed six times with errors that a
    // retry may mend. `endpoint` says how long its server asked to wait (Endpoint::wait_s()).
    template <class Ask>
    auto with_retries(const Ask& ask);
    Result<std::vector<RepositoryFile>> choose_at(const std::string& revision);
    Status fetch_locked(const std::vector<RepositoryFile>& chosen, PullReport& report,
                        const OnPlan& on_plan, const Downloader::Show& show);

    PullOptions options_;
    Endpoint endpoint_;
    std::string commit_;  // commit of the chosen files; empty: not named
    std::atomic<bool> stop_ = false;
    std::mutex mutex_;
    std::condition_variable stopped_;
    Downloader* downloader_ = nullptr;  // set while files are fetched; for stop()
};

}  // namespace moex
