// The time of a layer's round, from the times of single answers. A round ends with its slowest
// call, and a call ends with the fastest of its copies. Answer times are log-normal and
// independent. A mean is the integral of the share of answers that are still pending, over the
// logarithm of time.
// Example: median 20 ms, sigma 0.5, eight calls: 42.8 ms with one copy each, 27.6 ms with two.
// Source: "MoEx", eq. 5 to 8 and 14 to 18. The same formulas are in bench/seeds/moex_tables.mjs,
// and `moex-sim --theory` simulates the same rounds.
#pragma once

#include <span>

namespace moex {

struct AnswerTime {
    double median_ms = 0;
    // standard deviation of the time's logarithm; 0: every answer takes the median time
    double sigma = 0;
};

// Returns the standard normal distribution function at `z`.
double normal_cdf(double z);
// Returns the share of answers that arrive within `ms` (eq. 14).
double answered_share(const AnswerTime& time, double ms);
// Returns the mean of the log-normal answer time, in closed form.
double mean_ms(const AnswerTime& time);
// Fits a log-normal answer time to a hub's measurements of a worker, so that the mean and the ratio
// of the 99th percentile to the median agree. A median of 0 gives {0, 0}.
AnswerTime answer_time_of(double mean_ms, double p50_ms, double p99_ms);

// Returns the mean time of the slowest of `calls` calls, where each call ends with the fastest of
// `copies` answers (eq. 18). Both numbers may be fractions: they are means over rounds.
double slowest_ms(const AnswerTime& time, double calls, double copies);

// A worker that a round requests once or not at all, with its own answer times.
struct AskedWorker {
    AnswerTime time;
    double share = 1;  // share of the rounds that request this worker
};
// Returns the mean time of the slowest requested worker (eq. 17 with one distribution per worker).
// Every round requests at least one worker; beyond that the workers are drawn independently, on
// average as many as the shares add up to. If `copies` > 1, each call is sent to `copies` of the
// requested workers, drawn at random, and ends with the first answer.
double round_ms(std::span<const AskedWorker> workers, double copies = 1);

}  // namespace moex
