// What the hub remembers over restarts, in sqlite (WAL): keys, what was written with them, workers
// seen, counters. Every SQL statement lives in this room. Thread-safe: counts are queued to one
// registry thread and committed twice a second at least; keys are written at once, and what another
// process did to them is seen within a tenth of a second.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/registry/bans.h"
#include "hub/registry/contributions.h"
#include "hub/registry/nonces.h"
#include "hub/registry/records.h"
#include "protocol/result.h"

namespace moex {

struct RegistryState;  // in registry_state.h, for this room alone

class Registry {
  public:
    // Opens or makes `directory` (0700) with moex.sqlite (0600), and brings an older schema
    // up to date; a newer one is refused by its number.
    static Result<std::unique_ptr<Registry>> open(const std::filesystem::path& directory);
    ~Registry();

    // A fresh random key, shown once: only its SHA-256 is stored. invalid_argument: the name.
    Result<MadeKey> make_key(const KeyWish& wish);
    Result<std::string> create_key(Role role, std::string_view name);
    // Stores the SHA-256 of a key that the host chose (from a file or the environment). One that
    // was revoked opens again.
    Status add_key(Role role, std::string_view name, std::string_view key);
    // The same, and the only one of its role and name: what was stored under them before opens
    // nothing any more.
    Status set_key(Role role, std::string_view name, std::string_view key);
    // By id or by name. not_found, or invalid_argument where several keys of that name open. The
    // key of the join link gets a successor: see rotate_join_token().
    Result<KeyInfo> revoke_key(std::string_view id_or_name);
    // All there ever were, the oldest first.
    std::vector<KeyInfo> keys() const;
    // Of a key that opens; constant time per stored key.
    std::optional<KeyInfo> find_key(std::string_view key) const;
    std::optional<Role> key_role(std::string_view key) const;
    bool key_opens(std::string_view id) const;
    // One that opens, and that somebody was given: not the one-time link's.
    bool has_key(Role role) const;
    // Called on the registry's thread after a key was made, revoked or changed, here or by another
    // process, and when one expires; nullptr ends that, and waits for a call that runs.
    void watch_keys(std::function<void()> watcher);

    // For the link to the admin page: a token that take_claim() knows once, until the process ends.
    Result<std::string> make_claim();
    bool take_claim(std::string_view token);
    // What the token is traded for: an admin key of a week. It ends the one made before it.
    Result<MadeKey> make_claimed_key();

    // The join token: one per state folder; made on first use and kept readable (0600 file beside
    // the database), since the link is shown at every start.
    Result<std::string> join_token();
    // A fresh one; the former opens nothing any more. Workers that are connected stay.
    Result<std::string> rotate_join_token();
    // True for the join token and for keys of the roles join and admin; constant time per stored
    // key.
    bool join_allowed(std::string_view token) const;

    // Queued; what cannot be written is kept for the next attempt.
    void add_token_use(std::string_view key_id, const TokenUse& use);
    std::vector<TokenUseOfDay> token_use() const;  // by day, then by key

    void add_to_counter(std::string_view name, std::uint64_t delta);
    std::vector<std::pair<std::string, std::uint64_t>> counters() const;
    // Adds to what is stored; an empty worker_key is dropped.
    // The least recently seen beyond 10,000 rows are forgotten.
    void record_worker(const WorkerRecord& delta);
    std::vector<WorkerRecord> workers() const;
    // Adds to what is stored of that minute. A week is kept.
    void record_minute(const HistoryMinute& minute);
    std::vector<HistoryMinute> history(std::int64_t from_s) const;  // the oldest first

    // What workers did, counted for the UTC day of now: all of it, and of it what a contributor's
    // did. `nickname`: what the owner shows of it now. 10,000 contributors are remembered, and of
    // each 400 days.
    void add_work(const LentWork& work);
    void add_contribution(const PublicKey& key, std::string_view nickname, const LentWork& work);
    // As of the last commit: a page that asks must not make the disk wait.
    Contributions contributions(const std::optional<PublicKey>& mine, std::int64_t now_s) const;
    Status forget_contributor(const PublicKey& key);  // also when it is not known
    const Nonces& nonces() const;
    // Over a connection of its own: see there.
    BanBook& bans();
    void flush();

  private:
    Registry();
    std::unique_ptr<RegistryState> state_;
};

// $XDG_STATE_HOME/moex or ~/.local/state/moex.
std::filesystem::path default_state_directory();

}  // namespace moex
