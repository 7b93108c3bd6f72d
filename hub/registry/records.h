// The records that the registry stores, as the other rooms read and write them. The work of
// contributors is in contributions.h, bans are in bans.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace moex {

enum class Role { join, api, admin };
const char* role_name(Role role);
std::optional<Role> parse_role(std::string_view name);

// The properties of a key, chosen by the caller that makes the key. Times are Unix time in seconds;
// 0: never.
struct KeyWish {
    Role role = Role::api;
    std::string name;  // 1 to 64 bytes of UTF-8, without control characters
    // Limit of tokens, prompts and answers together; 0: no limit.
    std::uint64_t tokens_per_minute = 0;
    std::int64_t expires_s = 0;
};
struct KeyInfo : KeyWish {
    std::string id;  // public id of the key: the first 8 hexadecimal digits of its SHA-256
    std::int64_t created_s = 0, revoked_s = 0;
    bool opens(std::int64_t now_s) const {
        return revoked_s == 0 && (expires_s == 0 || now_s < expires_s);
    }
};
struct MadeKey {
    std::string key;  // shown once
    KeyInfo info;
};

// Requests and tokens that were sent to the clients of a key. Requests without a key are counted
// for `local_key_id`.
struct TokenUse {
    std::uint64_t requests = 0, prompt_tokens = 0, answer_tokens = 0;
};
struct TokenUseOfDay : TokenUse {
    std::string key_id;
    std::int64_t day_s = 0;  // begin of the UTC day, Unix time
};
inline constexpr const char* local_key_id = "local";

// Reserved names of keys. Each name has at most one valid key of a role. The names are those of the
// token of the join link, the key that the operator chose, and the key that a link to the admin
// page was exchanged for.
inline constexpr const char *join_link_name = "link", *host_key_name = "host's own",
                            *claimed_key_name = "one-time link";

struct WorkerRecord {
    // Key that the worker chose; the worker's counters continue after a reconnect.
    std::string worker_key;
    std::string nickname, description;
    // pairs_answered: pairs (expert, row) that a check found right, or that arrived before such a
    // pair
    std::uint64_t pairs_answered = 0, bytes_sent = 0, bad_answers = 0;
    std::int64_t first_seen_s = 0, last_seen_s = 0;  // Unix time
};

// The record of a worker's answers that hubs share (hub/dispatch/trust/answer_trust.h), or what one
// of them adds to it. The first three counts are those since the worker was last suspected.
struct WorkerTrust {
    std::uint64_t rows_answered = 0, rows_verified = 0, answers_verified = 0;
    std::uint64_t rows_verified_ever = 0;
    std::int64_t lies = 0;  // fewer, if some were forgotten
    std::uint64_t times_suspected = 0;
    bool suspected = false;
    std::int64_t lied_s = 0, seen_s = 0;  // Unix time; 0: never
    // Adds what was learned later. The later value of `suspected` holds; lies do not go below zero.
    WorkerTrust& operator+=(const WorkerTrust& later);
    friend bool operator==(const WorkerTrust&, const WorkerTrust&) = default;
};

// One record of the history: load, latency and coverage of the hub in one minute.
struct HistoryMinute {
    std::int64_t minute_s = 0;  // begin of the minute, Unix time
    std::uint64_t answer_tokens = 0, answers = 0;
    std::uint64_t first_token_us = 0;  // sum over all `answers`
    // Latency of calls to workers; 0: no calls.
    std::uint64_t call_p50_us = 0, call_p99_us = 0, call_p999_us = 0;
    std::uint64_t workers = 0;  // most active workers
    // covered: the smallest number of the `units` experts that workers or the hub could compute
    std::uint64_t covered = 0, units = 0;
};

}  // namespace moex
