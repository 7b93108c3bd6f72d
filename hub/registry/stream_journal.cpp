#include "hub/registry/stream_journal.h"

#include <algorithm>

#include "hub/base/log.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

constexpr Duration pause_after_failure = std::chrono::milliseconds(200);
constexpr std::size_t pieces_per_statement = 200;
constexpr std::uint32_t record_bytes_max = 1u << 24;

std::string head_place(std::string_view stream_id) { return text("stream ", stream_id, " head"); }
std::string piece_place(std::string_view stream_id, std::uint64_t position) {
    return text("stream ", stream_id, " records ", position);
}

// Splits the bytes of a piece into its records.
Status split_records(ByteView bytes, std::vector<Bytes>& out) {
    ByteReader in(bytes);
    while (in.remaining_bytes() > 0) {
        const ByteView record = in.take(in.u32());
        if (in.overrun()) return Error{ErrorCode::bad_file, "a piece of a journal is cut short"};
        out.emplace_back(record.begin(), record.end());
    }
    return {};
}

}  // namespace

StreamJournal::StreamJournal(Store& store, const FleetKey& key, std::function<Incarnation()> self,
                             std::function<void(const std::string&)> on_lost,
                             StreamJournalOptions options)
    : table_(store),
      sealer_(key),
      self_(std::move(self)),
      on_lost_(std::move(on_lost)),
      options_(options),
      thread_([this] { run(); }) {}

StreamJournal::~StreamJournal() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void StreamJournal::begin(const std::string& stream_id, Bytes head) {
    const std::lock_guard lock(mutex_);
    // Forget what waits of an earlier stream with that id, as insert() forgets what is stored.
    Stream& stream = streams_[stream_id];
    waiting_bytes_ -= stream.records.size() + stream.head.size();
    ++counters_.streams;
    if (waiting_bytes_ + head.size() > options_.waiting_bytes_max) return drop(stream);
    waiting_bytes_ += head.size();
    stream = {.head = std::move(head)};
    touch();
}

// The caller has taken the stream's bytes off waiting_bytes_.
void StreamJournal::drop(Stream& stream) {
    log_rarely(LogLevel::warn,
               "fleet: a stream has no journal any more, since too much waits for the store",
               kv("waiting_bytes", waiting_bytes_));
    stream = {.is_begun = stream.is_begun, .is_ended = true, .is_dropped = true};
    ++counters_.dropped;
    touch();
}

void StreamJournal::touch() {
    if (std::exchange(is_dirty_, true)) return;  // the thread knows when to write
    dirty_since_ = now_steady();
    wake_.notify_all();
}

void StreamJournal::add(const std::string& stream_id, Bytes record) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream_id);
    if (found == streams_.end() || found->second.is_ended) return;
    Stream& stream = found->second;
    if (waiting_bytes_ + record.size() > options_.waiting_bytes_max ||
        record.size() > record_bytes_max) {
        waiting_bytes_ -= stream.records.size() + stream.head.size();
        return drop(stream);
    }
    ByteWriter length;
    length.u32(static_cast<std::uint32_t>(record.size()));
    const Bytes prefix = std::move(length).take();
    stream.records.insert(stream.records.end(), prefix.begin(), prefix.end());
    stream.records.insert(stream.records.end(), record.begin(), record.end());
    waiting_bytes_ += 4 + record.size();
    ++stream.num_records;
    ++counters_.records;
    touch();
}

void StreamJournal::end(const std::string& stream_id) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream_id);
    if (found == streams_.end()) return;
    found->second.is_ended = true;
    touch();
}

void StreamJournal::flush() {
    std::unique_lock lock(mutex_);
    if (is_dirty_) dirty_since_ = {};
    wake_.notify_all();
    written_.wait(lock, [&] { return stopping_ || writes_fail_ || (!is_dirty_ && !is_writing_); });
}

StreamJournal::Counters StreamJournal::counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
}

// Takes what waits: of each stream its records, and the head of a new one.
StreamJournal::Batch StreamJournal::take_batch() {
    Batch batch;
    for (auto at = streams_.begin(); at != streams_.end();) {
        Stream& stream = at->second;
        const bool waits = !stream.is_begun || stream.num_records > 0 || stream.is_ended;
        if (waits) {
            Stream part = std::move(stream);
            stream = {.first = part.first + part.num_records, .is_begun = true};
            const bool is_ended = part.is_ended;
            batch.emplace(at->first, std::move(part));
            if (is_ended) {
                at = streams_.erase(at);
                continue;
            }
        }
        ++at;
    }
    waiting_bytes_ = 0;
    is_dirty_ = false;
    return batch;
}

// Puts back what could not be written, before the records that were added since.
void StreamJournal::return_batch(Batch batch) {
    for (auto& [id, part] : batch) {
        const auto found = streams_.find(id);
        if (found != streams_.end() && !found->second.is_dropped) {
            Stream& later = found->second;
            if (!later.head.empty()) continue;  // the stream has begun anew
            part.records.insert(part.records.end(), later.records.begin(), later.records.end());
            part.num_records += later.num_records;
            part.is_ended = part.is_ended || later.is_ended;
            later = std::move(part);
        } else if (found == streams_.end()) {
            streams_.emplace(id, std::move(part));
        }
    }
    waiting_bytes_ = 0;
    for (const auto& [id, stream] : streams_)
        waiting_bytes_ += stream.records.size() + stream.head.size();
    is_dirty_ = true;
    dirty_since_ = now_steady() + pause_after_failure;
}

void StreamJournal::run() {
    name_thread("journal");
    std::unique_lock lock(mutex_);
    for (;;) {
        if (is_dirty_)
            wake_.wait_until(lock, dirty_since_ + options_.write_every, [&] {
                return stopping_ || now_steady() >= dirty_since_ + options_.write_every;
            });
        else
            wake_.wait_for(lock, std::chrono::seconds(1), [&] { return stopping_ || is_dirty_; });
        const bool is_due = is_dirty_ &&
                            (stopping_ || now_steady() >= dirty_since_ + options_.write_every);
        if (is_due) {
            const TimePoint since = dirty_since_;
            Batch batch = take_batch();
            is_writing_ = true;
            lock.unlock();
            const Incarnation self = self_();
            const Status written = write(self, batch);
            lock.lock();
            is_writing_ = false;
            writes_fail_ = !written.ok();
            ++counters_.writes;
            if (written.ok())
                counters_.slowest_write = std::max(counters_.slowest_write, now_steady() - since);
            else if (!stopping_)
                return_batch(std::move(batch));
            written_.notify_all();
        }
        if (stopping_) return;
        lock.unlock();
        keep_rows();
        lock.lock();
    }
}

Status StreamJournal::write(const Incarnation& self, const Batch& batch) {
    const Status written = write_parts(self, batch);
    if (!written.ok()) {
        failed_at_ = now_steady();
        log_rarely(LogLevel::warn, "fleet: journals of streams wait for the store",
                   kv("error", written.error().message));
        return written;
    }
    drop_lost(self, batch);
    return {};
}

Status StreamJournal::write_parts(const Incarnation& self, const Batch& batch) {
    // After the store had lost this hub, it has entered again as another incarnation.
    if (owner_.fence != 0 && !(owner_ == self)) MOEX_TRY(table_.move(owner_, self));
    owner_ = self;

    std::vector<StreamPiece> pieces;
    std::uint64_t bytes = 0;
    for (const auto& [id, part] : batch) {
        if (!part.is_begun && !part.is_dropped)
            MOEX_TRY(
                table_.insert(self, id, sealer_.seal(part.head, head_place(id)), options_.life));
        if (part.num_records == 0) continue;
        pieces.push_back({id, static_cast<std::int64_t>(part.first),
                          sealer_.seal(part.records, piece_place(id, part.first))});
        bytes += pieces.back().records.size();
    }
    for (auto rest = std::span<const StreamPiece>(pieces); !rest.empty();) {
        const auto some = rest.first(std::min(rest.size(), pieces_per_statement));
        MOEX_TRY(table_.append(self, some));
        rest = rest.subspan(some.size());
    }
    for (const auto& [id, part] : batch)
        if (part.is_ended)
            MOEX_TRY(table_.end(self, id, part.is_dropped ? Duration{} : options_.life_after_end));
    const std::lock_guard lock(mutex_);
    counters_.bytes += bytes;
    return {};
}

// Finds the streams of a batch that are not this hub's any more.
void StreamJournal::drop_lost(const Incarnation& self, const Batch& batch) {
    std::vector<std::string> ids;
    for (const auto& [id, part] : batch)
        if (!part.is_ended) ids.push_back(id);
    const auto owned = table_.owned(self, ids);
    if (!owned.ok()) return;  // the next batch looks again
    for (const std::string& id : ids) {
        if (std::ranges::find(*owned, id) != owned->end()) continue;
        const bool is_taken = table_.find(id).ok();
        {
            const std::lock_guard lock(mutex_);
            streams_.erase(id);
            ++counters_.dropped;
        }
        if (is_taken) {
            log_warn("fleet: another hub has taken a stream of this one", kv("stream", id));
            on_lost_(id);
        } else {
            log_rarely(LogLevel::warn, "fleet: the store has lost the journal of a stream",
                       kv("stream", id));
        }
    }
}

// Renews the rows of this hub, and deletes those whose time is over. After the store was away, the
// other hubs get the time to renew theirs first.
void StreamJournal::keep_rows() {
    const TimePoint now = now_steady();
    const Incarnation self = self_();
    if (self.fence == 0) return;
    if (now >= renew_at_) {
        renew_at_ = now + options_.renew_every;
        if (!table_.renew(self, options_.life).ok()) failed_at_ = now;
    }
    if (now < sweep_at_) return;
    sweep_at_ = now + options_.sweep_every;
    if (failed_at_ != TimePoint{} && now < failed_at_ + 2 * options_.renew_every) return;
    if (!table_.sweep().ok()) failed_at_ = now;
}

Result<StreamJournal::Taken> StreamJournal::take(const std::string& stream_id, bool owner_is_gone) {
    MOEX_ASSIGN(found, table_.find(stream_id));
    const Incarnation self = self_();
    if (found.owner == self)
        return Error{ErrorCode::not_found, text("the stream ", stream_id, " has ended")};
    Taken taken{.hub_id = found.owner.hub_id, .address = found.owner_address};
    if (found.owner_lives && !owner_is_gone) return taken;
    MOEX_TRY(table_.take(stream_id, found.owner, self, owner_is_gone, options_.life));

    MOEX_ASSIGN(sealed_head, table_.head(stream_id));
    MOEX_ASSIGN(head, sealer_.open(sealed_head, head_place(stream_id)));
    MOEX_ASSIGN(pieces, table_.pieces(stream_id));
    for (const StreamPiece& piece : pieces) {
        if (piece.position != static_cast<std::int64_t>(taken.records.size()))
            return Error{ErrorCode::bad_file,
                         text("the journal of the stream ", stream_id,
                              " lacks a piece before record ", piece.position)};
        MOEX_ASSIGN(records,
                    sealer_.open(piece.records, piece_place(stream_id, taken.records.size())));
        MOEX_TRY(split_records(records, taken.records));
    }
    taken.is_ours = true;
    taken.head = std::move(head);

    const std::lock_guard lock(mutex_);
    streams_[stream_id] = {.first = taken.records.size(), .is_begun = true};
    ++counters_.taken;
    return taken;
}

Status StreamJournal::leave(const std::string& stream_id) {
    {
        const std::lock_guard lock(mutex_);
        streams_.erase(stream_id);
    }
    const Incarnation self = self_();
    return table_.take(stream_id, self, {self.hub_id, 0}, true, options_.life);
}

}  // namespace moex
