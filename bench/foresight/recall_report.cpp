#include "bench/foresight/recall_report.h"

#include <cstdarg>
#include <cstdio>

#include "bench/foresight/line_chart.h"
#include "hub/model/pack/whole_file.h"

namespace moex::bench {
namespace {

__attribute__((format(printf, 2, 3))) void append(std::string& out, const char* format, ...) {
    char shown[256];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(shown, sizeof shown, format, arguments);
    va_end(arguments);
    out += shown;
}

// Returns a predictor's name with its lead, e.g. "quasi-hidden +2" for two layers ahead.
std::string title_of(const Contest& contest, std::size_t index) {
    const std::uint32_t lead = contest.lead(index);
    return text(contest.name(index), lead > 1 ? text(" +", lead) : std::string());
}

std::string predictor_table(const Contest& contest) {
    const RecallOptions& options = contest.meter(0).options();
    std::string out = "    predictor           ";
    for (const std::uint32_t fetch : options.fetches) append(out, "  recall@%-7u", fetch);
    out += "  rank";
    for (std::uint32_t rank = 0; rank < options.top_k; ++rank) append(out, " %5u", rank + 1);
    out += '\n';

    for (std::size_t i = 0; i < contest.size(); ++i) {
        const RecallMeter& meter = contest.meter(i);
        append(out, "%2zu  %-20s", i + 1, title_of(contest, i).c_str());
        for (std::size_t fetch = 0; fetch < options.fetches.size(); ++fetch)
            append(out, "  %.3f ± %.3f  ", meter.recall(fetch).mean(),
                   meter.recall(fetch).deviation());
        out += "      ";
        for (std::uint32_t rank = 0; rank < options.top_k; ++rank)
            append(out, " %.3f", meter.rank_hits(rank).mean());
        out += '\n';
    }
    return out;
}

// Makes a table with a row for each of `rows` and a column for each predictor; a missing value is a
// dash.
std::string wide_table(const Contest& contest, const char* row_title,
                       const std::vector<std::uint32_t>& rows,
                       const std::function<const Spread&(std::size_t, std::uint32_t)>& spread_of) {
    std::string out = text("  ", row_title);
    out.resize(8, ' ');
    for (std::size_t i = 0; i < contest.size(); ++i) append(out, " %5zu", i + 1);
    out += '\n';

    for (const std::uint32_t row : rows) {
        append(out, "  %5u ", row);
        for (std::size_t i = 0; i < contest.size(); ++i) {
            const Spread& spread = spread_of(i, row);
            if (spread.count() > 0)
                append(out, " %5.3f", spread.mean());
            else
                out += "     -";
        }
        out += '\n';
    }
    return out;
}

std::vector<std::uint32_t> all_layers(const Contest& contest) {
    std::vector<std::uint32_t> layers;
    for (std::uint32_t i = 0; i < contest.moe_layers().size(); ++i) layers.push_back(i);
    return layers;
}

using Rows = std::function<void(std::string& out, std::size_t index, const std::string& title)>;

Status write_csv(const Contest& contest, const std::filesystem::path& path, const std::string& note,
                 const std::string& columns, const Rows& rows) {
    std::string out = text("# ", note, "\n", columns, "\n");
    for (std::size_t i = 0; i < contest.size(); ++i) {
        std::string title;
        append(title, "%s,%u", std::string(contest.name(i)).c_str(), contest.lead(i));
        rows(out, i, title);
    }
    return write_whole_file(path, as_byte_view(out));
}

void append_predictor_row(std::string& out, const RecallMeter& meter, const std::string& title) {
    const RecallOptions& options = meter.options();
    const auto row = [&](const char* kind, std::uint32_t of, const Spread& spread) {
        append(out, "%s,%s,%u,%.5f,%.5f,%llu\n", title.c_str(), kind, of, spread.mean(),
               spread.deviation(), static_cast<unsigned long long>(spread.count()));
    };
    for (std::size_t fetch = 0; fetch < options.fetches.size(); ++fetch)
        row("recall", options.fetches[fetch], meter.recall(fetch));
    for (std::uint32_t rank = 0; rank < options.top_k; ++rank)
        row("rank_hit", rank + 1, meter.rank_hits(rank));
}

void append_layer_rows(std::string& out, const Contest& contest, std::size_t index,
                       const std::string& title) {
    const RecallMeter& meter = contest.meter(index);
    for (std::uint32_t layer = 0; layer < contest.moe_layers().size(); ++layer) {
        const Spread& recall = meter.layer_recall(layer, 0);
        const Spread& cosine = meter.layer_cosine(layer);
        if (recall.count() == 0) continue;

        append(out, "%s,%u,%.5f,%.5f,", title.c_str(), contest.moe_layers()[layer], recall.mean(),
               recall.deviation());
        if (cosine.count() > 0)
            append(out, "%.5f,%.5f\n", cosine.mean(), cosine.deviation());
        else
            out += ",\n";
    }
}

// Appends recall, hits by rank and cosine for each token position of a window.
void append_token_rows(std::string& out, const RecallMeter& meter, const std::string& title) {
    const RecallOptions& options = meter.options();
    for (std::uint32_t token = 0; token < options.tokens_max; ++token) {
        const Spread& recall = meter.at_token(token);
        const Spread& cosine = meter.cosine_at_token(token);
        if (recall.count() == 0) continue;

        append(out, "%s,%u,%.4f,%.4f", title.c_str(), token + 1, recall.mean(), recall.deviation());
        for (std::uint32_t rank = 0; rank < options.top_k; ++rank) {
            const Spread& hit = meter.rank_at_token(token, rank);
            append(out, ",%.4f,%.4f", hit.mean(), hit.deviation());
        }
        if (cosine.count() > 0)
            append(out, ",%.4f,%.4f\n", cosine.mean(), cosine.deviation());
        else
            out += ",,\n";
    }
}

LineChart layer_chart(const Contest& contest, const std::string& note) {
    LineChart chart{.title = note, .x_label = "layer", .y_label = "recall"};
    for (std::size_t i = 0; i < contest.size(); ++i) {
        ChartLine line{.name = title_of(contest, i)};
        for (std::uint32_t layer = 0; layer < contest.moe_layers().size(); ++layer) {
            const Spread& recall = contest.meter(i).layer_recall(layer, 0);
            if (recall.count() > 0)
                line.points.push_back({static_cast<double>(contest.moe_layers()[layer]),
                                       recall.mean(), recall.deviation()});
        }
        chart.lines.push_back(std::move(line));
    }
    return chart;
}

LineChart token_chart(const Contest& contest, const std::string& note) {
    LineChart chart{
        .title = note, .x_label = "token of the window", .y_label = "recall", .bar_every = 32};
    for (std::size_t i = 0; i < contest.size(); ++i) {
        ChartLine line{.name = title_of(contest, i)};
        for (std::uint32_t token = 0; token < contest.meter(i).options().tokens_max; ++token) {
            const Spread& recall = contest.meter(i).at_token(token);
            if (recall.count() > 0)
                line.points.push_back({token + 1.0, recall.mean(), recall.deviation()});
        }
        chart.lines.push_back(std::move(line));
    }
    return chart;
}

}  // namespace

std::string report_tables(const Contest& contest) {
    std::string out = predictor_table(contest);

    out += "\nrecall by MoE layer, the first is 0\n";
    out += wide_table(contest, "layer", all_layers(contest),
                      [&](std::size_t i, std::uint32_t layer) -> const Spread& {
                          return contest.meter(i).layer_recall(layer, 0);
                      });

    out += "\ncosine of the expected and the true input of the router, by MoE layer\n";
    out += wide_table(contest, "layer", all_layers(contest),
                      [&](std::size_t i, std::uint32_t layer) -> const Spread& {
                          return contest.meter(i).layer_cosine(layer);
                      });

    std::vector<std::uint32_t> places;
    for (std::uint32_t place = 1; place <= contest.meter(0).options().tokens_max; place *= 2)
        places.push_back(place);
    out += "\nrecall by token of the window, the first is 1\n";
    out += wide_table(contest, "token", places,
                      [&](std::size_t i, std::uint32_t place) -> const Spread& {
                          return contest.meter(i).at_token(place - 1);
                      });

    out += "\nits cosine by token of the window\n";
    out += wide_table(contest, "token", places,
                      [&](std::size_t i, std::uint32_t place) -> const Spread& {
                          return contest.meter(i).cosine_at_token(place - 1);
                      });
    return out;
}

Status write_reports(const Contest& contest, const std::filesystem::path& folder,
                     const std::string& note) {
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    if (failure)
        return Error{ErrorCode::io_error,
                     text(folder.string(), ": cannot be made: ", failure.message())};

    MOEX_TRY(write_csv(contest, folder / "predictors.csv", note,
                       "predictor,lead,measure,of,mean,deviation,windows",
                       [&](std::string& out, std::size_t i, const std::string& title) {
                           append_predictor_row(out, contest.meter(i), title);
                       }));
    MOEX_TRY(write_csv(contest, folder / "layers.csv", note,
                       "predictor,lead,layer,recall,recall_deviation,cosine,cosine_deviation",
                       [&](std::string& out, std::size_t i, const std::string& title) {
                           append_layer_rows(out, contest, i, title);
                       }));
    std::string columns = "predictor,lead,token,recall,recall_deviation";
    for (std::uint32_t rank = 1; rank <= contest.meter(0).options().top_k; ++rank)
        columns += text(",rank_", rank, "_hit,rank_", rank, "_deviation");
    MOEX_TRY(write_csv(contest, folder / "tokens.csv", note, columns + ",cosine,cosine_deviation",
                       [&](std::string& out, std::size_t i, const std::string& title) {
                           append_token_rows(out, contest.meter(i), title);
                       }));

    MOEX_TRY(
        write_whole_file(folder / "layers.svg", as_byte_view(svg_of(layer_chart(contest, note)))));
    return write_whole_file(folder / "tokens.svg",
                            as_byte_view(svg_of(token_chart(contest, note))));
}

}  // namespace moex::bench
