// What contributors did, by the key that each of them keeps (protocol/identity.h), and what a
// worker is given to sign. Part of the Registry, which counts and answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/identity.h"

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

// What is signed once: by a worker for its connection, by its owner to be forgotten. Made from a
// secret of this process and what it is for, so that nothing has to be kept.
class Nonces {
  public:
    Nonces();
    std::string for_worker(std::uint64_t worker_id) const;
    // Fits for five to ten minutes.
    std::string to_forget(std::int64_t now_s) const;
    bool fits_to_forget(std::string_view challenge, std::int64_t now_s) const;

  private:
    std::string of(std::string_view purpose, std::uint64_t number) const;
    std::string secret_;
};

// RFC 8032. False as well for bytes that are no key.
bool signature_fits(const PublicKey& key, const Signature& signature, std::string_view text);

}  // namespace moex
