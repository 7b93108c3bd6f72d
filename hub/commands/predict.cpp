// moex-hub predict: how well each predictor knows which experts will be asked, over a text.
#include <algorithm>

#include "hub/commands/calibrate.h"
#include "hub/commands/command.h"
#include "hub/commands/load_model.h"
#include "hub/commands/output.h"
#include "hub/commands/predict_report.h"
#include "hub/commands/predict_shadow.h"
#include "hub/commands/progress.h"
#include "hub/foresight/estimator.h"
#include "hub/foresight/gate_predictors.h"
#include "hub/foresight/past_predictors.h"

namespace moex {
namespace {

// By --calibrate, or what the package holds; null without either.
Result<std::shared_ptr<const ExpertProfile>> profile_of(LoadedModel& model,
                                                        const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    if (const std::string* path = invocation.argument("--calibrate"))
        return calibrate_on({.path = *path, .tokens_max = settings.number("calibrate-tokens")},
                            *model.tokenizer, *model.decoder, *model.local, model.kv_dtype,
                            settings.on("progress"));
    auto profile = load_expert_profile(*model.package);
    if (!profile.ok() && profile.error().code == ErrorCode::not_found)
        return std::shared_ptr<const ExpertProfile>();
    if (!profile.ok()) return profile.error();
    return std::make_shared<const ExpertProfile>(*std::move(profile));
}

// Null where the package has none.
Result<std::shared_ptr<const Estimator>> estimator_of(const ModelPackage& package) {
    auto estimator = Estimator::load(package);
    if (!estimator.ok() && estimator.error().code == ErrorCode::not_found)
        return std::shared_ptr<const Estimator>();
    if (!estimator.ok()) return estimator.error();
    return std::make_shared<const Estimator>(*std::move(estimator));
}

std::vector<Contestant> contestants_of(const LoadedModel& model, const Settings& settings,
                                       const std::shared_ptr<const RouterGates>& gates,
                                       const std::shared_ptr<const ExpertProfile>& profile,
                                       const std::shared_ptr<const Estimator>& estimator) {
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

    const auto profile = profile_of(*model, invocation);
    if (!profile.ok()) return fail(profile.error().message);
    const auto estimator = estimator_of(*model->package);
    if (!estimator.ok()) return fail(estimator.error().message);
    auto gates = RouterGates::load(model->package, *model->threads);
    if (!gates.ok()) return fail(gates.error().message);
    if (gates->moe_layers().size() < 2)
        return fail("a model with one MoE layer has no layer to look ahead to");

    Contest contest(config, contestants_of(*model, settings,
                                           std::make_shared<const RouterGates>(*std::move(gates)),
                                           *profile, *estimator));
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
    if (!*profile)
        shown += "\nno popularity, no default vectors: no --calibrate TEXT, none in the package\n";
    else if (!*estimator)
        shown += "\nno estimator in the package; `moex-hub train-estimator` makes one\n";
    (void)print_now(shown + shadow_tables(*shadows));

    if (const std::string* out = invocation.argument("--out")) {
        Status written = write_reports(contest, *out, note);
        if (written.ok() && !shadows->empty()) written = write_shadow_reports(*shadows, *out, note);
        if (!written.ok()) return fail(written.error().message);
    }
    return exit_stopped;
}

}  // namespace moex
