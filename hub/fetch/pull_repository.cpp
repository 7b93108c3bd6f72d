#include "hub/fetch/pull_repository.h"

#include <algorithm>
#include <set>

#include "hub/base/sha256.h"
#include "hub/fetch/pull_state.h"
#include "protocol/text.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

std::string gigabytes(std::uint64_t bytes) {
    char out[32];
    std::snprintf(out, sizeof out, "%.2f GB", static_cast<double>(bytes) / 1e9);
    return out;
}

// Returns true for an error that the same request may not meet again. Text that is no JSON is one
// of them, because proxies answer with pages of their own.
bool may_pass(ErrorCode code) {
    return code == ErrorCode::unavailable || code == ErrorCode::timeout ||
           code == ErrorCode::hash_mismatch || code == ErrorCode::bad_json;
}

// Keeps files that are in the folder already. Returns those that must be fetched.
Result<std::vector<RepositoryFile>> split_kept(const fs::path& folder,
                                               const std::vector<RepositoryFile>& chosen,
                                               const PullRecord& before, PullRecord& record) {
    std::vector<RepositoryFile> missing;
    for (const RepositoryFile& file : chosen) {
        const FinishedFile* const known = before.find(file.path);
        const bool is_ours = known != nullptr && is_unchanged(folder, *known);
        if (is_ours && known->size_bytes == file.size_bytes && !file.sha256.empty() &&
            known->sha256 == file.sha256) {
            record.files.push_back(*known);
            continue;
        }

        MOEX_TRY(make_folders_of(folder, file.path));
        auto checked = check_file(folder / file.path, file);
        const bool has_hash = !file.sha256.empty() || !file.git_sha1.empty();
        const bool is_there = checked.ok() || checked.error().code == ErrorCode::hash_mismatch;
        if (!is_there && checked.error().code != ErrorCode::not_found) return checked.error();
        if (checked.ok() && has_hash) {
            record.files.push_back(*std::move(checked));
            continue;
        }
        // A file that an earlier pull had put here is replaced; another file is a person's.
        if (is_there && !is_ours)
            return Error{ErrorCode::bad_file,
                         text((folder / file.path).string(),
                              " is there already and is not the repository's file (",
                              checked.ok() ? "no hash is listed" : checked.error().message,
                              "); move it away")};
        missing.push_back(file);
    }
    return missing;
}

// Asks for the disk space before anything is fetched.
Status check_space(const fs::path& folder, std::uint64_t fetch_bytes, std::uint64_t pack_bytes) {
    std::error_code failure;
    const fs::space_info space = fs::space(folder, failure);
    if (failure) return Error{ErrorCode::io_error, text(folder.string(), ": ", failure.message())};
    constexpr std::uint64_t reserve = 16u << 20;
    const std::uint64_t wanted = fetch_bytes + pack_bytes + (fetch_bytes > 0 ? reserve : 0);
    if (space.available >= wanted) return {};
    return Error{ErrorCode::no_space,
                 text(folder.string(), ": ", gigabytes(fetch_bytes), " are to be fetched",
                      pack_bytes > 0 ? text(" and about ", gigabytes(pack_bytes), " packed") : "",
                      ", and the disk has ", gigabytes(space.available), " free")};
}

// Removes the state of a failed pull if nothing in it could be resumed, and the folder if it is
// empty.
void remove_empty_state(const fs::path& folder, PullLock& lock) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder / pull_state_folder, ignored))
        if (entry.path().extension() == ".part") return;
    (void)lock.remove();
    fs::remove(folder, ignored);  // fails if the folder has files
}

// Removes parts of files that are no longer wanted.
void remove_strange_parts(const fs::path& folder,
                          const std::vector<std::unique_ptr<PartFile>>& parts) {
    std::set<std::string> wanted{"lock", "state.json"};
    for (const auto& part : parts)
        if (part->done_bytes() > 0) wanted.insert(part->part_name());
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder / pull_state_folder, ignored))
        if (!wanted.contains(entry.path().filename().string())) fs::remove(entry.path(), ignored);
}

}  // namespace

Pull::Pull(PullOptions options)
    : options_([&] {
          options.http.stop = &stop_;
          return std::move(options);
      }()),
      endpoint_(options_.endpoint, options_.token, options_.http) {}
Pull::~Pull() = default;

template <class Ask>
auto Pull::with_retries(const Ask& ask) {
    constexpr unsigned attempts_max = 6;
    for (unsigned attempt = 1;; ++attempt) {
        auto result = ask();
        if (result.ok() || attempt == attempts_max || !may_pass(result.error().code)) return result;

        // A server that names a time is obeyed, unless a person would rather try again later.
        if (endpoint_.wait_s() > retry_after_s_max) return result;
        const Duration wait = std::max<Duration>(std::chrono::milliseconds(50u << attempt),
                                                 std::chrono::seconds(endpoint_.wait_s()));
        std::unique_lock lock(mutex_);
        if (stopped_.wait_for(lock, wait, [this] { return stop_.load(); })) return result;
    }
}

void Pull::stop() {
    stop_ = true;
    const std::lock_guard lock(mutex_);
    stopped_.notify_all();
    if (downloader_ != nullptr) downloader_->stop();
}

Result<std::vector<RepositoryFile>> Pull::choose_at(const std::string& revision) {
    const std::string& name = options_.repository.name;
    MOEX_ASSIGN(files, with_retries([&] { return list_repository(endpoint_, name, revision); }));
    std::string index;
    const auto listed = std::find_if(files.begin(), files.end(), [](const RepositoryFile& file) {
        return file.path == shard_index_name;
    });
    if (options_.file.empty() && listed != files.end()) {
        MOEX_ASSIGN(content, with_retries([&]() -> Result<std::string> {
                        MOEX_ASSIGN(body,
                                    endpoint_.get_text(resolve_path(name, revision, listed->path),
                                                       shard_index_bytes_max));
                        MOEX_TRY(check_bytes(as_byte_view(body), *listed));
                        return body;
                    }));
        index = std::move(content);
    }
    return choose_files(files, index, options_.file, name);
}

// Chooses the files of the revision's commit, so that a push during the pull changes nothing.
Result<std::vector<RepositoryFile>> Pull::choose(PullReport& report) {
    const std::string &name = options_.repository.name, revision = options_.repository.revision;
    MOEX_ASSIGN(chosen, choose_at(revision));
    const auto smallest = std::min_element(chosen.begin(), chosen.end(),
                                           [](const RepositoryFile& a, const RepositoryFile& b) {
                                               return a.size_bytes < b.size_bytes;
                                           });
    MOEX_ASSIGN(answer, with_retries([&]() -> Result<Endpoint::Answer> {
                    MOEX_ASSIGN(got, endpoint_.get(
                                         resolve_path(name, revision, smallest->path), "",
                                         [](const WebHead&) { return false; },
                                         [](ByteView) { return false; }));
                    if (got.head.status >= 400)
                        return error_of(got.head, text(smallest->path, ": ", got.from.origin));
                    return got;
                }));

    const std::string& commit = answer.commit;
    const bool is_commit = commit.size() == 40 &&
                           commit.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (is_commit && commit != revision) {
        MOEX_ASSIGN(at_commit, choose_at(commit));
        chosen = std::move(at_commit);
    }

    if (is_commit) report.commit = commit_ = commit;
    for (const RepositoryFile& file : chosen) {
        report.size_bytes += file.size_bytes;
        if (file.sha256.empty() && file.git_sha1.empty()) report.unchecked.push_back(file.path);
    }
    report.num_files = chosen.size();
    return chosen;
}

Result<Bytes> Pull::read_start(const RepositoryFile& file, std::uint64_t num_bytes) {
    const std::string path = resolve_path(options_.repository.name,
                                          commit_.empty() ? options_.repository.revision : commit_,
                                          file.path);
    return with_retries([&]() -> Result<Bytes> {
        Bytes start;
        MOEX_ASSIGN(got, endpoint_.get(
                             path, text("0-", num_bytes - 1),
                             [](const WebHead& head) { return head.status / 100 == 2; },
                             [&](ByteView bytes) {
                                 const std::size_t missing = num_bytes - start.size();
                                 bytes = bytes.first(std::min(bytes.size(), missing));
                                 start.insert(start.end(), bytes.begin(), bytes.end());
                                 return start.size() < num_bytes;
                             }));
        if (got.head.status / 100 != 2)
            return error_of(got.head, text(file.path, ": ", got.from.origin));
        if (start.size() == num_bytes) return start;
        return Error{ErrorCode::unavailable, text(file.path, ": ", got.from.origin, " sent ",
                                                  start.size(), " of ", num_bytes, " bytes")};
    });
}

Result<PullReport> Pull::run(const OnPlan& on_plan, const Downloader::Show& show) {
    PullReport report;
    MOEX_ASSIGN(chosen, choose(report));
    MOEX_TRY(fetch(chosen, report, on_plan, show));
    return report;
}

Status Pull::fetch(const std::vector<RepositoryFile>& chosen, PullReport& report,
                   const OnPlan& on_plan, const Downloader::Show& show) {
    const fs::path& folder = options_.folder;
    MOEX_ASSIGN(lock, PullLock::take(folder));
    const Status fetched = fetch_locked(chosen, report, on_plan, show);
    if (!fetched.ok()) {
        remove_empty_state(folder, lock);
        return fetched.error();
    }
    return lock.remove();
}

Status Pull::fetch_locked(const std::vector<RepositoryFile>& chosen, PullReport& report,
                          const OnPlan& on_plan, const Downloader::Show& show) {
    const fs::path& folder = options_.folder;
    PullRecord record{.endpoint = options_.endpoint.url,
                      .repository = options_.repository.name,
                      .revision = options_.repository.revision,
                      .commit = report.commit};
    MOEX_ASSIGN(missing, split_kept(folder, chosen, read_pull_record(folder), record));
    report.num_kept = record.files.size();

    const nlohmann::json saved = read_parts(folder);
    std::vector<std::unique_ptr<PartFile>> parts;
    std::uint64_t fetch_bytes = 0, disk_bytes = 0;
    for (const RepositoryFile& file : missing) {
        parts.push_back(std::make_unique<PartFile>(folder, file, options_.range_bytes));
        if (saved.contains(file.path)) parts.back()->resume(saved[file.path]);
        fetch_bytes += file.size_bytes - parts.back()->done_bytes();
    }
    remove_strange_parts(folder, parts);
    for (const auto& part : parts) disk_bytes += part->file().size_bytes - part->allocated_bytes();
    MOEX_TRY(check_space(
        folder, disk_bytes,
        static_cast<std::uint64_t>(options_.pack_share * static_cast<double>(report.size_bytes))));
    on_plan(report.num_files, report.size_bytes, fetch_bytes);
    report.fetched_bytes = fetch_bytes;

    Downloader downloader(
        {.endpoint = options_.endpoint,
         .token = options_.token,
         .http = options_.http,
         .repository = options_.repository.name,
         .revision = report.commit.empty() ? options_.repository.revision : report.commit},
        std::move(parts));
    const auto save = [&, kept = record.files](
                          const std::vector<const PartFile*>& open,
                          const std::vector<FinishedFile>& finished) -> Status {
        record.files = kept;
        record.files.insert(record.files.end(), finished.begin(), finished.end());
        MOEX_TRY(write_parts(folder, open));
        return write_pull_record(folder, record);
    };
    {
        const std::lock_guard guard(mutex_);
        downloader_ = &downloader;
    }
    if (stop_) downloader.stop();
    const Status fetched = downloader.run(show, save);
    {
        const std::lock_guard guard(mutex_);
        downloader_ = nullptr;
    }
    MOEX_TRY(fetched);

    record.is_complete = true;
    return write_pull_record(folder, record);
}

}  // namespace moex
