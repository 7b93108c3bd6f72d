// What the registry remembers, as others read and write it; what contributors did is in
// contributions.h, bans are in bans.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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
    std::uint64_t first_token_us = 0;                                  // the sum over `answers`
    std::uint64_t call_p50_us = 0, call_p99_us = 0, call_p999_us = 0;  // 0: no calls to workers
    std::uint64_t workers = 0;                                         // the most that were active
    std::uint64_t covered = 0, units = 0;  // the fewest experts that somebody computed, of how many
};

}  // namespace moex
