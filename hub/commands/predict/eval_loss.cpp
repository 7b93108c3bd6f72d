#include "hub/commands/predict/eval_loss.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "hub/commands/predict/calibrate.h"
#include "hub/foresight/lossy/loss_trial.h"
#include "hub/foresight/lossy/lossy_ways.h"
#include "hub/foresight/lossy/lost_calls.h"
#include "hub/foresight/predict/contest.h"
#include "hub/foresight/predict/gate_predictors.h"
#include "hub/model/pack/whole_file.h"

namespace moex {
namespace {

constexpr std::uint32_t hybrid_layers_max = 2;        // that the estimator is asked about
constexpr std::uint32_t calibration_windows_max = 8;  // that say which
constexpr std::uint64_t lost_seed = 1;

std::vector<std::string> names_of(const std::string& ways) {
    std::vector<std::string> names;
    std::istringstream parts(ways);
    for (std::string name; std::getline(parts, name, ',');) names.push_back(name);
    return names;
}

// "lost:P": percent of calls; nullopt for other names.
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

// The MoE layers, counted from 0, that the quasi-hidden state guesses worst.
Result<std::vector<std::uint32_t>> worst_layers(LoadedModel& model,
                                                const SpeculationSources& sources,
                                                const EvalLossOptions& options) {
    MOEX_ASSIGN(tokens, tokens_of_file(options.calibration_path, *model.tokenizer,
                                       std::uint64_t{calibration_windows_max} *
                                           options.perplexity.window_tokens));
    std::vector<Contestant> contestants;
    contestants.push_back({make_quasi_hidden_predictor(sources.gates, sources.profile), 1});
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

struct Way {
    std::string name;
    std::unique_ptr<Speculator> speculator;  // null for lost calls
    std::unique_ptr<ExpertBackend> experts;  // null for a speculator
};

Result<std::shared_ptr<const LinearEstimator>> linear_of(LoadedModel& model,
                                                         const SpeculationSources& sources,
                                                         const EvalLossOptions& options) {
    return fit_linear_on(
        {.path = options.calibration_path, .window_tokens = options.perplexity.window_tokens},
        *model.tokenizer, *model.decoder, *model.local, model.kv_dtype, *sources.gates,
        *sources.profile);
}

// What was recorded of the package; nothing where nothing was.
Result<MeasuredLosses> recorded_losses(const ModelPackage& package) {
    auto losses = load_measured_losses(package);
    if (!losses.ok() && losses.error().code == ErrorCode::not_found) return MeasuredLosses();
    return losses;
}

Result<SpeculationSources> sources_of(LoadedModel& model, const EvalLossOptions& options) {
    MOEX_ASSIGN(sources, load_speculation_sources(model.package, *model.threads));
    if (options.calibration_path.empty()) {
        MOEX_ASSIGN(losses, recorded_losses(*model.package));
        sources.estimator_layers = std::move(losses.hybrid_layers);
    } else if (sources.profile && options.ways.find("hybrid") != std::string::npos) {
        MOEX_ASSIGN(layers, worst_layers(model, sources, options));
        sources.estimator_layers = std::move(layers);
    }
    const bool fits = options.ways.find("linear") != std::string::npos;
    if (fits && sources.profile && !options.calibration_path.empty()) {
        MOEX_ASSIGN(linear, linear_of(model, sources, options));
        sources.linear = std::move(linear);
    }
    return sources;
}

Result<std::vector<Way>> make_ways(const LoadedModel& model, const SpeculationSources& sources,
                                   const EvalLossOptions& options) {
    std::vector<Way> ways;
    for (const std::string& name : names_of(options.ways)) {
        Way way{.name = name};
        MOEX_ASSIGN(share, lost_share(name));
        if (share) {
            if (!sources.profile)
                return Error{ErrorCode::not_found, text(name,
                                                        ": no default vectors; `moex-hub "
                                                        "pack --calibrate` makes them")};
            way.experts = make_lost_calls(*model.local, sources.profile, *share, lost_seed);
        } else {
            MOEX_ASSIGN(what, parse_speculation(name));
            auto made = Speculator::create(what, sources);
            if (!made.ok()) return Error{made.error().code, text(name, ": ", made.error().message)};
            way.speculator = *std::move(made);
        }
        ways.push_back(std::move(way));
    }
    return ways;
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

// Mean over the MoE layers behind the first; 1 where no route was guessed, `unknown` where no
// router says what it would have chosen.
std::string hit_text(const Way* way, const char* unknown) {
    double sum = 1;
    std::uint32_t count = 1;
    if (way && way->speculator && way->speculator->moe_layers().size() > 1) {
        if (way->speculator->replaces_router(way->speculator->moe_layers().back())) return unknown;
        count = static_cast<std::uint32_t>(way->speculator->moe_layers().size()) - 1;
        sum = 0;
        for (std::uint32_t i = 1; i <= count; ++i) sum += way->speculator->hit_rate(i);
    }
    char shown[32];
    std::snprintf(shown, sizeof shown, "%.5f", sum / count);
    return shown;
}

std::string table_of(std::span<const Way> ways, std::span<const Loss> losses) {
    std::string out =
        "experts                 perplexity   excess    nats ± windows      KL  same first    "
        "hit\n";
    for (std::size_t i = 0; i < losses.size(); ++i) {
        const Loss& loss = losses[i];
        char shown[160];
        std::snprintf(shown, sizeof shown,
                      "%-22s  %10.3f  %8s  %.4f ± %.4f  %.4f      %.4f  %.5s\n",
                      i == 0 ? "exact" : ways[i - 1].name.c_str(), loss.perplexity.perplexity,
                      i == 0 ? "" : excess_text(losses[0], loss).c_str(), loss.nll_excess.mean(),
                      loss.nll_excess.deviation(), loss.mean_kl, same_first_share(loss),
                      hit_text(i == 0 ? nullptr : &ways[i - 1], "-").c_str());
        out += shown;
    }
    return out;
}

std::string csv_of(std::span<const Way> ways, std::span<const Loss> losses) {
    std::string out = "experts,perplexity,excess,nats_excess,deviation,kl,same_first,hit,windows\n";
    for (std::size_t i = 0; i < losses.size(); ++i) {
        const Loss& loss = losses[i];
        char shown[192];
        std::snprintf(shown, sizeof shown, "%s,%.4f,%.5f,%.5f,%.5f,%.5f,%.5f,%s,%u\n",
                      i == 0 ? "exact" : ways[i - 1].name.c_str(), loss.perplexity.perplexity,
                      loss.perplexity.perplexity / losses[0].perplexity.perplexity - 1,
                      loss.nll_excess.mean(), loss.nll_excess.deviation(), loss.mean_kl,
                      same_first_share(loss), hit_text(i == 0 ? nullptr : &ways[i - 1], "").c_str(),
                      loss.perplexity.num_windows);
        out += shown;
    }
    return out;
}

// Under the names that requests use; lost calls and linear guesses are no way to ask for.
Status record_losses(const LoadedModel& model, const SpeculationSources& sources,
                     std::span<const Way> ways, std::span<const Loss> losses,
                     const EvalLossOptions& options) {
    MeasuredLosses newer{.measured_on = options.measured_on,
                         .hybrid_layers = sources.estimator_layers};
    newer.perplexity["exact"] = losses[0].perplexity.perplexity;
    for (std::size_t i = 0; i < ways.size(); ++i)
        if (const auto what = parse_speculation(ways[i].name);
            what.ok() && what->routes != RouteGuess::linear)
            newer.perplexity[name_of(*what)] = losses[i + 1].perplexity.perplexity;

    const ModelPackage& package = *model.package;
    auto known = load_measured_losses(package);
    MeasuredLosses all = known.ok() ? *std::move(known) : MeasuredLosses();
    all.add(std::move(newer));
    return write_whole_file(package.directory() / measured_losses_file,
                            as_byte_view(to_json_text(all, package.manifest_sha256())));
}

}  // namespace

Status check_ways(const std::string& ways) {
    for (const std::string& name : names_of(ways)) {
        MOEX_ASSIGN(share, lost_share(name));
        if (share) continue;
        if (const auto what = parse_speculation(name); !what.ok()) return what.error();
    }
    return {};
}

Result<std::string> eval_loss(LoadedModel& model, std::span<const TokenId> tokens,
                              const EvalLossOptions& options) {
    MOEX_ASSIGN(sources, sources_of(model, options));
    MOEX_ASSIGN(ways, make_ways(model, sources, options));
    std::vector<LossyWay> lossy;
    lossy.reserve(ways.size());
    for (const Way& way : ways) lossy.push_back({way.speculator.get(), way.experts.get()});

    std::vector<Loss> losses;
    {
        ProgressLine line(options.progress);
        MOEX_ASSIGN(measured, measure_loss(*model.decoder, *model.local, lossy, tokens,
                                           options.perplexity, window_progress(line, "reading")));
        losses = std::move(measured);
    }
    if (!options.out_path.empty())
        MOEX_TRY(write_whole_file(options.out_path, as_byte_view(csv_of(ways, losses))));
    if (options.record) MOEX_TRY(record_losses(model, sources, ways, losses, options));
    return table_of(ways, losses);
}

}  // namespace moex
