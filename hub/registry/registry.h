// The state that the hub keeps over restarts: keys and their use, bans, known workers, history,
// contributions, counters. It is in the hub's own sqlite (WAL), or in a PostgreSQL that several
// hubs share (store.h). All SQL statements of the hub are in this room. Thread-safe. Counts are
// queued for the registry thread, which commits them at least twice a second. Keys are written at
// once. Changes of keys by another process are seen within a tenth of a second.
//
// A shared store may be away. Queries of keys and bans are then answered from what was read last,
// of keys for 15 minutes; counts wait, and are written once when the store is back. Calls that
// write keys fail at once (`unavailable`), and queries of counts find nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/base/clock.h"
#include "hub/registry/bans.h"
#include "hub/registry/contributions.h"
#include "hub/registry/membership.h"
#include "hub/registry/nonces.h"
#include "hub/registry/records.h"
#include "hub/registry/state_lock.h"
#include "hub/registry/token_buckets.h"
#include "protocol/identity.h"
#include "protocol/result.h"

namespace moex {

// Where a registry keeps its state.
struct StorePlace {
    // The state folder of this hub alone. It has the lock of the folder, and without `url` the
    // database moex.sqlite (0600). A process that does not serve needs none with `url`.
    std::filesystem::path directory;
    std::string url;  // a shared store (postgres_address.h); empty: sqlite
    // How long keys stay in use while a shared store is away.
    Duration keys_good_for = std::chrono::minutes(15);
};

class Store;
struct RegistryState;  // defined in registry_state.h, which only this room includes

// Stores keys, counts and records, and answers queries about them.
class Registry {
  public:
    // Opens or makes the state folder (0700) and opens the store, and migrates an older schema. A
    // newer schema is refused by its number.
    static Result<std::unique_ptr<Registry>> open(const StorePlace& place);
    static Result<std::unique_ptr<Registry>> open(const std::filesystem::path& directory);
    ~Registry();

    // Makes a random key. The caller shows it once, since only its SHA-256 is stored. Error
    // invalid_argument: the name is not allowed.
    Result<MadeKey> make_key(const KeyWish& wish);
    Result<std::string> create_key(Role role, std::string_view name);
    // Stores the SHA-256 of a key that the operator chose (from a file or the environment). A key
    // that was revoked becomes valid again.
    Status add_key(Role role, std::string_view name, std::string_view key);
    // Stores a key as add_key() does, and revokes all other keys of this role and name.
    Status set_key(Role role, std::string_view name, std::string_view key);
    // Revokes a key by its id or its name. Errors: not_found, or invalid_argument if several valid
    // keys have that name. The key of the join link gets a successor: see rotate_join_token().
    Result<KeyInfo> revoke_key(std::string_view id_or_name);
    // Returns all keys that were ever made, the oldest first.
    std::vector<KeyInfo> keys() const;
    // Finds a valid key (not revoked, not expired). Each comparison with a stored key takes
    // constant time.
    std::optional<KeyInfo> find_key(std::string_view key) const;
    std::optional<Role> key_role(std::string_view key) const;
    bool key_opens(std::string_view id) const;
    // Returns true if the role has a valid key, not counting the key that belongs to a one-time
    // link to the admin page.
    bool has_key(Role role) const;
    // Calls `watcher` on the registry's thread after a key was made, revoked or changed, by this or
    // another process, and when a key expires. nullptr removes the watcher, after waiting for a
    // running call.
    void watch_keys(std::function<void()> watcher);

    // Makes the token of a link to the admin page. take_claim() accepts it once, until the process
    // ends.
    Result<std::string> make_claim();
    bool take_claim(std::string_view token);
    // Makes the admin key that the token of a one-time link is exchanged for. The key expires after
    // a week. The previous such key is revoked.
    Result<MadeKey> make_claimed_key();

    // Returns the join token of this state folder. It is made on first use, and stored in plain
    // text (a 0600 file next to the database), since the link is shown at every start.
    Result<std::string> join_token();
    // Makes a new join token and revokes the old one. Connected workers stay connected.
    Result<std::string> rotate_join_token();
    // Returns true for the join token and for valid keys of the roles join and admin. Each
    // comparison with a stored key takes constant time.
    bool join_allowed(std::string_view token) const;

    // Queues the token use of a key. If a write to the database fails, the counts are kept for the
    // next attempt.
    void add_token_use(std::string_view key_id, const TokenUse& use);
    std::vector<TokenUseOfDay> token_use() const;  // sorted by day, then by key

    // These functions keep the token limit of a key over all hubs of a shared store
    // (token_buckets.h). The first asks the store and waits for it; error unavailable: it is away.
    // The second ends a reservation, and is queued like counts.
    Result<TokenReservation> reserve_tokens(std::string_view key_id, std::uint64_t per_minute,
                                            std::uint64_t tokens_max);
    void settle_tokens(std::string_view key_id, std::uint64_t reserved, std::uint64_t used);

    void add_to_counter(std::string_view name, std::uint64_t delta);
    std::vector<std::pair<std::string, std::uint64_t>> counters() const;
    // Adds the counts of `delta` to the worker's stored record; an empty worker_key is ignored.
    // Beyond 10,000 rows the least recently seen workers are deleted.
    void record_worker(const WorkerRecord& delta);
    std::vector<WorkerRecord> workers() const;
    // Adds what was learned about a worker's answers to its record in a shared store. Beyond 10,000
    // records those of the least recently seen workers are deleted.
    void add_worker_trust(const std::string& worker_key, const WorkerTrust& learned);
    // Returns the record of a worker, which is empty for a worker that is not known. Waits for the
    // store, which has all that this process has added. Error unavailable.
    Result<WorkerTrust> worker_trust(const std::string& worker_key);
    // Adds the counts of a minute to the stored record of that minute. Records are kept for a week.
    void record_minute(const HistoryMinute& minute);
    std::vector<HistoryMinute> history(std::int64_t from_s) const;  // the oldest first

    // These functions count work for the present UTC day: of all workers (add_work), and of the
    // workers of one contributor (add_contribution). `nickname` is the name that the contributor
    // shows now. At most 10,000 contributors are stored, each with at most 400 days.
    void add_work(const LentWork& work);
    void add_contribution(const PublicKey& key, std::string_view nickname, const LentWork& work);
    // Returns the contributions as of the last commit: a query from a page must not cause a write
    // to disk.
    Contributions contributions(const std::optional<PublicKey>& mine, std::int64_t now_s) const;
    Status forget_contributor(const PublicKey& key);  // succeeds also if the key is not known
    const Nonces& nonces() const;
    BanBook& bans();

    // The hubs that share this store; null: the store has one hub.
    Membership* membership();
    // Enters this process as a hub and renews its lease until the registry is destroyed. `describe`
    // returns the hub's row for the table of hubs, and is called on the registry's thread. If a
    // later incarnation of the hub enters, renewing ends, and the process continues to serve.
    Status join_fleet(std::function<Member()> describe);
    void leave_fleet();  // ends the lease; `describe` is not called after this
    // The number of this process's incarnation as a hub; 0: it has not entered.
    std::int64_t incarnation() const;
    // This hub and the others; does not wait for the store. Never null.
    std::shared_ptr<const FleetView> fleet() const;
    Store& store();
    bool is_shared() const;
    bool store_is_away() const;   // or wiped
    bool store_is_wiped() const;  // it answers, and is not the store that was opened
    void flush();
    const std::filesystem::path& directory() const;
    // True if the last write of counts to the database failed, for example on a full disk.
    bool writes_fail() const;

    // Keeps the lock of this state folder until the registry is destroyed, and publishes in it
    // which keys are in use. Called by the process that serves.
    void keep(StateLock lock);
    // Waits until the processes that serve with this store use the keys as they are stored now.
    // Returns true at once if no process serves, and false if one has not after `within`.
    bool wait_until_seen(Duration within);

  private:
    Registry();
    std::unique_ptr<RegistryState> state_;
};

}  // namespace moex
