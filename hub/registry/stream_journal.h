// Keeps the journals of this hub's streams in the store, sealed with the fleet's key, so that
// another hub can go on with them when this one is gone. A journal is a head (the request) and
// records (tokens), which are bytes to this class.
//
// Generations must not wait for the store. So begin(), add() and end() only queue, and a thread
// writes what is queued at most every 50 ms: a record is stored within 200 ms of its token. While
// the store is away, records wait within a bound. A stream beyond it has no journal any more; it
// runs on here, and is lost if this hub ends. An ended stream's journal is deleted within 60 s, and
// so is the journal of a hub that is gone.
//
// Owner of the table's rows: the incarnation that the registry has in the membership. Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hub/base/clock.h"
#include "hub/registry/fleet_key.h"
#include "hub/registry/stream_table.h"

namespace moex {

struct StreamJournalOptions {
    Duration write_every = std::chrono::milliseconds(50);
    // How long a running stream's rows outlive the last sign of its hub, and an ended stream's rows
    // its end. With sweep_every, each is below 60 s.
    Duration life = std::chrono::seconds(54), life_after_end = std::chrono::seconds(50);
    Duration renew_every = std::chrono::seconds(15), sweep_every = std::chrono::seconds(5);
    std::size_t waiting_bytes_max = 64u << 20;
};

class StreamJournal {
  public:
    // `self` returns the present incarnation of this hub. `on_lost` is called on the thread of the
    // journal with the id of a stream of this hub that another hub has taken.
    StreamJournal(Store& store, const FleetKey& key, std::function<Incarnation()> self,
                  std::function<void(const std::string& stream_id)> on_lost,
                  StreamJournalOptions options = {});
    ~StreamJournal();  // writes what waits, if the store answers

    void begin(const std::string& stream_id, Bytes head);
    void add(const std::string& stream_id, Bytes record);
    void end(const std::string& stream_id);
    // Waits until everything that was queued before is written, or a write has failed.
    void flush();

    // The stream of another hub, as take() finds it.
    struct Taken {
        bool is_ours = false;         // false: `address` names the hub that computes it
        std::string hub_id, address;  // of the hub that had the stream
        Bytes head;
        std::vector<Bytes> records;
    };
    // Takes over the stream of a hub whose lease has ended; with `owner_is_gone`, also that of a
    // hub which the caller has found dead. Waits for the store. Then the journal continues with
    // add(). Errors: not_found; cancelled: another hub was faster; bad_file: a sealed part was
    // changed.
    Result<Taken> take(const std::string& stream_id, bool owner_is_gone = false);

    // Lets any hub take a stream that this one has taken.
    Status leave(const std::string& stream_id);

    struct Counters {
        std::uint64_t streams = 0, records = 0, bytes = 0, writes = 0;
        std::uint64_t dropped = 0;  // streams that lost their journal
        std::uint64_t taken = 0;    // streams taken over from other hubs
        Duration slowest_write{};   // from a record to its commit
    };
    Counters counters() const;

  private:
    struct Stream {
        std::uint64_t first = 0;  // number of the records before `records`
        Bytes records;            // each with its length before it
        std::uint32_t num_records = 0;
        bool is_begun = false;  // the row is stored
        Bytes head;             // until then
        bool is_ended = false;
        bool is_dropped = false;  // too much waited: the row is deleted, and the stream runs on
    };
    using Batch = std::map<std::string, Stream>;
    void run();
    void touch();  // the caller holds mutex_, also for the next three
    void drop(Stream& stream);
    Batch take_batch();
    void return_batch(Batch batch);
    Status write(const Incarnation& self, const Batch& batch);
    Status write_parts(const Incarnation& self, const Batch& batch);
    void drop_lost(const Incarnation& self, const Batch& batch);
    void keep_rows();

    StreamTable table_;
    Sealer sealer_;
    const std::function<Incarnation()> self_;
    const std::function<void(const std::string&)> on_lost_;
    const StreamJournalOptions options_;

    mutable std::mutex mutex_;  // guards the following members
    std::condition_variable wake_, written_;
    std::map<std::string, Stream> streams_;
    std::size_t waiting_bytes_ = 0;
    bool is_dirty_ = false, stopping_ = false, is_writing_ = false, writes_fail_ = false;
    TimePoint dirty_since_{};
    Counters counters_;

    // used by the journal's thread
    TimePoint renew_at_{}, sweep_at_{}, failed_at_{};
    Incarnation owner_;  // of the rows that were written last
    std::thread thread_;
};

}  // namespace moex
