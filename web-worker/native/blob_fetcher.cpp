#include "web-worker/native/blob_fetcher.h"

#include <openssl/sha.h>

#include <algorithm>
#include <optional>

#include "protocol/thread_name.h"

namespace moex::native {
namespace {

constexpr int attempts_max = 4;  // attempts in a row that brought no new byte
constexpr auto attempt_delay = std::chrono::milliseconds(200);

// Checks a SHA-256 with OpenSSL directly: hub/base/sha256.h belongs to the hub, and protocol/ uses
// no library.
bool matches(ByteView bytes, const Sha256& hash) {
    Sha256 found{};
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
           reinterpret_cast<unsigned char*>(found.data()));
    return found == hash;
}

}  // namespace

std::size_t BlobFetcher::num_threads() {
    return std::clamp<std::size_t>(std::thread::hardware_concurrency() / 2, 4, 8);
}

BlobFetcher::BlobFetcher(HubAddress hub, BlobFolder::Options cache, std::uint64_t memory_bytes,
                         Post post, BlobMemory::Notify notify)
    : cache_(std::move(cache)),
      post_(std::move(post)),
      memory_(memory_bytes, std::move(notify)),
      hub_(std::move(hub)) {
    for (std::size_t i = 0; i < num_threads(); ++i) threads_.emplace_back([this] { run(false); });
    threads_.emplace_back([this] { run(true); });
}

BlobFetcher::~BlobFetcher() {
    cancel();
    {
        const std::lock_guard lock(gate_->mutex);
        stopping_ = true;
    }
    gate_->wake.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void BlobFetcher::fetch(const Sha256& hash, std::uint64_t size_bytes, bool urgent,
                        Progress progress, Done done) {
    Job job{hash, size_bytes, urgent, std::move(progress), std::move(done), *generation_};
    if (const HeldBlob known = memory_.find(hash))
        return answer(job, false, Bytes(known.bytes.begin(), known.bytes.end()));
    {
        const std::lock_guard lock(gate_->mutex);
        if (urgent)
            jobs_.push_front(std::move(job));
        else
            jobs_.push_back(std::move(job));
    }
    gate_->wake.notify_all();  // wake all threads, since one of them takes only urgent jobs
}

void BlobFetcher::use(HubAddress hub) {
    const std::lock_guard lock(gate_->mutex);
    hub_ = std::move(hub);
    ++hub_number_;
}

void BlobFetcher::cancel() {
    ++*generation_;
    const std::lock_guard lock(gate_->mutex);
    jobs_.clear();
}

// The loop of each download thread. Each thread has a connection of its own.
void BlobFetcher::run(bool urgent_only) {
    name_thread("fetch");
    const auto has_job = [&] {
        if (jobs_.empty()) return false;
        return jobs_.front().urgent || (!urgent_only && gate_->unread_bytes < unread_bytes_max);
    };
    std::optional<HttpClient> client;
    std::uint64_t number = 0;
    for (;;) {
        Job job;
        {
            std::unique_lock lock(gate_->mutex);
            gate_->wake.wait(lock, [&] { return stopping_ || has_job(); });
            if (stopping_) return;
            job = std::move(jobs_.front());
            jobs_.pop_front();
            if (!client || number != hub_number_) client.emplace(hub_);
            number = hub_number_;
        }

        bool from_network = false;
        Result<Bytes> bytes = one(job, *client, from_network);
        answer(job, from_network, std::move(bytes));
    }
}

// Posts an event to the owner's thread, from any thread. The posted function does not touch this
// object after a cancel(): the object may be destroyed by then.
void BlobFetcher::answer(const Job& job, bool from_network, Result<Bytes> bytes) {
    const std::uint64_t size_bytes = bytes.ok() ? bytes->size() : 0;
    {
        const std::lock_guard lock(gate_->mutex);
        gate_->unread_bytes += size_bytes;
    }
    post_([this, job, from_network, size_bytes, bytes = std::move(bytes), generation = generation_,
           gate = gate_]() mutable {
        {
            const std::lock_guard lock(gate->mutex);
            gate->unread_bytes -= size_bytes;
        }
        gate->wake.notify_all();
        if (job.generation != *generation) return;
        if (bytes.ok()) {
            memory_.keep(job.hash, *bytes);
            job.progress(job.size_bytes, from_network);
        }
        job.done(std::move(bytes));
    });
}

Result<Bytes> BlobFetcher::one(const Job& job, HttpClient& client, bool& from_network) {
    if (auto bytes = cache_.read(job.hash, job.size_bytes)) {
        if (matches(*bytes, job.hash)) return std::move(*bytes);
    }
    cache_.drop(job.hash);  // the blob is damaged or has another size, so it is fetched again
    from_network = true;
    Result<Bytes> bytes = from_hub(job, client);
    if (bytes.ok()) cache_.write(job.hash, *bytes);
    return bytes;
}

// If a connection breaks, the bytes that arrived before are kept. Only an attempt without a new
// byte counts as a failure.
Result<Bytes> BlobFetcher::from_hub(const Job& job, HttpClient& client) {
    Bytes bytes(job.size_bytes);
    std::uint64_t have = 0;
    Error last{ErrorCode::unavailable, "not tried"};
    int failures = 0;
    for (bool first = true; failures < attempts_max; first = false) {
        if (!first) {
            std::unique_lock lock(gate_->mutex);
            gate_->wake.wait_for(lock, attempt_delay * (1 << failures), [&] { return stopping_; });
        }
        if (!wanted(job)) return Error{ErrorCode::cancelled, "no longer wanted"};

        const std::uint64_t before = have;
        const Status got = download(job, client, bytes, have);
        if (have == job.size_bytes && matches(bytes, job.hash)) return bytes;
        if (have == job.size_bytes) {
            have = 0;
            last = {ErrorCode::hash_mismatch, text("blob ", to_hex(job.hash).substr(0, 12),
                                                   " from the hub does not match its hash")};
        } else {
            last = got.ok() ? Error{ErrorCode::unavailable, text("a blob ended after ", have,
                                                                 " of ", job.size_bytes, " bytes")}
                            : got.error();
        }
        if (have <= before) ++failures;
    }
    return last;
}

// Sends one request for the bytes after the first `have` bytes, and adds them to `bytes`.
Status BlobFetcher::download(const Job& job, HttpClient& client, Bytes& bytes,
                             std::uint64_t& have) {
    Status status;
    HttpClient::Reader reader;
    reader.begin = [&](unsigned code) {
        if (code == 200) have = 0;  // the hub sent the whole blob, although a range was requested
        if (code == 200 || code == 206) return true;
        status = Error{ErrorCode::unavailable,
                       text("the hub answered ", code, " for a weight blob")};
        return false;
    };
    reader.room = [&] { return std::span(bytes).subspan(have); };
    reader.take = [&](ByteView piece) {
        if (piece.size() > job.size_bytes - have) {
            have = 0;
            status = Error{ErrorCode::hash_mismatch,
                           text("a blob is longer than ", job.size_bytes, " bytes")};
            return false;
        }
        if (piece.data() != bytes.data() + have)
            std::copy(piece.begin(), piece.end(),
                      bytes.begin() + static_cast<std::ptrdiff_t>(have));
        have += piece.size();
        return wanted(job);
    };
    const Status line = client.get(text(client.hub().url.path, "/weights/", to_hex(job.hash)), have,
                                   reader);
    return status.ok() ? line : status;
}

}  // namespace moex::native
