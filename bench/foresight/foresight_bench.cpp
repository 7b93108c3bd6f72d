// foresight_bench measures how well predictors and shadows predict the experts that a text
// requests, by layer and by token. Prints tables; CSV and SVG files with --out.
// example: foresight_bench --text book.txt --calibrate other-book.txt --out recall
#include <algorithm>

#include "bench/foresight/bench_command.h"
#include "bench/foresight/linear_estimator.h"
#include "bench/foresight/past_predictors.h"
#include "bench/foresight/recall_report.h"
#include "bench/foresight/shadow_report.h"
#include "bench/foresight/speculation.h"
#include "hub/commands/output.h"
#include "hub/foresight/predict/gate_predictors.h"

namespace moex::bench {
namespace {

constexpr const char* help =
    "usage: foresight_bench --text FILE [--calibrate FILE] [--shadow DIRS] [--out DIR] [options]\n"
    "  --text FILE       UTF-8 text, tokenised once as a whole\n"
    "  --calibrate FILE  another text: uses of experts and default vectors are counted on it;\n"
    "                    default: the package's own. The linear estimator is fitted to its first\n"
    "                    32 windows, and left out without it\n"
    "  --shadow DIRS     shadows made by `moex-hub pack --shadow`, with commas between them "
    "(DIR:N:\n"
    "                    N experts a token; served:N: of the model's own): recall for every\n"
    "                    alignment\n"
    "  --out DIR         tables as CSV and plots as SVG, by layer and by token\n"
    "and the settings of `moex-hub train-estimator` (--model, --window, --windows, --seed ...)\n";

// The inputs of all predictors, which are files of the package or are computed from the text of
// --calibrate TEXT. An input that no file gives stays null; `missing` then has one line with the
// reason for each such input.
struct Knowledge {
    TrialSources sources;
    std::string missing;
};

int fail(std::string_view sentence) { return bench::fail("foresight_bench", sentence); }

Result<Knowledge> knowledge_of(LoadedModel& model, const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    MOEX_ASSIGN(held, load_speculation_sources(model.package, *model.threads));
    Knowledge known{.sources = {.package = std::move(held)}};
    SpeculationSources& sources = known.sources.package;

    const std::string* path = invocation.argument("--calibrate");
    if (path) {
        const CalibrationText source{.path = *path,
                                     .tokens_max = settings.number("calibrate-tokens")};
        MOEX_ASSIGN(profile, calibrate_on(source, *model.tokenizer, *model.decoder, *model.local,
                                          model.kv_dtype, settings.on("progress")));
        sources.profile = std::move(profile);

        auto linear = fit_linear_on(source, *model.tokenizer, *model.decoder, *model.local,
                                    model.kv_dtype, *sources.gates, *sources.profile);
        if (linear.ok())
            known.sources.linear = *std::move(linear);
        else if (linear.error().code == ErrorCode::unsupported)
            known.missing += text("no ", linear.error().message, "\n");
        else
            return linear.error();
    }

    if (!sources.profile)
        known.missing +=
            "no popularity, no default vectors: no --calibrate TEXT, none in the package\n";
    else if (!sources.estimator)
        known.missing += "no estimator in the package; `moex-hub train-estimator` makes one\n";
    if (!path) known.missing += "no linear: it is fitted to --calibrate TEXT\n";
    return known;
}

std::vector<Contestant> contestants_of(const LoadedModel& model, const Settings& settings,
                                       const TrialSources& sources) {
    const auto& [gates, profile, estimator] = sources.package;
    const auto& linear = sources.linear;
    const ModelConfig& config = model.package->config();
    const std::string& seed = settings.text("seed");
    std::vector<Contestant> all;
    const auto add = [&](std::unique_ptr<ExpertPredictor> predictor, std::uint32_t lead) {
        all.push_back({std::move(predictor), lead});
    };

    add(make_random_predictor(seed.empty() ? 1 : std::stoull(seed)), 0);
    add(make_previous_token_predictor(config), 0);
    add(make_lru_predictor(config), 0);
    add(make_lfu_predictor(config), 0);
    if (profile) add(make_popularity_predictor(profile), 0);
    add(make_request_popularity_predictor(config, profile), 0);

    const auto leads = std::min<std::uint32_t>(
        4, static_cast<std::uint32_t>(gates->moe_layers().size()) - 1);
    for (std::uint32_t lead = 1; lead <= leads; ++lead) add(make_next_gate_predictor(gates), lead);
    for (std::uint32_t lead = 1; profile && lead <= leads; ++lead)
        add(make_quasi_hidden_predictor(gates, profile), lead);
    if (linear) add(make_linear_predictor(gates, profile, linear), 1);
    if (profile && estimator) add(make_estimator_predictor(gates, profile, estimator), 1);
    return all;
}

// Returns one line that names model, windows and MoE layers to which the figures apply.
std::string note_of(const LoadedModel& model, const Contest& contest, const Settings& settings,
                    std::uint32_t num_windows) {
    const ModelConfig& config = model.package->config();
    return text(model.package->name(), ": ", num_windows, " windows of ", settings.number("window"),
                " tokens, ", config.top_k, " of ", config.num_experts, " experts in ",
                contest.moe_layers().size(), " MoE layers");
}

// Measures the shadows that --shadow names. Without --shadow this function returns no results.
Result<std::vector<ShadowResult>> shadows_of(const Invocation& invocation, LoadedModel& model,
                                             std::span<const TokenId> tokens,
                                             std::uint32_t num_windows) {
    const Settings& settings = invocation.settings;
    const std::string* paths = invocation.argument("--shadow");
    if (!paths) return std::vector<ShadowResult>();
    return measure_shadows(model, *paths, tokens,
                           static_cast<std::uint32_t>(settings.number("window")), num_windows,
                           settings.on("progress"));
}

int run(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    set_log_of(settings);

    auto model = load_model(settings, [](std::string_view) {});
    if (!model.ok()) return fail(model.error().message);
    if (!model->tokenizer) return fail("the package has no tokenizer");
    const auto tokens = tokens_of_file(*invocation.argument("--text"), *model->tokenizer);
    if (!tokens.ok()) return fail(tokens.error().message);

    const ModelConfig& config = model->package->config();
    const WindowOptions options{
        .window_tokens = static_cast<std::uint32_t>(settings.number("window")),
        .num_windows = static_cast<std::uint32_t>(settings.number("windows")),
        .kv_dtype = model->kv_dtype};
    const auto num_windows = count_windows(config, tokens->size(), options);
    if (!num_windows.ok()) return fail(num_windows.error().message);
    if (const Status whole = model->package->require_all_blobs(); !whole.ok())
        return fail(whole.error().message);

    const auto known = knowledge_of(*model, invocation);
    if (!known.ok()) return fail(known.error().message);
    if (known->sources.package.gates->moe_layers().size() < 2)
        return fail("a model with one MoE layer has no layer to look ahead to");

    Contest contest(config, contestants_of(*model, settings, known->sources));
    Status walked;
    {
        ProgressLine line(settings.on("progress"));
        const auto show = window_progress(line, "predicting");
        walked = walk_windows(
            *model->decoder, *model->local, *tokens, options,
            [&](const RouteView& route) { contest.watch(route); },
            [&](std::uint32_t done, std::uint32_t total) {
                contest.end_window();
                show(done, total);
            });
    }
    if (!walked.ok()) return fail(walked.error().message);

    const auto shadows = shadows_of(invocation, *model, *tokens, *num_windows);
    if (!shadows.ok()) return fail(shadows.error().message);

    const std::string note = note_of(*model, contest, settings, *num_windows);
    std::string shown = text(note, "\nrecall: mean of MoE layers behind the first ± deviation of ",
                             "windows\n\n", report_tables(contest));
    if (!known->missing.empty()) shown += text('\n', known->missing);
    (void)print_now(shown + shadow_tables(*shadows));

    if (const std::string* out = invocation.argument("--out")) {
        Status written = write_reports(contest, *out, note);
        if (written.ok() && !shadows->empty()) written = write_shadow_reports(*shadows, *out, note);
        if (!written.ok()) return fail(written.error().message);
    }
    return exit_stopped;
}

}  // namespace
}  // namespace moex::bench

int main(int argc, char** argv) {
    int exit_code = 0;
    const auto invocation = moex::bench::parse_bench_command(
        argc, argv, moex::command_predict, {"--text", "--calibrate", "--shadow", "--out"},
        moex::bench::help, exit_code);
    return invocation ? moex::bench::run(*invocation) : exit_code;
}
