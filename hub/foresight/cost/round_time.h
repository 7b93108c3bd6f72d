// How long a layer's round takes, from how long single answers take: the slowest of some, each the
// fastest of its copies. Answers are log-normal and independent; means are integrals of what is
// still open over the logarithm of time.
// Source: "MoEx", eq. 5 to 8 and 14 to 18. Twins: bench/seeds/moex_tables.mjs, and `moex-sim
// --theory`, which simulates what is integrated here.
#pragma once

#include <span>

namespace moex {

struct AnswerTime {
    double median_ms = 0;
    double sigma = 0;  // of its logarithm; 0: always the median
};

// Of the standard normal distribution.
double normal_cdf(double z);
// The share of answers that are there after `ms` (eq. 14).
double answered_share(const AnswerTime& time, double ms);
// In closed form.
double mean_ms(const AnswerTime& time);
// From what a hub measures of its workers: the mean, and how far the 99th percentile is from the
// median. A median of 0 gives no answer time at all: {0, 0}.
AnswerTime answer_time_of(double mean_ms, double p50_ms, double p99_ms);

// The mean of the slowest of `calls`, each the fastest of `copies` (eq. 18). Both may be fractions:
// means over rounds.
double slowest_ms(const AnswerTime& time, double calls, double copies);

// A worker that a round asks once, or leaves out; its times are its own.
struct AskedWorker {
    AnswerTime time;
    double share = 1;  // of rounds that ask it
};
// The mean of the slowest of those that are asked (eq. 17 with another distribution a worker).
// Every round asks somebody: who is asked depends on nobody else beyond that, and on average as
// many as the shares add up to. `copies` > 1: that many of those asked have the same call, any of
// them alike, and it ends with the first.
double round_ms(std::span<const AskedWorker> workers, double copies = 1);

}  // namespace moex
