#include "hub/commands/model/model_rows.h"

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "protocol/json.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr int copies_of_table_1 = 4, copies_of_table_3 = 3;
constexpr int drafts_max = 8;

std::string h_of(int copies) { return text("h=", copies); }

// The times in ms that the paper adds up for one layer, and the spread (sigma) that its Table 1
// uses.
LayerTimes paper_times(double rtt_ms, double sigma) {
    return {.hub_ms = 1.5, .readback_ms = 0.2, .rtt_ms = rtt_ms, .expert_ms = 0.7, .sigma = sigma};
}

void add_paper_table_1(std::vector<ModelRow>& rows) {
    const double paper_ms[] = {51.2, 28.7, 23.1, 20.4}, saved[] = {0, 44.0, 54.9, 60.2};
    const AnswerTime answer{.median_ms = 20, .sigma = 0.5};
    for (int copies = 1; copies <= copies_of_table_1; ++copies) {
        const double ms = slowest_ms(answer, 8, copies);
        rows.push_back({"Table 1", h_of(copies), "ms", paper_ms[copies - 1], ms,
                        "eq. 18: slowest of 8, log-normal, median 20 ms, sigma 0.5"});
        if (copies > 1)
            rows.push_back({"Table 1", h_of(copies), "saved %", saved[copies - 1],
                            100 * (1 - ms / slowest_ms(answer, 8, 1)), "of h=1"});
        rows.push_back({"Table 1", h_of(copies), "ms", std::nullopt, slowest_ms(answer, 2, copies),
                        "two workers that stall with all their calls at once"});
    }
}

void add_paper_table_3(std::vector<ModelRow>& rows) {
    struct Network {
        const char* name;
        double rtt_ms, paper_ms[copies_of_table_3];
    };
    const Network networks[] = {{"LAN", 0.5, {163, 150, 146}},
                                {"WiFi", 2, {307, 250, 234}},
                                {"WAN city", 10, {1075, 922, 874}},
                                {"WAN cross", 50, {4915, 4762, 4714}}};
    for (const auto& [name, rtt_ms, paper_ms] : networks) {
        rows.push_back({"Table 3", text(name, " h=1"), "ms", paper_ms[0],
                        pass_ms({}, paper_times(rtt_ms, 0), 1, 1, 16, Stalls::calls),
                        "eq. 10 and 12, one round trip a layer, no spread"});
        for (int copies = 1; copies <= copies_of_table_3; ++copies)
            rows.push_back({"Table 3", text(name, " ", h_of(copies)), "ms", paper_ms[copies - 1],
                            pass_ms({}, paper_times(rtt_ms, 0.5), 1, copies, 16, Stalls::calls),
                            "its round log-normal, sigma 0.5, slowest of 8"});
    }
}

// The speed of decoding with drafts: a step has a row for each draft and for the last token, and
// the drafts are computed before it.
void add_drafts(const ModelQuestion& question, std::vector<ModelRow>& rows) {
    const auto step_ms = [&](int drafts) {
        return drafts * question.draft_ms + pass_ms(question.shape, question.times, drafts + 1.0, 1,
                                                    question.workers, Stalls::workers);
    };
    const double plain_ms = step_ms(0);
    for (int drafts = 1; drafts <= drafts_max; ++drafts) {
        const double tokens = tokens_per_step(question.acceptance, drafts);
        const std::string row = text(drafts, drafts == 1 ? " draft" : " drafts");
        rows.push_back({"drafts", row, "tokens", std::nullopt, tokens,
                        text("a step, if ", question.acceptance, " of the drafts are accepted")});
        rows.push_back({"drafts", row, "ms", std::nullopt, step_ms(drafts) / tokens,
                        text("a token; steps of ", drafts + 1, " rows, h=1")});
        rows.push_back({"drafts", row, "x", std::nullopt, plain_ms * tokens / step_ms(drafts),
                        "as fast as without drafts"});
    }
}

// The speed where contributors compute layers whole. The hub keeps the first two layers and the
// last one (hub/dispatch/span/span_options.h).
void add_spans(const ModelQuestion& question, std::vector<ModelRow>& rows) {
    constexpr double layers_here = 3;
    if (question.shape.num_moe_layers <= layers_here) return;
    const double plain_ms = pass_ms(question.shape, question.times, 1, 1, question.workers,
                                    Stalls::workers);
    for (const int spans : {1, 2, 4, 8}) {
        if (spans > question.shape.num_moe_layers - layers_here) return;
        const double ms = spans_ms(question.shape, question.times, 1, spans, layers_here,
                                   question.workers);
        const std::string row = text(spans, spans == 1 ? " span" : " spans");
        rows.push_back({"spans", row, "ms", std::nullopt, ms,
                        text("a token: ", spans + layers_here, " round trips instead of ",
                             question.shape.num_moe_layers)});
        rows.push_back({"spans", row, "x", std::nullopt, plain_ms / ms, "as fast as experts, h=1"});
    }
}

std::string cell(double value) {
    char shown[32];
    const double size = std::abs(value);
    std::snprintf(shown, sizeof shown, "%.*f", size >= 100 ? 1 : size >= 1 ? 2 : 3, value);
    return shown;
}

std::vector<std::string> cells_of(const ModelRow& row) {
    return {row.table,       row.row, row.quantity, row.beside ? cell(*row.beside) : std::string(),
            cell(row.value), row.how};
}

std::vector<std::string> titles(const RowColumns& columns) {
    return {"table", "row", "quantity", std::string(columns.beside), std::string(columns.value),
            "how"};
}

}  // namespace

std::vector<ModelRow> paper_rows() {
    std::vector<ModelRow> rows;
    add_paper_table_1(rows);
    add_paper_table_3(rows);

    const RoundShape printed{
        .num_moe_layers = 46, .hidden_size = 4096, .moe_intermediate_size = 2048};
    rows.push_back({"eq. 3", "its shape", "GB", 9.2, worker_bytes(printed, 4, 2, 16) / 1e9,
                    "4 bits, 16 workers, two copies of each expert"});
    rows.push_back({"eq. 3", "its shape", "GB", std::nullopt,
                    worker_bytes(printed, 4.25, 2, 16) / 1e9, "4.25 bits: with scales and zeros"});
    rows.push_back({"eq. 3", "true shape", "GB", std::nullopt, worker_bytes({}, 4.25, 2, 16) / 1e9,
                    "48 layers of 2048 x 768, 4.25 bits"});
    // The paper gives no figure for eq. 13. The bound is a chunk in which the rows behind the first
    // one take no time.
    for (const double chunk : {1.0, 16.0, 256.0})
        rows.push_back({"eq. 13", text("WiFi, ", chunk, " rows"), "rows/s", std::nullopt,
                        1e3 * chunk / pass_ms({}, paper_times(2, 0), chunk, 1, 16, Stalls::calls),
                        "one round trip, rows beyond the first free: the bound"});
    return rows;
}

std::vector<ModelRow> model_rows(const ModelQuestion& question) {
    const auto& [name, shape, times, bits, workers, replicas, copies_max, chunk, acceptance,
                 draft_ms] = question;
    std::vector<ModelRow> rows;
    rows.push_back({"eq. 3", name, "GB", std::nullopt,
                    worker_bytes(shape, bits, std::min(replicas, workers), workers) / 1e9,
                    text("a worker's experts: ", workers, " workers, ", replicas,
                         " of each expert, ", bits, " bits a weight")});

    const struct {
        Stalls stalls;
        std::string how;
    } kinds[] = {{Stalls::calls, "each expert stalls by itself"},
                 {Stalls::workers, "a worker stalls with all its experts at once"}};
    for (int copies = 1; copies <= copies_max; ++copies)
        for (const auto& [stalls, how] : kinds) {
            rows.push_back({"eq. 18", h_of(copies), "ms", std::nullopt,
                            dispatch_ms(shape, times, 1, copies, workers, stalls),
                            text("a round of ", shape.top_k, " experts; ", how)});
            const double ms = pass_ms(shape, times, 1, copies, workers, stalls);
            rows.push_back({"eq. 12", h_of(copies), "ms", std::nullopt, ms,
                            text("a token over ", shape.num_moe_layers, " layers; ", how)});
            const double prompt_ms = pass_ms(shape, times, chunk, copies, workers, stalls);
            rows.push_back({"eq. 13", h_of(copies), "rows/s", std::nullopt, 1e3 * chunk / prompt_ms,
                            text("a prompt in chunks of ", chunk, " rows; ", how)});
        }
    add_spans(question, rows);
    if (acceptance > 0) add_drafts(question, rows);
    return rows;
}

std::vector<ModelRow> forecast_rows(const std::string& model, const HubFigures& figures) {
    const StepForecast said = forecast(figures);
    double asked = 0;
    for (const AskedWorker& worker : figures.workers) asked += worker.share;
    const double rows_a_step = figures.rows / figures.steps;

    std::vector<ModelRow> rows;
    const auto add = [&](const char* row, const char* quantity, std::optional<double> measured,
                         double value, const std::string& how) {
        rows.push_back({model, row, quantity, measured, value, how});
    };
    add("hub", "ms", said.hub_ms, said.hub_ms,
        text("its own part of a pass of ", cell(rows_a_step), " rows, taken as measured"));
    add("round", "ms", 1e3 * figures.waited_s / figures.rounds, said.round_ms,
        text("slowest of ", cell(asked), " answers from ", figures.workers.size(),
             " workers, h=", figures.copies, " (eq. 17)"));
    add("pass", "ms", said.measured_ms, said.step_ms,
        text("hub and ", cell(figures.rounds / figures.steps), " rounds (eq. 12)"));
    add("pass", "rows/s", 1e3 * rows_a_step / said.measured_ms, 1e3 * rows_a_step / said.step_ms,
        "of prompts and answers together (eq. 13)");
    add("pass", "off %", std::nullopt, 100 * said.deviation(), "predicted beside measured");
    if (figures.copies > 1) {
        HubFigures together = figures;
        together.copies = 1;
        for (AskedWorker& worker : together.workers) worker.share /= figures.copies;
        add("pass, together", "ms", said.measured_ms, forecast(together).step_ms,
            "the same where all copies of a call stall at once: a second one brings nothing");
    }
    if (figures.calls_local > 0)
        add("calls", "local %", 100 * figures.calls_local / figures.calls, 0,
            "answered by the hub itself, which no worker's time includes");
    return rows;
}

std::string rows_as_table(const std::vector<ModelRow>& rows, const RowColumns& columns) {
    std::vector<std::vector<std::string>> all{titles(columns)};
    for (const ModelRow& row : rows) all.push_back(cells_of(row));
    std::vector<std::size_t> widths(all[0].size());
    for (const auto& cells : all)
        for (std::size_t i = 0; i < cells.size(); ++i)
            widths[i] = std::max(widths[i], cells[i].size());

    std::string out;
    for (const auto& cells : all) {
        for (std::size_t i = 0; i + 1 < cells.size(); ++i) {
            const std::string blanks(widths[i] - cells[i].size(), ' ');
            const bool is_number = i == 3 || i == 4;
            out += is_number ? blanks + cells[i] : cells[i] + blanks;
            out += "  ";
        }
        out += cells.back() + '\n';
    }
    return out;
}

std::string rows_as_csv(const std::vector<ModelRow>& rows, const RowColumns& columns) {
    // Quotes a CSV cell that has a comma, a quote or a line break, and doubles its quotes (RFC
    // 4180).
    const auto quoted = [](std::string cell) {
        if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
        for (std::size_t at = 0; (at = cell.find('"', at)) != std::string::npos; at += 2)
            cell.insert(at, 1, '"');
        return '"' + cell + '"';
    };
    std::string out;
    const auto line = [&](const std::vector<std::string>& cells) {
        for (std::size_t i = 0; i < cells.size(); ++i)
            out += text(i == 0 ? "" : ",", quoted(cells[i]));
        out += '\n';
    };
    line(titles(columns));
    for (const ModelRow& row : rows) line(cells_of(row));
    return out;
}

std::string rows_as_json(const std::vector<ModelRow>& rows, const RowColumns& columns) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const ModelRow& row : rows) {
        nlohmann::ordered_json one{
            {"table", row.table}, {"row", row.row}, {"quantity", row.quantity}};
        one[std::string(columns.beside)] = row.beside ? nlohmann::ordered_json(*row.beside)
                                                      : nlohmann::ordered_json();
        one[std::string(columns.value)] = row.value;
        one["how"] = row.how;
        out.push_back(std::move(one));
    }
    return dump_json(out) + '\n';
}

}  // namespace moex
