// moex-hub eval: measures the perplexity of a text, over windows that do not overlap. With
// --experts it also measures the perplexity of the lossy modes that a hub serves, and with
// --reference the divergence from another package. bench/foresight (lossy_bench) measures more
// modes.
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "hub/commands/calibrate.h"
#include "hub/commands/command.h"
#include "hub/commands/load_model.h"
#include "hub/commands/output.h"
#include "hub/engine/divergence.h"
#include "hub/engine/perplexity.h"
#include "hub/foresight/lossy/lossy_modes.h"
#include "hub/model/pack/whole_file.h"

namespace moex {
namespace {

std::string text_of(const Invocation& invocation, std::string_view name) {
    const std::string* value = invocation.argument(name);
    return value ? *value : std::string();
}

// Returns the names of the modes that --experts lists, separated by commas, as the report spells
// the modes.
Result<std::vector<std::string>> modes_of(const Invocation& invocation) {
    std::vector<std::string> modes;
    std::istringstream parts(text_of(invocation, "--experts"));
    for (std::string name; std::getline(parts, name, ',');) {
        MOEX_ASSIGN(mode, parse_lossy_mode(name));
        modes.emplace_back(mode);
    }
    return modes;
}

// The perplexity of one mode. The mode "exact" is the model itself, without lossy answers.
struct ModePerplexity {
    std::string mode;
    Perplexity measured;
};

Result<Perplexity> measure(LoadedModel& model, std::span<const TokenId> tokens,
                           const PerplexityOptions& options, const std::string& mode,
                           bool progress_lines) {
    ProgressLine line(progress_lines);
    return measure_perplexity(*model.decoder, *model.local, tokens, options,
                              [&](std::uint32_t done, std::uint32_t total, double perplexity) {
                                  char shown[96];
                                  std::snprintf(shown, sizeof shown,
                                                "%s: window %u/%u  perplexity %.3f", mode.c_str(),
                                                done, total, perplexity);
                                  line.show(static_cast<double>(done) / total, shown);
                              });
}

double excess_of(std::span<const ModePerplexity> all, std::size_t index) {
    return all[index].measured.perplexity / all[0].measured.perplexity - 1;
}

std::string table_of(std::span<const ModePerplexity> all) {
    std::string out = "experts     perplexity     excess\n";
    for (std::size_t i = 0; i < all.size(); ++i) {
        char shown[96], excess[32] = "";
        if (i > 0) std::snprintf(excess, sizeof excess, "%+.2f %%", 100 * excess_of(all, i));
        std::snprintf(shown, sizeof shown, "%-10s  %10.3f  %9s\n", all[i].mode.c_str(),
                      all[i].measured.perplexity, excess);
        out += shown;
    }
    return out;
}

std::string csv_of(std::span<const ModePerplexity> all) {
    std::string out = "experts,perplexity,excess,windows\n";
    for (std::size_t i = 0; i < all.size(); ++i) {
        char shown[96];
        std::snprintf(shown, sizeof shown, "%s,%.4f,%.5f,%u\n", all[i].mode.c_str(),
                      all[i].measured.perplexity, excess_of(all, i), all[i].measured.num_windows);
        out += shown;
    }
    return out;
}

// Returns the words that identify a measurement in losses.json: text, windows and arithmetic.
std::string measured_on(const Invocation& invocation, const PerplexityOptions& options) {
    const std::filesystem::path path = text_of(invocation, "--text");
    const std::uint32_t windows = options.num_windows;
    return text(path.filename().string(), ", ", windows == 0 ? "all" : std::to_string(windows),
                " windows of ", options.window_tokens, " tokens, arithmetic ",
                invocation.settings.text("arithmetic"), ", hub in ",
                invocation.settings.text("hub-dtype"));
}

// Writes the measured losses to losses.json in the package's folder. If the file already has
// figures of the same text, they are kept and the new figures are added.
Status record(const ModelPackage& package, std::span<const ModePerplexity> all,
              std::string measured_on) {
    MeasuredLosses newer{.measured_on = std::move(measured_on)};
    for (const ModePerplexity& one : all) newer.perplexity[one.mode] = one.measured.perplexity;

    auto known = load_measured_losses(package);
    MeasuredLosses losses = known.ok() ? *std::move(known) : MeasuredLosses();
    losses.add(std::move(newer));
    return write_whole_file(package.directory() / measured_losses_file,
                            as_byte_view(to_json_text(losses, package.manifest_sha256())));
}

// Measures the exact model and each lossy mode on the same windows, and prints a table.
Status eval_modes(const Invocation& invocation, LoadedModel& model, std::span<const TokenId> tokens,
                  const std::vector<std::string>& modes, PerplexityOptions options) {
    MOEX_ASSIGN(sources, load_speculation_sources(model.package, *model.threads));
    LossyModes served(std::move(sources), {});
    std::vector<ExpertMode> wanted{{.name = "exact"}};
    for (const std::string& mode : modes) {
        auto found = served.find(mode);
        if (!found.ok()) return Error{found.error().code, text(mode, ": ", found.error().message)};
        wanted.push_back(*std::move(found));
    }

    std::vector<ModePerplexity> all;
    for (const ExpertMode& mode : wanted) {
        options.speculator = mode.speculator;
        MOEX_ASSIGN(measured,
                    measure(model, tokens, options, mode.name, invocation.settings.on("progress")));
        all.push_back({mode.name, measured});
    }
    if (const std::string out = text_of(invocation, "--out"); !out.empty())
        MOEX_TRY(write_whole_file(out, as_byte_view(csv_of(all))));
    if (invocation.argument("--record"))
        MOEX_TRY(record(*model.package, all, measured_on(invocation, options)));
    (void)print_now(table_of(all));
    return {};
}

// Measures how far the model is from the package --reference, which is computed in the arithmetic
// that suits its experts.
Status eval_reference(const Invocation& invocation, LoadedModel& model,
                      std::span<const TokenId> tokens, const PerplexityOptions& options) {
    const std::string directory = text_of(invocation, "--reference");
    MOEX_ASSIGN(package, ModelPackage::open(directory));
    MOEX_TRY(package->require_all_blobs());
    if (package->tokenizer_file("tokenizer.json") !=
        model.package->tokenizer_file("tokenizer.json"))
        return Error{ErrorCode::invalid_argument, text(directory, ": has another tokenizer than ",
                                                       model.package->directory().string(),
                                                       "; a divergence needs the same tokens")};

    const bool in_integers = has_codes(package->expert_dtype());
    const Arithmetic arithmetic = in_integers ? Arithmetic::int8 : Arithmetic::exact;
    MOEX_ASSIGN(decoder, Decoder::create(package, *model.threads, {.arithmetic = arithmetic}));
    LocalExperts experts(package, *model.threads, {}, arithmetic);
    const KvDtype kv_dtype = in_integers ? KvDtype::f16 : KvDtype::f32;

    ProgressLine line(invocation.settings.on("progress"));
    const ReadingModel compared[] = {{*model.decoder, *model.local, model.kv_dtype}};
    MOEX_ASSIGN(all, measure_divergence({*decoder, experts, kv_dtype}, compared, tokens, options,
                                        window_progress(line, "comparing")));
    const Divergence& found = all.front();
    char shown[160];
    std::snprintf(shown, sizeof shown,
                  "perplexity %.4f  reference %.4f  ratio %.5f  kl %.5f  same_likeliest %.4f  "
                  "predictions %llu\n",
                  found.perplexity, found.reference_perplexity,
                  found.perplexity / found.reference_perplexity, found.mean_kl,
                  found.same_likeliest, static_cast<unsigned long long>(found.num_predictions));
    (void)print_now(shown);
    return {};
}

}  // namespace

int run_eval(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    set_log_of(settings);

    const bool has_modes = invocation.argument("--experts") != nullptr;
    if (!has_modes && invocation.argument("--record"))
        return fail("--record keeps what --experts measures: give both");
    if (has_modes && invocation.argument("--reference"))
        return fail("--reference compares the model itself; leave --experts out");
    const auto modes = modes_of(invocation);
    if (!modes.ok())
        return fail(text("--experts: ", modes.error().message,
                         "; lossy_bench (bench/foresight) measures other modes"));

    auto model = load_model(
        settings, [](std::string_view) {},
        invocation.check_only ? LoadParts::texts : LoadParts::everything);
    if (!model.ok()) return fail(model.error().message);
    if (!model->tokenizer) return fail("the package has no tokenizer; eval needs one");
    const auto tokens = tokens_of_file(*invocation.argument("--text"), *model->tokenizer);
    if (!tokens.ok()) return fail(tokens.error().message);
    if (invocation.check_only) return exit_stopped;
    if (const Status whole = model->package->require_all_blobs(); !whole.ok())
        return fail(text(whole.error().message, "; eval computes on this machine"));

    PerplexityOptions options;
    options.window_tokens = static_cast<std::uint32_t>(settings.number("window"));
    options.num_windows = static_cast<std::uint32_t>(settings.number("windows"));
    options.kv_dtype = model->kv_dtype;
    options.begin_token = model->tokenizer->begin_token();
    if (invocation.argument("--reference")) {
        const Status compared = eval_reference(invocation, *model, *tokens, options);
        return compared.ok() ? exit_stopped : fail(compared.error().message);
    }
    if (has_modes) {
        const Status evaluated = eval_modes(invocation, *model, *tokens, *modes, options);
        return evaluated.ok() ? exit_stopped : fail(evaluated.error().message);
    }

    const auto measured = measure(*model, *tokens, options, "exact", settings.on("progress"));
    if (!measured.ok()) return fail(measured.error().message);
    std::printf("perplexity %.4f  nll %.5f  predictions %llu  windows %u\n", measured->perplexity,
                measured->mean_nll, static_cast<unsigned long long>(measured->num_predictions),
                measured->num_windows);
    return exit_stopped;
}

}  // namespace moex
