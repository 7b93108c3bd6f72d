#include "hub/net/routes/history.h"

#include <algorithm>

namespace moex::net {
namespace {

using nlohmann::json;

// The totals of the minutes that are combined into one step of the history.
struct Step {
    std::int64_t time_s = 0;
    std::uint64_t num_minutes = 0;
    HistoryMinute sum;

    void add(const HistoryMinute& minute) {
        sum.answer_tokens += minute.answer_tokens;
        sum.answers += minute.answers;
        sum.first_token_us += minute.first_token_us;
        sum.call_p50_us = std::max(sum.call_p50_us, minute.call_p50_us);
        sum.call_p99_us = std::max(sum.call_p99_us, minute.call_p99_us);
        sum.call_p999_us = std::max(sum.call_p999_us, minute.call_p999_us);
        sum.workers = std::max(sum.workers, minute.workers);
        sum.covered = num_minutes == 0 ? minute.covered : std::min(sum.covered, minute.covered);
        sum.units = minute.units;
        ++num_minutes;
    }
};

json ms_or_null(std::uint64_t us, std::uint64_t count = 1) {
    if (us == 0 || count == 0) return nullptr;
    return static_cast<double>(us) / static_cast<double>(count) / 1e3;
}

json point_json(const Step& step) {
    const HistoryMinute& sum = step.sum;
    const double seconds = 60.0 * static_cast<double>(step.num_minutes);
    return {{"time_s", step.time_s},
            {"tokens_per_s", static_cast<double>(sum.answer_tokens) / seconds},
            {"first_token_ms", ms_or_null(sum.first_token_us, sum.answers)},
            {"call_p50_ms", ms_or_null(sum.call_p50_us)},
            {"call_p99_ms", ms_or_null(sum.call_p99_us)},
            {"call_p999_ms", ms_or_null(sum.call_p999_us)},
            {"workers", sum.workers},
            {"covered", sum.covered},
            {"units", sum.units}};
}

}  // namespace

std::optional<HistorySpan> parse_history_span(std::string_view name) {
    if (name == "1h") return HistorySpan{3600, 60};
    if (name == "24h") return HistorySpan{86'400, 300};
    if (name == "7d") return HistorySpan{7 * 86'400, 1800};
    return std::nullopt;
}

json history_json(std::span<const HistoryMinute> minutes, const HistorySpan& span,
                  std::int64_t now_s) {
    std::vector<Step> steps;
    for (const HistoryMinute& minute : minutes) {
        if (minute.minute_s <= now_s - span.span_s || minute.minute_s > now_s) continue;
        const std::int64_t time_s = minute.minute_s - minute.minute_s % span.step_s;
        if (steps.empty() || steps.back().time_s != time_s) steps.push_back({.time_s = time_s});
        steps.back().add(minute);
    }

    json points = json::array();
    for (const Step& step : steps) points.push_back(point_json(step));
    return {{"now_s", now_s},
            {"span_s", span.span_s},
            {"step_s", span.step_s},
            {"points", std::move(points)}};
}

}  // namespace moex::net
