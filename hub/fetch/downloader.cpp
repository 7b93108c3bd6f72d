#include "hub/fetch/downloader.h"

#include <algorithm>
#include <charconv>
#include <thread>

#include "protocol/text.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

constexpr unsigned restarts_max = 2;
// An attempt that brings this much counts as progress.
constexpr std::uint64_t progress_bytes = 256u << 10;

// Content-Range of an answer 206: "bytes 100-199/5000".
struct ContentRange {
    std::uint64_t first = 0, last = 0, size = 0;
};

std::optional<ContentRange> parse_content_range(std::string_view value) {
    if (!value.starts_with("bytes ")) return std::nullopt;
    value.remove_prefix(6);
    ContentRange range;
    const auto take = [&value](std::uint64_t& number, char behind) {
        const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(),
                                                    number);
        if (failure != std::errc()) return false;
        value.remove_prefix(static_cast<std::size_t>(end - value.data()));
        if (behind == '\0') return value.empty();
        if (value.empty() || value.front() != behind) return false;
        value.remove_prefix(1);
        return true;
    };
    if (!take(range.first, '-') || !take(range.last, '/') || !take(range.size, '\0'))
        return std::nullopt;
    return range;
}

// The wait before the next attempt: it doubles with each failure, up to 20 s.
Duration backoff(unsigned num_failures) {
    const unsigned doublings = std::min(num_failures, 7u);
    return std::min<Duration>(std::chrono::milliseconds(100u << doublings), 20s);
}

// Checks the answer to one ranged request and writes its bytes to the part file.
class RangeReceiver {
  public:
    // `on_written` gets the number of bytes after each write.
    RangeReceiver(PartFile& part, const FileRange& range,
                  std::function<void(std::uint64_t)> on_written)
        : part_(part),
          on_written_(std::move(on_written)),
          at_(range.begin + range.done),
          end_(range.end),
          is_only_range_(part.ranges.size() == 1) {}

    // Returns the missing bytes as the value of `Range`, e.g. "100-199".
    std::string wanted() const { return text(at_, "-", end_ - 1); }
    const RangeAttempt& attempt() const { return attempt_; }
    std::uint64_t missing_bytes() const { return end_ - at_; }

    bool take_head(const WebHead& head) {
        const std::uint64_t size = part_.file().size_bytes;
        if (head.status == 200) return take_whole_head(head.header("content-length"), size);
        if (head.status != 206) return false;

        const std::string_view value = head.header("content-range");
        const auto sent = parse_content_range(value);
        if (sent && sent->first == at_ && sent->last < end_ && sent->last >= sent->first &&
            sent->size == size)
            return true;
        return refuse(text("sends the range \"", value.substr(0, 80), "\", wanted bytes ", wanted(),
                           "/", size));
    }

    bool take_body(ByteView bytes) {
        const auto skipped = std::min<std::uint64_t>(skip_, bytes.size());
        skip_ -= skipped;
        bytes = bytes.subspan(static_cast<std::size_t>(skipped));
        if (bytes.size() > missing_bytes()) return refuse("sends more bytes than were asked for");
        if (const Status written = part_.write(at_, bytes); !written.ok()) {
            attempt_.may_retry = false;
            attempt_.error = written.error();
            return false;
        }
        at_ += bytes.size();
        attempt_.num_bytes += bytes.size();
        on_written_(bytes.size());
        return true;
    }

  private:
    // A server that ignores `Range` sends the file from its beginning.
    bool take_whole_head(std::string_view length, std::uint64_t size) {
        if (!length.empty() && length != std::to_string(size))
            return refuse(text("announces ", length, " bytes, the repository lists ", size));
        attempt_.is_whole_only = !is_only_range_;
        if (!is_only_range_) return refuse("ignores Range");
        skip_ = at_;
        return true;
    }
    bool refuse(std::string_view sentence) {
        attempt_.error = Error{ErrorCode::unavailable,
                               text(part_.file().path, ": the server ", sentence)};
        return false;
    }

    PartFile& part_;
    const std::function<void(std::uint64_t)> on_written_;
    std::uint64_t at_, skip_ = 0;
    const std::uint64_t end_;
    const bool is_only_range_;
    RangeAttempt attempt_;
};

}  // namespace

Downloader::Downloader(DownloadOptions options, std::vector<std::unique_ptr<PartFile>> parts)
    : options_(std::move(options)) {
    for (auto& part : parts) {
        files_.emplace_back();
        files_.back().part = std::move(part);
    }
}

void Downloader::stop() {
    stop_ = true;
    // The lock orders the switch before the next wait of a worker.
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
}

void Downloader::fail(Error error) {
    if (!error_) error_ = std::move(error);
    stop_ = true;
    changed_.notify_all();
}

DownloadProgress Downloader::progress() const {
    DownloadProgress out{.num_finished = finished_.size(), .num_files = files_.size()};
    for (const File& file : files_) {
        out.total_bytes += file.part->file().size_bytes;
        out.done_bytes += file.part->done_bytes();
    }
    return out;
}

Status Downloader::save_state(const Save& save) {
    std::vector<const PartFile*> open;
    for (const File& file : files_)
        if (!file.is_finished) open.push_back(file.part.get());
    return save(open, finished_);
}

Status Downloader::run(const Show& show, const Save& save) {
    std::vector<std::thread> threads;
    num_working_ = options_.num_connections;
    for (unsigned i = 0; i < options_.num_connections; ++i)
        threads.emplace_back([this] { work(); });

    Status saved;
    {
        std::unique_lock lock(mutex_);
        TimePoint saved_at = now_steady();
        while (num_working_ > 0) {
            changed_.wait_for(lock, 100ms);
            show(progress());
            if (now_steady() - saved_at < 1s) continue;

            saved_at = now_steady();
            if (saved = save_state(save); !saved.ok()) fail(saved.error());
        }
    }
    for (std::thread& thread : threads) thread.join();

    for (File& file : files_)
        if (!file.is_finished && file.part->done_bytes() == 0) file.part->remove();
    show(progress());
    if (const Status last = save_state(save); saved.ok() && !last.ok()) saved = last;
    if (error_) return *error_;
    if (!saved.ok()) return saved.error();
    if (finished_.size() < files_.size()) return Error{ErrorCode::cancelled, "interrupted"};
    return {};
}

void Downloader::work() {
    name_thread("download");
    WebClientOptions http = options_.http;
    http.stop = &stop_;
    Endpoint endpoint(options_.endpoint, options_.token, http);

    while (const auto claim = next_claim()) {
        if (claim->range == nullptr) {
            check(*claim->file);
            continue;
        }
        const RangeAttempt attempt = fetch(endpoint, *claim->file, *claim->range);
        const std::lock_guard lock(mutex_);
        take_result(*claim->file, *claim->range, attempt);
    }

    const std::lock_guard lock(mutex_);
    --num_working_;
    changed_.notify_all();
}

std::optional<Downloader::Claim> Downloader::next_claim() {
    std::unique_lock lock(mutex_);
    while (!stop_ && finished_.size() < files_.size()) {
        const TimePoint now = now_steady();
        TimePoint wake_at = now + 1h;
        if (auto claim = find_claim(now, wake_at)) return claim;
        changed_.wait_until(lock, wake_at);
    }
    return std::nullopt;
}

// Finds the first file that is to be checked, or the first range that no thread fetches. `wake_at`
// becomes the earliest time at which a range that waits may be tried again.
std::optional<Downloader::Claim> Downloader::find_claim(TimePoint now, TimePoint& wake_at) {
    for (File& file : files_) {
        if (file.is_finished || file.is_checking) continue;
        auto& ranges = file.part->ranges;
        const bool is_busy = std::any_of(ranges.begin(), ranges.end(),
                                         [](const FileRange& range) { return range.is_busy; });
        if (!is_busy && file.part->is_whole()) {
            file.is_checking = true;
            return Claim{&file, nullptr};
        }

        if (file.sends_whole_only && is_busy) continue;
        if (file.sends_whole_only) file.part->join_ranges();
        for (FileRange& range : ranges) {
            if (range.is_busy || range.is_whole()) continue;
            const TimePoint not_before = std::max(range.not_before, hold_until_);
            if (not_before > now) {
                wake_at = std::min(wake_at, not_before);
                continue;
            }
            if (const Status opened = file.part->open(); !opened.ok()) {
                fail(opened.error());
                return std::nullopt;
            }
            range.is_busy = true;
            return Claim{&file, &range};
        }
    }
    return std::nullopt;
}

RangeAttempt Downloader::fetch(Endpoint& endpoint, File& file, FileRange& range) {
    PartFile& part = *file.part;
    std::optional<WebAddress> direct;
    std::optional<RangeReceiver> receiver;
    {
        const std::lock_guard lock(mutex_);
        direct = file.direct;
        receiver.emplace(part, range, [this, &range](std::uint64_t num_bytes) {
            const std::lock_guard inner(mutex_);
            range.done += num_bytes;
        });
    }
    const auto on_head = [&](const WebHead& head) { return receiver->take_head(head); };
    const auto on_body = [&](ByteView bytes) { return receiver->take_body(bytes); };
    const std::string& path = part.file().path;
    const auto answer = direct ? endpoint.get(*direct, receiver->wanted(), on_head, on_body)
                               : endpoint.get(
                                     resolve_path(options_.repository, options_.revision, path),
                                     receiver->wanted(), on_head, on_body);

    RangeAttempt attempt = receiver->attempt();
    if (!answer.ok()) {
        attempt.error = answer.error();
        attempt.may_retry = answer.error().code == ErrorCode::unavailable ||
                            answer.error().code == ErrorCode::timeout;
        return attempt;
    }
    if (attempt.error) return attempt;

    const int status = answer->head.status;
    const bool is_elsewhere = answer->from.origin != endpoint.address().origin;
    if (status != 200 && status != 206) {
        attempt.error = error_of(answer->head, text(path, ": ", answer->from.origin));
        attempt.wait_s = endpoint.wait_s();
        // An address behind a redirect may have expired; the endpoint then gives another one.
        attempt.may_retry = is_elsewhere || status == 416 ||
                            attempt.error->code == ErrorCode::unavailable;
    } else if (receiver->missing_bytes() > 0) {
        attempt.error = Error{
            ErrorCode::unavailable,
            text(path, ": the server ended ", receiver->missing_bytes(), " bytes too early")};
    } else if (is_elsewhere) {
        const std::lock_guard lock(mutex_);
        file.direct = answer->from;
    }
    return attempt;
}

void Downloader::take_result(File& file, FileRange& range, const RangeAttempt& attempt) {
    range.is_busy = false;
    changed_.notify_all();
    if (!attempt.error || stop_) return;
    if (attempt.is_whole_only) {
        file.sends_whole_only = true;
        return;
    }

    file.direct.reset();
    range.num_failures = attempt.num_bytes >= progress_bytes ? 1 : range.num_failures + 1;
    if (!attempt.may_retry) return fail(*attempt.error);
    if (range.num_failures >= options_.failures_max)
        return fail({attempt.error->code, text(attempt.error->message, " (", range.num_failures,
                                               " attempts in a row)")});
    if (attempt.wait_s > retry_after_s_max)
        return fail({ErrorCode::unavailable, text(attempt.error->message, "; it asks to wait ",
                                                  attempt.wait_s, " s before the next request")});

    const TimePoint now = now_steady();
    range.not_before = now + backoff(range.num_failures - 1);
    if (attempt.wait_s > 0)
        hold_until_ = std::max(hold_until_, now + std::chrono::seconds(attempt.wait_s));
}

void Downloader::check(File& file) {
    Status opened;  // an empty file has no range that would have opened it
    Result<FinishedFile> finished = Error{ErrorCode::internal, ""};
    if (opened = file.part->open(); opened.ok()) finished = file.part->finish();

    const std::lock_guard lock(mutex_);
    file.is_checking = false;
    changed_.notify_all();
    if (!opened.ok()) return fail(opened.error());
    if (finished.ok()) {
        file.is_finished = true;
        finished_.push_back(*std::move(finished));
        return;
    }
    if (finished.error().code != ErrorCode::hash_mismatch) return fail(finished.error());

    file.part->restart();
    file.direct.reset();
    if (file.num_restarts++ < restarts_max) return;
    file.part->remove();
    fail({ErrorCode::hash_mismatch, text(finished.error().message, "; it was fetched ",
                                         file.num_restarts, " times, and its bytes are refused")});
}

}  // namespace moex
