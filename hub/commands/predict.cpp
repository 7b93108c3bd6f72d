// moex-hub predict: how well each predictor knows which experts will be asked, over a text.
#include <algorithm>

#include "hub/commands/command.h"
#include "hub/commands/load_model.h"
#include "hub/commands/output.h"
#include "hub/commands/predict/calibrate.h"
#include "hub/commands/predict/predict_report.h"
#include "hub/commands/predict/predict_shadow.h"
#include "hub/commands/progress.h"
#include "hub/foresight/lossy/lossy_ways.h"
#include "hub/foresight/predict/gate_predictors.h"
#include "hub/foresight/predict/past_predictors.h"

namespace moex {
namespace {

// What predictors know: what the package holds, and of --calibrate what that text tells. What there
// is no source of stays null; `missing` then says why, a line each.
struct Knowledge {
    SpeculationSources sources;
    std::string missing;
};

Result<Knowledge> knowledge_of(LoadedModel& model, const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    MOEX_ASSIGN(held, load_speculation_sources(model.package, *model.threads));
    Knowledge known{.sources = std::move(held)};
    SpeculationSources& sources = known.sources;

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
            sources.linear = *std::move(linear);
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
                                       const SpeculationSources& sources) {
    const auto& [gates, profile, estimator, linear, layers] = sources;
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

// What the figures are of, in one line.
std::string note_of(const LoadedModel& model, const Contest& contest, const Settings& settings,
                    std::uint32_t num_windows) {
    const ModelConfig& config = model.package->config();
    return text(model.package->name(), ": ", num_windows, " windows of ", settings.number("window"),
                " tokens, ", config.top_k, " of ", config.num_experts, " experts in ",
                contest.moe_layers().size(), " MoE layers");
}

// Nothing without --shadow.
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

}  // namespace

int run_predict(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    set_log_of(settings);

    auto model = load_model(
        settings, [](std::string_view) {},
        invocation.check_only ? LoadParts::texts : LoadParts::everything);
    if (!model.ok()) return fail(model.error().message);
    if (!model->tokenizer) return fail("the package has no tokenizer; predict needs one");
    const auto tokens = tokens_of_file(*invocation.argument("--text"), *model->tokenizer);
    if (!tokens.ok()) return fail(tokens.error().message);

    const ModelConfig& config = model->package->config();
    const WindowOptions options{
        .window_tokens = static_cast<std::uint32_t>(settings.number("window")),
        .num_windows = static_cast<std::uint32_t>(settings.number("windows")),
        .kv_dtype = model->kv_dtype};
    const auto num_windows = count_windows(config, tokens->size(), options);
    if (!num_windows.ok()) return fail(num_windows.error().message);
    if (invocation.check_only) return exit_stopped;
    if (const Status whole = model->package->require_all_blobs(); !whole.ok())
        return fail(text(whole.error().message, "; predict computes on this machine"));

    const auto known = knowledge_of(*model, invocation);
    if (!known.ok()) return fail(known.error().message);
    if (known->sources.gates->moe_layers().size() < 2)
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

}  // namespace moex
