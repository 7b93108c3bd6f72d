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
#include "hub/registry/contributors.h"
#include "protocol/result.h"

namespace moex {

enum class Role { join, api, admin };
const char* role_name(Role role);
std::optional<Role> parse_role(std::string_view name);

// Times are Unix time in seconds; 0: never.
struct KeyWish {
    Role role = Role::api;
    std::string name;                     // 1 to 64 bytes of UTF-8, without control characters
    std::uint64_t tokens_per_minute = 0;  // of prompt and answer together; 0: no limit
    std::int64_t expires_s = 0;
};
struct KeyInfo : KeyWish {
    std::string id;  // public: the first 8 hexadecimal digits of the key's SHA-256
    std::int64_t created_s = 0, revoked_s = 0;
    bool opens(std::int64_t now_s) const {
        return revoked_s == 0 && (expires_s == 0 || now_s < expires_s);
    }
};
struct MadeKey {
    std::string key;  // shown once
    KeyInfo info;
};

// What a key's clients were sent. Requests without a key count as `local_key_id`.
struct TokenUse {
    std::uint64_t requests = 0, prompt_tokens = 0, answer_tokens = 0;
};
struct TokenUseOfDay : TokenUse {
    std::string key_id;
    std::int64_t day_s = 0;  // when the UTC day began
};
inline constexpr const char* local_key_id = "local";

// The names under which there is one key at most of a role: the join link's token, the key that
// the host chose, the one that the link to the admin page was traded for.
inline constexpr const char *join_link_name = "link", *host_key_name = "host's own",
                            *claimed_key_name = "one-time link";

struct WorkerRecord {
    std::string worker_key;  // chosen by the worker; counters go on over reconnects
    std::string nickname, description;
    // pairs_answered: that were found right, or came before others that were
    std::uint64_t pairs_answered = 0, bytes_sent = 0, bad_answers = 0;
    std::int64_t first_seen_s = 0, last_seen_s = 0;  // Unix time
};

// How the hub did in one minute.
struct HistoryMinute {
    std::int64_t minute_s = 0;  // when it began, Unix time
    std::uint64_t answer_tokens = 0, answers = 0;
    std::uint64_t first_token_us = 0;                // the sum over `answers`
    std::uint64_t call_p50_us = 0, call_p99_us = 0;  // 0: no calls to workers
    std::uint64_t workers = 0;                       // the most that were active
    std::uint64_t covered = 0, units = 0;  // the fewest experts that somebody computed, of how many
};

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
    struct State;
    std::unique_ptr<State> state_;
};

// $XDG_STATE_HOME/moex or ~/.local/state/moex.
std::filesystem::path default_state_directory();

}  // namespace moex
