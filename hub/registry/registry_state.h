// The state that the parts of the registry share: the open database, the keys in memory, and the
// counts that wait to be written. For this room alone.
#pragma once

#include <openssl/crypto.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "hub/base/sha256.h"
#include "hub/registry/bans.h"
#include "hub/registry/contributions.h"
#include "hub/registry/membership.h"
#include "hub/registry/nonces.h"
#include "hub/registry/records.h"
#include "hub/registry/shared_bans.h"
#include "hub/registry/state_lock.h"
#include "hub/registry/store.h"
#include "hub/registry/wake_event.h"
#include "protocol/identity.h"

namespace moex {

// The SHA-256 of a key, which is stored and compared instead of the key. All hashes have one
// length, and the only comparison takes constant time.
struct KeyHash {
    Sha256 bytes;
    friend bool operator==(const KeyHash& a, const KeyHash& b) {
        return CRYPTO_memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
    }
};
KeyHash hash_key(std::string_view key);
// Makes a key of 192 random bits in URL-safe letters, which fit a header, a fragment and a QR code.
Result<std::string> random_key(std::string_view prefix);

struct StoredKey {
    KeyHash hash;
    KeyInfo info;
};

std::int64_t unix_now_s();

struct PendingContributor {
    std::string nickname;
    std::int64_t seen_s = 0;
    std::map<std::int64_t, LentWork> days;
};

// The counts that wait for the registry's next commit.
struct Pending {
    std::map<std::string, std::uint64_t, std::less<>> counters;
    std::map<std::string, WorkerRecord> workers;
    // Use of each key, keyed by (key id, day).
    std::map<std::pair<std::string, std::int64_t>, TokenUse> token_use;
    // Tokens that requests reserved in a shared store and did not use, by key.
    std::map<std::string, std::int64_t, std::less<>> tokens_back;
    std::vector<HistoryMinute> minutes;
    std::map<std::int64_t, LentWork> work;  // work of all workers, keyed by day
    std::map<PublicKey, PendingContributor> contributors;
    std::map<std::string, WorkerTrust> trust;  // of a shared store, by worker key
    bool empty() const {
        return counters.empty() && workers.empty() && token_use.empty() && minutes.empty() &&
               work.empty() && contributors.empty() && tokens_back.empty() && trust.empty();
    }
};

// These functions write a part of a batch, within its transaction.
Status write_minute(Database& database, const HistoryMinute& minute);
Status write_contributions(Database& database, const Pending& pending);
Status write_trust(Database& database, const std::map<std::string, WorkerTrust>& trust);

struct RegistryState {
    std::filesystem::path directory;
    const Nonces nonces;
    std::unique_ptr<Store> store;  // outlives the members below, which use it
    std::unique_ptr<BanBook> bans;
    SharedBans* shared_bans = nullptr;  // `bans`, if the store is shared

    // Lock order: token_mutex, a Session of the store, keys_mutex.
    std::mutex token_mutex;  // held while the stored join token is read or written
    mutable std::mutex keys_mutex;
    std::vector<StoredKey> keys;   // all keys, including revoked and expired keys
    std::string join_token;        // empty: the token was not read from its file yet
    std::optional<KeyHash> claim;  // hash of the one-time link's token, until the link is used

    // Keys that were read from a shared store are good until this time, which each answer of the
    // store sets anew.
    Duration keys_good_for{};
    std::atomic<TimePoint> keys_good_until{TimePoint::max()};
    std::atomic<bool> is_away{false}, is_wiped{false};
    bool must_read = false;  // the registry thread has not yet read what changed

    std::atomic<bool> writes_fail{false};  // true: the latest commit of counts failed

    WakeEvent wake;  // wakes the registry thread
    std::mutex pending_mutex;
    bool stopping = false, keys_changed = false;
    Pending pending;

    std::mutex commit_mutex;  // held while a batch is written
    // A batch that was taken from `pending`, and its number. If the answer of a shared store was
    // lost, the same batch is sent again under the same number.
    Pending batch;
    std::int64_t batch_number = 0;

    std::unique_ptr<Membership> membership;  // null: the store has one hub
    std::mutex member_mutex;
    std::function<Member()> describe_member;  // empty: this process is no hub
    Member member;
    TimePoint renew_at{};

    // The members as others of this process read them. A strand reads them, so that this mutex is
    // never held while the store is asked.
    mutable std::mutex fleet_mutex;
    std::shared_ptr<const FleetView> fleet = std::make_shared<const FleetView>();

    std::mutex watcher_mutex;  // held while the watcher runs
    std::function<void()> watcher;
    std::optional<StateLock> lock;     // held by a process that serves; guarded by watcher_mutex
    std::int64_t expiries_seen_s = 0;  // key expiries up to this time were reported to the watcher
    std::thread thread;

    Status load_keys(Database& database);
    // True unless a shared store has been away for so long that its keys may not be used further.
    bool keys_are_good() const { return now_steady() < keys_good_until.load(); }
    // Reads keys, bans and join token again, which another process changed.
    Status read_again();
    // Returns a hash of all keys in memory, which changes with every change of a key.
    Sha256 keys_digest() const;
    void say_keys_changed();  // wakes the registry thread, which calls the watcher
    Result<MadeKey> make_key(const KeyWish& wish);
    Status insert_key(const KeyHash& hash, const KeyWish& wish);
    Status end_others(const KeyHash& hash, Role role, std::string_view name);
    Result<std::string> load_join_token();
    Status read_join_token_again();
    std::optional<KeyHash> hash_of(std::string_view id) const;
    bool keys_are_seen();
    void look_at_store();
    void renew_membership(bool at_once);
    void read_members();
    void end_view();
    void leave_fleet();
    void add_use(const std::pair<std::string, std::int64_t>& key_and_day, const TokenUse& use);
    Status write_batch();
    void keep_token_use();
    void commit_pending();
    void serve();
};

}  // namespace moex
