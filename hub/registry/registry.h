// What the hub remembers over restarts, in sqlite (WAL): keys, workers seen, counters. Every SQL
// statement lives in this room. Thread-safe: writes of counters and workers are queued to one
// registry thread and committed at least every second; keys are written at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/result.h"

namespace moex {

enum class Role { join, api, admin };
const char* role_name(Role role);

struct WorkerRecord {
    std::string worker_key;  // chosen by the worker; counters go on over reconnects
    std::string nickname, description;
    std::uint64_t pairs_answered = 0, bytes_sent = 0, bad_answers = 0;
    std::int64_t first_seen_s = 0, last_seen_s = 0;  // Unix time
};

class Registry {
  public:
    // Opens or makes `directory` (0700) with moex.sqlite (0600), and brings an older schema
    // up to date; a newer one is refused by its number.
    static Result<std::unique_ptr<Registry>> open(const std::filesystem::path& directory);
    ~Registry();

    // A fresh random key of a role, shown once: only its SHA-256 is stored.
    Result<std::string> create_key(Role role, std::string_view name);
    // Stores the SHA-256 of a key that the host chose (from a file or the environment).
    Status add_key(Role role, std::string_view name, std::string_view key);
    // The same, and the only one of its role and name: what was stored under them before opens
    // nothing any more.
    Status set_key(Role role, std::string_view name, std::string_view key);
    std::optional<Role> key_role(std::string_view key) const;  // constant time per stored key
    bool has_key(Role role) const;
    // The join token: one per state folder; made on first use and kept readable (0600 file beside
    // the database), since the link is shown at every start.
    Result<std::string> join_token();
    // True for the join token and for keys of the roles join and admin; constant time per stored
    // key.
    bool join_allowed(std::string_view token) const;

    void add_to_counter(std::string_view name, std::uint64_t delta);
    std::vector<std::pair<std::string, std::uint64_t>> counters() const;
    // Adds to what is stored; an empty worker_key is dropped.
    // The least recently seen beyond 10,000 rows are forgotten.
    void record_worker(const WorkerRecord& delta);
    std::vector<WorkerRecord> workers() const;
    void flush();

  private:
    Registry();
    struct State;
    std::unique_ptr<State> state_;
};

// $XDG_STATE_HOME/moex or ~/.local/state/moex.
std::filesystem::path default_state_directory();

}  // namespace moex
