// What contributors did, by the key that each of them keeps (protocol/identity.h). The Registry
// counts and answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moex {

// Pairs of (expert, row) that workers answered; of them those that were found right, or came
// before others that were.
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
    std::int64_t day_s = 0;  // when the UTC day began
};

// One line of the board: no key, no address, no device.
struct BoardRow : LentWork {
    std::string nickname;    // empty: its owner does not show it
    std::uint64_t rank = 0;  // equal work, equal rank
    bool is_mine = false;
};

// What its owner is told of one key.
struct ContributorTotals : LentWork {
    std::string nickname;
    std::uint64_t rank = 0;
    std::int64_t first_seen_s = 0;
    std::uint32_t streak_days = 0;  // up to today, or to yesterday where today has nothing yet
    LentWork today;
    std::vector<WorkOfDay> days;  // of the last 30 days those with work, the oldest first
};

struct Contributions {
    std::uint64_t contributors = 0;  // that are known
    LentWork today;                  // of all workers
    std::vector<BoardRow> board;     // the most work first
    std::optional<ContributorTotals> mine;
};

}  // namespace moex
