// The state that the parts of the registry share: the open database, the keys in memory, and the
// counts that wait to be written. For this room alone.
#pragma once

#include <openssl/crypto.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
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
#include "hub/registry/database.h"
#include "hub/registry/nonces.h"
#include "hub/registry/records.h"
#include "hub/registry/state_lock.h"
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

// Reads the join token of a state folder; an empty text if it has none.
Result<std::string> read_join_token(const std::filesystem::path& directory);
// The table of a backup's database that holds the join token (hub/registry/backup.h).
inline constexpr std::string_view backup_token_table = "backup_join_token";

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
    std::vector<HistoryMinute> minutes;
    std::map<std::int64_t, LentWork> work;  // work of all workers, keyed by day
    std::map<PublicKey, PendingContributor> contributors;
    bool empty() const {
        return counters.empty() && workers.empty() && token_use.empty() && minutes.empty() &&
               work.empty() && contributors.empty();
    }
};

struct RegistryState {
    std::filesystem::path directory;
    const Nonces nonces;
    std::unique_ptr<BanBook> bans;

    mutable std::mutex keys_mutex;  // lock order: database_mutex first, then keys_mutex
    std::vector<StoredKey> keys;    // all keys, including revoked and expired keys
    std::string join_token;         // empty: the token was not read from its file yet
    std::optional<KeyHash> claim;   // hash of the one-time link's token, until the link is used

    std::mutex database_mutex;  // held during each statement or transaction
    std::unique_ptr<Database> database;
    // Value at the last poll; a commit of another process changes it.
    std::int64_t data_version = 0;

    std::atomic<bool> writes_fail{false};  // true: the latest commit of counts failed

    std::mutex pending_mutex;
    std::condition_variable wake;
    bool stopping = false, keys_changed = false;
    Pending pending;

    std::mutex watcher_mutex;  // held while the watcher runs
    std::function<void()> watcher;
    std::optional<StateLock> lock;     // held by a process that serves; guarded by watcher_mutex
    std::int64_t expiries_seen_s = 0;  // key expiries up to this time were reported to the watcher
    std::thread thread;

    Status prepare();
    Status load_keys();  // with database_mutex held
    // Returns a hash of all keys in memory, which changes with every change of a key.
    Sha256 keys_digest() const;
    void say_keys_changed();  // wakes the registry thread, which calls the watcher
    Result<MadeKey> make_key(const KeyWish& wish);
    Status insert_key(const KeyHash& hash, const KeyWish& wish);
    Status end_others(const KeyHash& hash, Role role, std::string_view name);
    Result<std::string> load_join_token();  // with keys_mutex held
    Status write_join_token(const std::string& token) const;
    // Takes the join token out of the database if the database is a backup.
    Status restore_join_token();
    void look_at_keys();
    void add_use(const std::pair<std::string, std::int64_t>& key_and_day, const TokenUse& use);
    Status write_worker(const std::string& key, const WorkerRecord& delta);
    Status write_minute(const HistoryMinute& minute);
    Status write_contributor(const PublicKey& key, const PendingContributor& delta);
    Status write_contributions(const Pending& pending);
    Status write_pending(const Pending& pending);
    void commit_pending();
    void serve();
};

}  // namespace moex
