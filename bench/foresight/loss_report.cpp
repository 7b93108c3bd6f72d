#include "bench/foresight/loss_report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "bench/foresight/contest.h"
#include "bench/foresight/loss_trial.h"
#include "bench/foresight/lost_calls.h"
#include "bench/foresight/speculation.h"
#include "hub/commands/calibrate.h"
#include "hub/foresight/predict/gate_predictors.h"
#include "hub/model/pack/whole_file.h"

namespace moex::bench {
namespace {

// Layers for which `hybrid` asks the estimator.
constexpr std::uint32_t hybrid_layers_max = 2;
// Windows of the text by which these layers are chosen.
constexpr std::uint32_t calibration_windows_max = 8;
constexpr std::uint64_t lost_seed = 1;

std::vector<std::string> names_of(const std::string& modes) {
    std::vector<std::string> names;
    std::istringstream parts(modes);
    for (std::string name; std::getline(parts, name, ',');) names.push_back(name);
    return names;
}

// Returns the share of calls that the mode "lost:P" loses, P in percent; nullopt for the names of
// other modes.
Result<std::optional<double>> lost_share(const std::string& name) {
    constexpr std::string_view prefix = "lost:";
    if (!name.starts_with(prefix)) return std::optional<double>();
    double percent = 0;
    const auto read = std::from_chars(name.data() + prefix.size(), name.data() + name.size(),
                                      percent);
    if (read.ec != std::errc() || read.ptr != name.data() + name.size() || !(percent > 0) ||
        percent > 100)
        return Error{ErrorCode::invalid_argument,
                     text("\"", name, "\", wanted lost:P with P percent of calls")};
    return std::optional(percent / 100);
}

// Returns the MoE layers, counted from 0, for which the quasi-hidden state has the lowest recall.
Result<std::vector<std::uint32_t>> worst_layers(LoadedModel& model, const TrialSources& sources,
                                                const LossReportOptions& options) {
    MOEX_ASSIGN(tokens, tokens_of_file(options.calibration_path, *model.tokenizer,
                                       std::uint64_t{calibration_windows_max} *
                                           options.perplexity.window_tokens));
    std::vector<Contestant> contestants;
    contestants.push_back(
        {make_quasi_hidden_predictor(sources.package.gates, sources.package.profile), 1});
    Contest contest(model.package->config(), std::move(contestants));
    MOEX_TRY(walk_windows(
        *model.decoder, *model.local, tokens,
        {.window_tokens = options.perplexity.window_tokens, .kv_dtype = model.kv_dtype},
        [&](const RouteView& route) { contest.watch(route); },
        [&](std::uint32_t, std::uint32_t) { contest.end_window(); }));

    std::vector<std::uint32_t> layers;
    for (std::uint32_t i = 1; i < contest.moe_layers().size(); ++i) layers.push_back(i);
    std::stable_sort(layers.begin(), layers.end(), [&](std::uint32_t a, std::uint32_t b) {
        return contest.meter(0).layer_recall(a, 0).mean() <
               contest.meter(0).layer_recall(b, 0).mean();
    });
    layers.resize(std::min<std::size_t>(layers.size(), hybrid_layers_max));
    return layers;
}

struct Mode {
    std::string name;
    std::unique_ptr<Speculator> speculator;  // null if the mode loses calls
    std::unique_ptr<ExpertBackend> experts;  // null if the mode has a speculator
};

Result<std::shared_ptr<const LinearEstimator>> linear_of(LoadedModel& model,
                                                         const TrialSources& sources,
                                                         const LossReportOptions& options) {
    return fit_linear_on(
        {.path = options.calibration_path, .window_tokens = options.perplexity.window_tokens},
        *model.tokenizer, *model.decoder, *model.local, model.kv_dtype, *sources.package.gates,
        *sources.package.profile);
}

// Only the modes `linear` and `hybrid` need the calibration text.
Result<TrialSources> sources_of(LoadedModel& model, const LossReportOptions& options) {
    MOEX_ASSIGN(package, load_speculation_sources(model.package, *model.threads));
    TrialSources sources{.package = std::move(package)};
    if (options.calibration_path.empty() || !sources.package.profile) return sources;

    if (options.modes.find("hybrid") != std::string::npos) {
        MOEX_ASSIGN(layers, worst_layers(model, sources, options));
        sources.estimator_layers = std::move(layers);
    }
    if (options.modes.find("linear") != std::string::npos) {
        MOEX_ASSIGN(linear, linear_of(model, sources, options));
        sources.linear = std::move(linear);
    }
    return sources;
}

Result<std::vector<Mode>> make_modes(const LoadedModel& model, const TrialSources& sources,
                                     const LossReportOptions& options) {
    std::vector<Mode> modes;
    for (const std::string& name : names_of(options.modes)) {
        Mode mode{.name = name};
        MOEX_ASSIGN(share, lost_share(name));
        if (share) {
            if (!sources.package.profile)
                return Error{ErrorCode::not_found, text(name,
                                                        ": no default vectors; `moex-hub "
                                                        "pack --calibrate` makes them")};
            mode.experts = make_lost_calls(*model.local, sources.package.profile, *share,
                                           lost_seed);
        } else {
            MOEX_ASSIGN(what, parse_speculation(name));
            auto made = Speculator::create(what, sources);
            if (!made.ok()) return Error{made.error().code, text(name, ": ", made.error().message)};
            mode.speculator = *std::move(made);
        }
        modes.push_back(std::move(mode));
    }
    return modes;
}

std::string excess_text(const Loss& exact, const Loss& loss) {
    char shown[64];
    std::snprintf(shown, sizeof shown, "%+.2f %%",
                  100 * (loss.perplexity.perplexity / exact.perplexity.perplexity - 1));
    return shown;
}

double same_first_share(const Loss& loss) {
    return static_cast<double>(loss.same_first) /
           static_cast<double>(loss.perplexity.num_predictions);
}

// Returns the mean hit rate over the MoE layers after the first: 1 if no route was guessed,
// `unknown` if the mode computes no router to compare with.
std::string hit_text(const Mode* mode, const char* unknown) {
    double sum = 1;
    std::uint32_t count = 1;
    if (mode && mode->speculator && mode->speculator->moe_layers().size() > 1) {
        if (mode->speculator->replaces_router(mode->speculator->moe_layers().back()))
            return unknown;
        count = static_cast<std::uint32_t>(mode->speculator->moe_layers().size()) - 1;
        sum = 0;
        for (std::uint32_t i = 1; i <= count; ++i) sum += mode->speculator->hit_rate(i);
    }
    char shown[32];
    std::snprintf(shown, sizeof shown, "%.5f", sum / count);
    return shown;
}

std::string table_of(std::span<const Mode> modes, std::span<const Loss> losses) {
    std::string out =
        "experts                 perplexity   excess    nats ± windows      KL  same first    "
        "hit\n";
    for (std::size_t i = 0; i < losses.size(); ++i) {
        const Loss& loss = losses[i];
        char shown[160];
        std::snprintf(shown, sizeof shown,
                      "%-22s  %10.3f  %8s  %.4f ± %.4f  %.4f      %.4f  %.5s\n",
                      i == 0 ? "exact" : modes[i - 1].name.c_str(), loss.perplexity.perplexity,
                      i == 0 ? "" : excess_text(losses[0], loss).c_str(), loss.nll_excess.mean(),
                      loss.nll_excess.deviation(), loss.mean_kl, same_first_share(loss),
                      hit_text(i == 0 ? nullptr : &modes[i - 1], "-").c_str());
        out += shown;
    }
    return out;
}

std::string csv_of(std::span<const Mode> modes, std::span<const Loss> losses) {
    std::string out = "experts,perplexity,excess,nats_excess,deviation,kl,same_first,hit,windows\n";
    for (std::size_t i = 0; i < losses.size(); ++i) {
        const Loss& loss = losses[i];
        char shown[192];
        std::snprintf(shown, sizeof shown, "%s,%.4f,%.5f,%.5f,%.5f,%.5f,%.5f,%s,%u\n",
                      i == 0 ? "exact" : modes[i - 1].name.c_str(), loss.perplexity.perplexity,
                      loss.perplexity.perplexity / losses[0].perplexity.perplexity - 1,
                      loss.nll_excess.mean(), loss.nll_excess.deviation(), loss.mean_kl,
                      same_first_share(loss),
                      hit_text(i == 0 ? nullptr : &modes[i - 1], "").c_str(),
                      loss.perplexity.num_windows);
        out += shown;
    }
    return out;
}

}  // namespace

Status check_modes(const std::string& modes) {
    for (const std::string& name : names_of(modes)) {
        MOEX_ASSIGN(share, lost_share(name));
        if (share) continue;
        if (const auto what = parse_speculation(name); !what.ok()) return what.error();
    }
    return {};
}

Result<std::string> report_losses(LoadedModel& model, std::span<const TokenId> tokens,
                                  const LossReportOptions& options) {
    MOEX_ASSIGN(sources, sources_of(model, options));
    MOEX_ASSIGN(modes, make_modes(model, sources, options));
    std::vector<LossyMode> lossy;
    lossy.reserve(modes.size());
    for (const Mode& mode : modes) lossy.push_back({mode.speculator.get(), mode.experts.get()});

    std::vector<Loss> losses;
    {
        ProgressLine line(options.progress);
        MOEX_ASSIGN(measured, measure_loss(*model.decoder, *model.local, lossy, tokens,
                                           options.perplexity, window_progress(line, "reading")));
        losses = std::move(measured);
    }
    if (!options.out_path.empty())
        MOEX_TRY(write_whole_file(options.out_path, as_byte_view(csv_of(modes, losses))));
    return table_of(modes, losses);
}

}  // namespace moex::bench
