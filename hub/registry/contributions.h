// The work of contributors, by the key that each contributor keeps (protocol/identity.h). The
// Registry counts the work and answers queries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moex {

// Numbers of (expert, row) pairs that workers answered. `verified` counts the pairs that a check
// found right, and the pairs that arrived before another pair that a check found right.
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

// One row of the public list of contributors. It contains no key, no address and no device.
struct BoardRow : LentWork {
    std::string nickname;    // name that the contributor shows; empty: none
    std::uint64_t rank = 0;  // rank by work, from 1; equal work has equal rank
    bool is_mine = false;
};

// The totals of one contributor's work, which only this contributor sees.
struct ContributorTotals : LentWork {
    std::string nickname;
    std::uint64_t rank = 0;
    std::int64_t first_seen_s = 0;
    // Consecutive days with work, up to today, or up to yesterday if today has no work yet.
    std::uint32_t streak_days = 0;
    LentWork today;
    std::vector<WorkOfDay> days;  // days with work among the last 30 days, the oldest first
};

struct Contributions {
    std::uint64_t contributors = 0;  // number of known contributors
    LentWork today;                  // work of all workers on the present UTC day
    std::vector<BoardRow> board;     // rows by their work, the most work first
    std::optional<ContributorTotals> mine;
};

}  // namespace moex
