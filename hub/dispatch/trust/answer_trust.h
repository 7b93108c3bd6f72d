// Whose answers are believed, and which of them are computed again: a record for each worker key.
// Events in, "check these rows" and "this key is out" out: no worker, no frame, no clock.
//
// A worker without a record is unproven: no answer of it counts before it was checked, all of its
// rows at first. After `to_prove` rows that were right a row is checked with the probability
//     q(n) = max(rate_min, to_prove / n),  n = rows that it has answered so far,
// one row of an answer at the least; and after as many answers it is proven: then answers count at
// once, rows are checked after that, at the same rate. What this leaves through:
// - A worker that gives false answers, p of all, whatever it was asked: nothing before it is
//   proven, which it is with probability (1 - p)^to_prove, 3e-5 for p = 0.01. Were rows alone to
//   prove it, it would be 0.28 where answers have eight, which is usual with several users, and
//   with --deterministic also for one token, as a row is a pair then.
// - One that spoils one row of such answers: q(n) of that is seen, as of one with answers of one
//   row that lies in p / r of them. Of 100 answers of eight rows, one row of one spoilt, a tenth of
//   all workers so: 5e-5 of the rows that count are false (7e-5 where rows alone prove, 1e-8 were
//   all rows of 1,024 answers checked, for two and a half times the judge's work on each new key,
//   eight times where answers have forty).
// - One that starts to lie after n rows, when it is proven: 1 / q(n) - 1 rows in the mean before
//   the first is seen, and all of its later ones are checked again. So at most n / to_prove, 0.1 %
//   of what it had answered rightly, and at most 1 / rate_min - 1 = 255 rows in all:
//     n = 1,024   q = 1       0 rows         n = 65,536    q = 1/64     63 rows
//     n = 8,192   q = 1/8     7 rows         n >= 262,144  q = 1/256   255 rows
//   A reply that it had a part in says so if it is still going on by then (`doubted`).
//
// A lie makes a worker suspected: its record starts anew, all of its rows are checked. The
// `lies_max`th lie ends it: the key is closed for `ban_for`, and for twice as long each further
// time. An address counts less than a key, since many may stand behind one: lies from it raise the
// rate for new keys, and ban nobody. Loopback raises nothing; a proxy speaks from there.
#pragma once

#include <cstdint>
#include <list>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hub/base/clock.h"
#include "hub/dispatch/trust/answer_judge.h"

namespace moex {

struct CheckOptions {
    bool on = false;                // serve turns it on
    bool judge = false;             // the hub has the weights: the driver answers CheckAnswer
    std::uint32_t to_prove = 1024;  // rows, and answers
    double rate_min = 1.0 / 256;
    std::uint32_t lies_max = 3;
    Duration lie_forgotten_after = 24h;  // one lie less
    Duration ban_for = 10min, ban_max = 720h;
    Duration address_suspect_for = 1h;  // after a lie from it
    std::uint64_t seed = 1;             // of what is drawn; a secret in a hub that strangers join
};

enum class Trust : std::uint8_t { unproven, suspected, proven, banned };
const char* trust_name(Trust trust);  // "unproven", ...

// What is done about one answer.
struct CheckPlan {
    bool hold = false;                // it does not count before these rows were found right
    std::vector<std::uint32_t> rows;  // of the answer, ascending; at least one when held
    std::uint64_t mark = 0;           // pairs that the key had answered by then: given back below
};

class AnswerTrust {
  public:
    explicit AnswerTrust(const CheckOptions& options);

    Trust trust(std::string_view key, TimePoint now) const;
    // The share of rows that are checked: q(n) above.
    double rate(std::string_view key, TimePoint now) const;

    // An answer of `num_rows` came. `odd`: something about it is unlike an honest one, so that it
    // is held whoever sent it. Counts the rows. `address`: 0 for loopback.
    CheckPlan plan(std::string_view key, std::uint64_t address, std::uint32_t num_rows,
                   std::uint32_t num_pairs, bool odd, TimePoint now);
    // What came of its rows. True: the key is banned by this one.
    bool on_verdict(std::string_view key, std::uint64_t address, Verdict verdict,
                    const CheckPlan& plan, TimePoint now);

    // Its word stood against another's, and nobody could tell: its record starts anew.
    void suspect(std::string_view key);

    // How long the key stays closed; zero when it is not.
    Duration banned_for(std::string_view key, TimePoint now) const;
    void ban(std::string_view key, TimePoint now);
    void lift(std::string_view key);

    // Pairs whose row, or a later row of the same worker, was found right: what is credited. What
    // came after the last checked row waits for the next one, and a lie strikes it out.
    std::uint64_t pairs_credited(std::string_view key) const;
    std::uint64_t rows_verified(std::string_view key) const;
    std::uint32_t lies(std::string_view key) const;
    std::size_t num_records() const { return records_.size(); }

  private:
    struct Record {
        std::string key;
        // since it was last suspected; answers_verified: those that were held
        std::uint64_t rows_answered = 0, rows_verified = 0, answers_verified = 0;
        std::uint64_t rows_verified_ever = 0;
        // pairs_settled: of those answered, how many are credited or struck out
        std::uint64_t pairs_answered = 0, pairs_settled = 0, pairs_credited = 0;
        std::uint32_t lies = 0, bans = 0;
        bool suspected = false;
        TimePoint lied_at{}, banned_until{};
    };
    struct Address {
        std::uint32_t lies = 0;
        TimePoint until{};
    };
    using Records = std::list<Record>;

    const Record* find(std::string_view key) const;
    Record& record_of(std::string_view key);
    bool is_proven(const Record& record) const;
    double rate_of(const Record& record, std::uint64_t address, TimePoint now) const;
    double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

    CheckOptions options_;
    std::mt19937_64 random_;
    Records recent_;  // most recently used first; the last are forgotten beyond a bound
    std::unordered_map<std::string_view, Records::iterator> records_;  // keys live in `recent_`
    std::unordered_map<std::uint64_t, Address> addresses_;
};

// How much of the work workers without a record are given where others could do it: a fifth of the
// pairs of late. Otherwise who comes with a thousand keys takes most of the calls, and the hub
// computes them all again.
class NewcomerShare {
  public:
    void add(std::uint32_t num_pairs, bool is_new) {
        constexpr double pairs_of_late = 4096;
        if ((all_ += num_pairs) > pairs_of_late) {
            all_ /= 2;
            new_ /= 2;
        }
        if (is_new) new_ += num_pairs;
    }
    bool has_room() const {
        constexpr double share_max = 0.2;
        return new_ <= share_max * all_;
    }

  private:
    double all_ = 0, new_ = 0;
};

// How large an expert's answers are: rms(y) over gate * rms(x), learned from pairs that were
// computed again. An answer beyond four times the largest, or of nothing but zeros, is odd.
class ExpertGains {
  public:
    explicit ExpertGains(std::size_t num_units) : largest_(num_units) {}
    void learn(std::uint32_t unit, float gain);
    // The most that gate * rms(x) = 1 may become; infinity until enough was learned.
    double bound(std::uint32_t unit) const;

  private:
    struct Gain {
        float largest = 0;
        std::uint32_t num_samples = 0;
    };
    std::vector<Gain> largest_;  // [num_units]
};

}  // namespace moex
