// Decides which workers' answers are believed and which answers are computed again. It keeps one
// record per worker key. Events go in; "check these rows" and "this key is banned" come out. The
// class knows no worker, no frame and no clock.
//
// A worker without a record is unproven: none of its answers counts before a check of the answer,
// at first of all of its rows. After `to_prove` right rows, a row is checked with the probability
//     q(n) = max(rate_min, to_prove / n),  n = rows that the worker has answered so far,
// and at least one row per answer. After `to_prove` right answers as well the worker is proven: its
// answers count at once, and rows are checked afterwards, at the same rate. The remaining risks:
// - A worker lies in a share p of its answers, whatever the request. Nothing false counts before it
//   is proven, and it becomes proven with probability (1 - p)^to_prove, which is 3e-5 for p = 0.01.
//   If right rows alone proved a worker, the probability would be 0.28 for answers of eight rows.
//   Such answers are usual with several users, and with --deterministic also for one token, since a
//   row is a pair then.
// - A worker spoils one row of an answer with many rows. A share q(n) of these lies is seen. With r
//   rows per answer and lies in a share p of the answers, the worker is like one that sends answers
//   of one row and lies in p / r of them. Example: a tenth of all workers spoil one row in one of
//   100 answers of eight rows. Then 5e-5 of the rows that count are false. (7e-5 if right rows
//   alone proved a worker. 1e-8 if all rows of 1,024 answers were checked, at two and a half times
//   the judge's work for each new key, or eight times for answers of forty rows.)
// - A proven worker starts to lie after n rows. On average 1 / q(n) - 1 false rows count before the
//   first is seen; from then on all of its rows are checked. The number of these false rows is at
//   most n / to_prove, 0.1 % of the worker's right rows, and at most 1 / rate_min - 1 = 255 rows in
//   all:
//     n = 1,024   q = 1       0 rows         n = 65,536    q = 1/64     63 rows
//     n = 8,192   q = 1/8     7 rows         n >= 262,144  q = 1/256   255 rows
//   A reply that is still running and to which the worker contributed reports the lie (`doubted`).
//
// A lie makes a worker suspected: its record starts anew, and all of its rows are checked. The lie
// number `lies_max` closes the key for `ban_for`, and for twice as long each further time. An
// address counts less than a key, since many people may share one: a lie from it raises the rate
// for new keys and bans no worker. A lie from loopback raises no rate, because a proxy connects
// from there.
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
    bool on = false;     // the command `serve` turns the checks on
    bool judge = false;  // the hub has the expert weights, and the driver carries out CheckAnswer
    std::uint32_t to_prove = 1024;  // right rows, and right answers, that prove a worker
    double rate_min = 1.0 / 256;
    std::uint32_t lies_max = 3;
    Duration lie_forgotten_after = 24h;  // time without a lie after which one lie is forgotten
    Duration ban_for = 10min, ban_max = 720h;
    // time for which a lie from an address raises the rate of checks for new keys from there
    Duration address_suspect_for = 1h;
    // seed of the sampling; it must be secret in a hub that strangers can join
    std::uint64_t seed = 1;
};

enum class Trust : std::uint8_t { unproven, suspected, proven, banned };
const char* trust_name(Trust trust);  // "unproven", ...

// The decision about the check of one answer.
struct CheckPlan {
    bool hold = false;  // the answer does not count before the verdict on `rows`
    // numbers of the rows to check, ascending; at least one if `hold`
    std::vector<std::uint32_t> rows;
    // pairs that the key had answered when the check was planned; on_verdict() needs it
    std::uint64_t mark = 0;
};

// The record of a key, as one hub hands it to another: counts since the key was last suspected, and
// its lies. Bans and credit are stored elsewhere.
struct TrustRecord {
    std::uint64_t rows_answered = 0, rows_verified = 0, answers_verified = 0;
    std::uint64_t rows_verified_ever = 0;
    std::uint32_t lies = 0, times_suspected = 0;
    bool suspected = false;
    TimePoint lied_at{};
    friend bool operator==(const TrustRecord&, const TrustRecord&) = default;
};

class AnswerTrust {
  public:
    explicit AnswerTrust(const CheckOptions& options);

    Trust trust(std::string_view key, TimePoint now) const;
    // Returns the share of this key's rows that are checked: q(n) in the comment at the head of
    // this file.
    double rate(std::string_view key, TimePoint now) const;

    // Plans the check of an answer with `num_rows` rows, and counts the rows. `odd`: the answer
    // looks unlike an honest one, so that it is held whatever the worker's record is. `address` is
    // 0 for loopback.
    CheckPlan plan(std::string_view key, std::uint64_t address, std::uint32_t num_rows,
                   std::uint32_t num_pairs, bool odd, TimePoint now);
    // Records the verdict on the rows of `plan`. Returns true if the verdict bans the key.
    bool on_verdict(std::string_view key, std::uint64_t address, Verdict verdict,
                    const CheckPlan& plan, TimePoint now);

    // Resets the worker's record. Call it when the worker's answer contradicted the answer of
    // another worker, and no third worker could decide.
    void suspect(std::string_view key);

    // Returns how long the key may not join; zero if it is not banned.
    Duration banned_for(std::string_view key, TimePoint now) const;
    void ban(std::string_view key, TimePoint now);
    void lift(std::string_view key);

    // Returns the number of credited pairs. A pair is credited when its own row, or a later row of
    // the same worker, was found right. Pairs after the last checked row wait for the next check; a
    // false answer removes them.
    std::uint64_t pairs_credited(std::string_view key) const;
    std::uint64_t rows_verified(std::string_view key) const;
    std::uint32_t lies(std::string_view key) const;
    std::size_t num_records() const { return records_.size(); }

    TrustRecord record(std::string_view key) const;  // zeros for a key without a record
    void set_record(std::string_view key, const TrustRecord& record);

  private:
    struct Record {
        std::string key;
        // counts since the worker was last suspected; answers_verified: answers that were held and
        // found right
        std::uint64_t rows_answered = 0, rows_verified = 0, answers_verified = 0;
        std::uint64_t rows_verified_ever = 0;
        // pairs_settled: answered pairs that were either credited or struck out
        std::uint64_t pairs_answered = 0, pairs_settled = 0, pairs_credited = 0;
        std::uint32_t lies = 0, bans = 0, times_suspected = 0;
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
    // records of all keys, most recently used first; beyond a bound the least recently used are
    // forgotten
    Records recent_;
    // index of `recent_` by key; the string views point into `recent_`
    std::unordered_map<std::string_view, Records::iterator> records_;
    std::unordered_map<std::uint64_t, Address> addresses_;
};

// Limits the share of work for workers without a record, where proven workers could do the work, to
// a fifth of the recent pairs. Without this limit an attacker with a thousand keys would get most
// of the calls, and the hub would compute them all again.
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

// The usual size of an expert's output: rms(y) over gate * rms(x), learned from pairs that were
// computed again. An answer is odd if it exceeds four times the largest size seen, or if it is
// zeros only.
class ExpertGains {
  public:
    explicit ExpertGains(std::size_t num_units) : largest_(num_units) {}
    void learn(std::uint32_t unit, float gain);
    // Returns the largest plausible rms(y) for gate * rms(x) = 1. The bound is infinity until
    // enough samples were learned.
    double bound(std::uint32_t unit) const;

  private:
    struct Gain {
        float largest = 0;
        std::uint32_t num_samples = 0;
    };
    std::vector<Gain> largest_;  // [num_units]: largest gain of each unit
};

}  // namespace moex
