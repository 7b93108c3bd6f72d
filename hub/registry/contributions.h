// The work of contributors, by the key that each contributor keeps (protocol/identity.h). The
// Registry counts the work and answers queries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moex {

// Pairs of (expert, row) that workers answered. `verified` counts the pairs that were found right,
// and the pairs that arrived before others that were found right.
struct LentWork {
    std::uint64_t pairs = 0, verified = 0;
    LentWork& operator+=(const LentWork& other) {
        pairs += other.pairs;
        verified += other.verified;
        return *this;
    }
    bool operator==(const LentWork&) const = default;
};

struct WorkOfDay : LentWork {
    std::int64_t day_s = 0;  // begin of the UTC day, Unix time
};

// A row of the public board: it has no key, no address and no device.
struct BoardRow : LentWork {
    std::string nickname;    // empty: the contributor does not show it
    std::uint64_t rank = 0;  // from 1; equal work has equal rank
    bool is_mine = false;
};

// The totals of a key, which only its contributor sees.
struct ContributorTotals : LentWork {
    std::string nickname;
    std::uint64_t rank = 0;
    std::int64_t first_seen_s = 0;
    // Consecutive days with work, up to today, or up to yesterday if today has none yet.
    std::uint32_t streak_days = 0;
    LentWork today;
    std::vector<WorkOfDay> days;  // days with work among the last 30, the oldest first
};

struct Contributions {
    std::uint64_t contributors = 0;  // number of known contributors
    LentWork today;                  // work of all workers
    std::vector<BoardRow> board;     // the most work first
    std::optional<ContributorTotals> mine;
};

}  // namespace moex
