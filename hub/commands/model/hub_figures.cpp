#include "hub/commands/model/hub_figures.h"

#include <charconv>

#include "protocol/json.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::size_t status_bytes_max = 64u << 20;

// Returns the number in a field of a JSON object, or 0 if the field is missing or is not a number.
double number_of(const Json& object, std::string_view name) {
    const Json* const found = find_member(object, name);
    return found && found->is_number() ? found->get<double>() : 0;
}
const Json& part_of(const Json& object, std::string_view name) {
    static const Json nothing;
    const Json* const found = find_member(object, name);
    return found ? *found : nothing;
}
std::string text_of(const Json& object, std::string_view name) {
    const Json& found = part_of(object, name);
    return found.is_string() ? found.get<std::string>() : std::string();
}

// Reads a worker's figures. If the worker reports no mean, the mean is estimated from the median:
// p50_ms is the upper edge of a histogram step, and the estimate is half a step below that edge.
WorkerLook worker_of(const Json& worker) {
    const Json& split = part_of(worker, "split");
    WorkerLook look{.groups = number_of(worker, "groups_sent"),
                    .p50_ms = number_of(worker, "p50_ms"),
                    .p99_ms = number_of(worker, "p99_ms")};
    look.mean_ms = number_of(split, "groups") > 0 ? number_of(split, "group_ms")
                                                  : look.p50_ms / 1.06;
    return look;
}

double copies_of(const std::string& hedge) {
    const std::string fixed = "fixed ";
    double copies = 1;
    if (hedge.starts_with(fixed))
        std::from_chars(hedge.data() + fixed.size(), hedge.data() + hedge.size(), copies);
    return std::max(copies, 1.0);
}

}  // namespace

Result<HubLook> read_status(std::string_view json) {
    MOEX_ASSIGN(status, parse_json_object(json, status_bytes_max, "/api/status"));
    const Json &engine = part_of(status, "engine"), &calls = part_of(status, "calls");
    if (!find_member(engine, "experts_waited_s"))
        return Error{ErrorCode::bad_field,
                     "/api/status has no engine.experts_waited_s: it is of an older hub, or "
                     "of no hub"};

    HubLook look;
    look.model = text_of(part_of(status, "model"), "name");
    look.figures = {.steps = number_of(engine, "steps"),
                    .rows = number_of(engine, "rows"),
                    .rounds = number_of(calls, "rounds"),
                    .step_s = number_of(engine, "steps_s"),
                    .waited_s = number_of(engine, "experts_waited_s"),
                    .copies = copies_of(text_of(part_of(status, "options"), "hedge")),
                    .calls_local = number_of(calls, "local"),
                    .calls = number_of(calls, "calls"),
                    .workers = {}};
    for (const Json& worker : part_of(status, "workers"))
        look.workers[static_cast<std::uint64_t>(number_of(worker, "id"))] = worker_of(worker);
    return look;
}

Result<HubFigures> figures_over(std::span<const HubLook> looks) {
    const HubLook &first = looks.front(), &last = looks.back();
    const HubFigures &from = first.figures, &to = last.figures;
    if (to.steps < from.steps || to.step_s < from.step_s)
        return Error{ErrorCode::bad_field, "the hub was started again between the looks"};
    HubFigures out = to;
    out.steps -= from.steps;
    out.rows -= from.rows;
    out.rounds -= from.rounds;
    out.step_s -= from.step_s;
    out.waited_s -= from.waited_s;
    out.calls_local -= from.calls_local;
    out.calls -= from.calls;
    if (out.steps <= 0 || out.rounds <= 0)
        return Error{ErrorCode::unavailable,
                     "no layer was exchanged with a worker in that time: ask the hub something"};

    for (const auto& [id, worker] : last.workers) {
        const auto before = first.workers.find(id);
        const double groups = worker.groups -
                              (before == first.workers.end() ? 0 : before->second.groups);
        double sum_ms = 0, count = 0;
        for (const HubLook& look : looks.subspan(1))
            if (const auto found = look.workers.find(id); found != look.workers.end())
                sum_ms += found->second.mean_ms, ++count;
        if (groups > 0 && sum_ms > 0)
            out.workers.push_back(
                {.time = answer_time_of(sum_ms / count, worker.p50_ms, worker.p99_ms),
                 .share = groups / out.rounds});
    }
    if (out.workers.empty())
        return Error{ErrorCode::unavailable, "no worker that is there now was asked in that time"};
    return out;
}

}  // namespace moex
