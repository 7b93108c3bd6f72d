// moex-hub pack, verify and synth: the commands that make and check packages.
#include <cstdio>

#include "hub/commands/calibrate.h"
#include "hub/commands/command.h"
#include "hub/commands/pack/calibrated_pack.h"
#include "hub/commands/pack/pack_settings.h"
#include "hub/commands/progress.h"
#include "hub/engine/local_experts.h"
#include "hub/model/config_words.h"
#include "hub/model/pack/pack_plan.h"
#include "hub/model/pack/packer.h"
#include "hub/model/pack/shadow_writer.h"
#include "hub/model/pack/side_file_writer.h"
#include "hub/model/pack/synth.h"
#include "hub/model/package/package.h"
#include "hub/model/package/verify.h"

namespace moex {
namespace {

// Returns the largest group that --group names. pack itself resolves "auto" before.
Result<std::uint32_t> group_of_settings(const Settings& settings) {
    const std::string& name = settings.text("group");
    if (name == "auto")
        return Error{ErrorCode::invalid_argument,
                     "--group auto compares the packages of a whole checkpoint; only pack without "
                     "--shadow has one"};
    return static_cast<std::uint32_t>(std::stoul(name));
}

Result<PackOptions> options_of_settings(const Settings& settings, bool auto_group = false) {
    PackOptions options;
    const std::string& dtype = settings.text("expert-dtype");
    if (dtype != "auto") options.expert_dtype = parse_expert_dtype(dtype).value();
    options.keeps_mxfp4 = dtype == "auto";
    if (!auto_group) {
        MOEX_ASSIGN(group_size, group_of_settings(settings));
        options.group_size_max = group_size;
    }
    options.name = settings.text("name");
    const std::string& hub_dtype = settings.text("hub-dtype");
    if (hub_dtype == "int6")
        return Error{ErrorCode::invalid_argument,
                     "--hub-dtype int6 is what a hub rounds bf16 to at load; a package has bf16, "
                     "int8 or int4"};
    if (const auto dtype = parse_hub_dtype(hub_dtype); dtype.ok()) options.hub_dtype = *dtype;
    return options;
}

// Prints which matrices kept the codes of the file, and what it cost to quantise others again.
void print_losses(const PackReport& report) {
    for (const auto& [format, count] : report.losses.kept)
        std::printf("%s: %llu expert matrices taken over bit for bit\n", format.c_str(),
                    static_cast<unsigned long long>(count));
    for (const auto& [kind, loss] : report.losses.requantized)
        std::printf("%s: %llu matrices quantised again, nmse %.3g, worst %.3g in %s\n",
                    kind.c_str(), static_cast<unsigned long long>(loss.num_matrices), loss.nmse(),
                    loss.worst_nmse, one_line(loss.worst).c_str());
    if (report.layers_resumed > 0 && !report.losses.requantized.empty())
        std::printf("the losses are those of the layers that this run packed\n");
}

int report(const Result<PackReport>& result, const std::string& out, TimePoint started_at) {
    if (!result.ok()) return fail(result.error().message);

    for (const std::string& warning : result->warnings)
        std::fprintf(stderr, "warning: %s\n", one_line(warning).c_str());
    if (result->layers_resumed > 0)
        std::fprintf(stderr, "%u layers were done already\n", result->layers_resumed);

    print_losses(*result);
    const double seconds = to_ms(now_steady() - started_at) / 1e3;
    std::printf("%s: %s from %s, %u expert blobs, %.1f s, %.0f MB/s\n", out.c_str(),
                bytes_text(result->output_bytes).c_str(), bytes_text(result->input_bytes).c_str(),
                result->num_blobs, seconds,
                seconds > 0 ? static_cast<double>(result->input_bytes) / seconds / 1e6 : 0.0);
    return exit_stopped;
}

// Prints what --dry-run found: the sizes, what is quantised, and what is left out.
void print_plan(const PackPlan& plan, ExpertDtype dtype) {
    const ModelConfig& config = plan.config;
    std::printf("%s: %s, %u layers", plan.name.c_str(), config.architecture.c_str(),
                config.num_layers);
    if (config.has_experts()) std::printf(", %u experts a layer", config.num_experts);
    for (const std::string& line : layer_lines(config)) std::printf("\nlayers %s", line.c_str());
    std::printf("\nreads %s:", bytes_text(plan.input_bytes).c_str());
    for (const auto& [format, part] : plan.formats)
        std::printf(" %llu %s (%s)", static_cast<unsigned long long>(part.tensors), format.c_str(),
                    bytes_text(part.bytes).c_str());
    std::printf("\nwrites %s: hub %s, texts %s", bytes_text(plan.output_bytes()).c_str(),
                bytes_text(plan.hub_bytes).c_str(), bytes_text(plan.text_bytes).c_str());
    if (plan.num_blobs > 0)
        std::printf(", %llu experts of %s", static_cast<unsigned long long>(plan.num_blobs),
                    bytes_text(plan.blob_bytes).c_str());
    if (plan.draft_head_bytes > 0)
        std::printf(", a head that drafts tokens %s", bytes_text(plan.draft_head_bytes).c_str());
    std::printf("\n");

    for (const auto& [format, count] : plan.kept)
        std::printf("%s: %llu expert matrices are taken over bit for bit\n", format.c_str(),
                    static_cast<unsigned long long>(count));
    for (const auto& [format, count] : plan.converted)
        std::printf("%s: %llu expert matrices become %s\n", format.c_str(),
                    static_cast<unsigned long long>(count),
                    dtype == ExpertDtype::int4 ? text("int4 in groups of ", plan.group_size).c_str()
                                               : expert_dtype_name(dtype));
    if (plan.num_blobs > 0) {
        std::printf("contributors for one copy of the experts:");
        for (const std::uint64_t gigabytes : {1, 4, 8})
            std::printf(
                "%s %llu with %llu GB", gigabytes == 1 ? "" : ",",
                static_cast<unsigned long long>(plan.contributors(gigabytes * 1'000'000'000)),
                static_cast<unsigned long long>(gigabytes));
        std::printf("\n");
    }
    for (const std::string& warning : plan.warnings)
        std::printf("warning: %s\n", one_line(warning).c_str());
}

int run_dry(const std::string& model, const PackOptions& options) {
    const auto plan = plan_package(model, options);
    if (!plan.ok()) return fail(plan.error().message);
    print_plan(*plan, options.expert_dtype);
    return exit_stopped;
}

std::function<void(const PackProgress&)> progress_into(ProgressBar& bar) {
    return [&bar](const PackProgress& progress) {
        bar.show(progress.done_bytes, progress.total_bytes,
                 text("layer ", progress.layer, "/", progress.num_layers));
    };
}

// Calibrates the default vectors of experts on a text, and adds them to a package that was just
// made.
Status calibrate_package(const std::string& directory, const std::string& path,
                         const Settings& settings, ThreadPool& threads) {
    MOEX_ASSIGN(package, ModelPackage::open(directory));
    const auto tokenizer_json = package->tokenizer_file("tokenizer.json");
    if (!tokenizer_json)
        return Error{ErrorCode::unsupported,
                     text(directory, " is packed; it has no tokenizer to calibrate with")};
    MOEX_ASSIGN(tokenizer,
                Tokenizer::load(*tokenizer_json,
                                package->tokenizer_file("tokenizer_config.json").value_or("")));

    // Calibrate with the same arithmetic as `serve`.
    const bool in_integers = has_codes(package->expert_dtype());
    const Arithmetic arithmetic = in_integers ? Arithmetic::int8 : Arithmetic::exact;
    MOEX_ASSIGN(decoder, Decoder::create(package, threads, {.arithmetic = arithmetic}));
    LocalExperts experts(package, threads, {}, arithmetic);
    MOEX_ASSIGN(profile,
                calibrate_on({.path = path, .tokens_max = settings.number("calibrate-tokens")},
                             *tokenizer, *decoder, experts,
                             in_integers ? KvDtype::f16 : KvDtype::f32, settings.on("progress")));
    return write_side_file(directory, SideFile::default_vectors,
                           to_side_tensors(*profile, package->config()));
}

// Packs a shadow: writes the experts of `source`, a package or a checkpoint, in fewer bits. The
// experts of a checkpoint are first packed to a temporary package with bf16 experts.
Result<PackReport> pack_shadow(const std::string& source, const std::string& out,
                               const ShadowOptions& shadow, PackOptions options,
                               ThreadPool& threads,
                               const std::function<void(const PackProgress&)>& progress) {
    if (std::filesystem::exists(std::filesystem::path(source) / "manifest.json")) {
        MOEX_ASSIGN(package, ModelPackage::open(source));
        return write_shadow(*package, shadow, out, threads, progress);
    }

    const std::string whole = out + ".packing";
    options.expert_dtype = ExpertDtype::bf16;
    MOEX_ASSIGN(packed, pack_checkpoint(source, whole, options, threads, progress));
    MOEX_ASSIGN(package, ModelPackage::open(whole));
    auto report = write_shadow(*package, shadow, out, threads, progress);
    if (report.ok()) {
        std::error_code ignored;
        std::filesystem::remove_all(whole, ignored);
        report->input_bytes = packed.input_bytes;
    }
    return report;
}

// Packs to a temporary folder, quantises the experts there for a text, adds their default vectors,
// and renames the folder.
Result<PackReport> pack_calibrated(const Invocation& invocation, const PackOptions& options,
                                   ThreadPool& threads,
                                   const std::function<void(const PackProgress&)>& progress) {
    namespace fs = std::filesystem;
    const std::string &checkpoint = *invocation.argument("HF_DIR"),
                      &out = *invocation.argument("OUT"),
                      &path = *invocation.argument("--calibrate");
    const Settings& settings = invocation.settings;
    std::error_code failure;
    if (fs::exists(out, failure) && !fs::is_empty(out, failure))
        return Error{ErrorCode::invalid_argument,
                     text(out, ": is not empty; choose another folder")};

    // A folder with a manifest is of a call that was interrupted behind the first part.
    const std::string whole = out + ".packing";
    if (fs::exists(fs::path(whole) / "manifest.json", failure)) fs::remove_all(whole, failure);
    MOEX_ASSIGN(packed, pack_checkpoint(checkpoint, whole, options, threads, progress));
    // Experts that kept their MXFP4 are not quantised.
    MOEX_ASSIGN(made, ModelPackage::open(whole));
    const bool has_int4 = made->expert_dtype() == ExpertDtype::int4;
    made.reset();  // its files are written next
    if (has_int4)
        MOEX_TRY(calibrate_experts_of(checkpoint, whole, options,
                                      {.text_path = path,
                                       .tokens_max = settings.number("calibrate-tokens"),
                                       .progress_lines = settings.on("progress")},
                                      threads));
    MOEX_TRY(calibrate_package(whole, path, settings, threads));

    fs::remove(out, failure);
    fs::rename(whole, out, failure);
    if (failure)
        return Error{ErrorCode::io_error, text(out, ": cannot be created: ", failure.message())};
    return packed;
}

// Returns the options of the shadow if --shadow was given; otherwise an empty result.
Result<std::optional<ShadowOptions>> shadow_options_of(const Invocation& invocation) {
    const std::string* name = invocation.argument("--shadow");
    if (!name) return std::optional<ShadowOptions>();
    if (invocation.argument("--calibrate"))
        return Error{ErrorCode::invalid_argument,
                     "--calibrate writes into a package, and --shadow makes none"};
    const auto dtype = parse_shadow_dtype(*name);
    if (!dtype.ok()) return Error{dtype.error().code, text("--shadow: ", dtype.error().message)};
    MOEX_ASSIGN(group_size, group_of_settings(invocation.settings));
    return std::optional(ShadowOptions{.dtype = *dtype, .group_size_max = group_size});
}

Result<PackOptions> options_of_pack(const Invocation& invocation, bool auto_group) {
    MOEX_ASSIGN(options, options_of_settings(invocation.settings, auto_group));
    // Without a wish the hub's tensors keep every bit: bf16 where the model has bf16, else f32.
    options.hub_f32 = invocation.settings.on("hub-f32") ||
                      invocation.settings.text("hub-dtype") == "auto";
    options.keep_format = invocation.argument("--keep-format") != nullptr;
    return options;
}

// Lets --group auto choose for the checkpoint, and prints the choice.
Result<PackOptions> options_for_checkpoint(const Invocation& invocation,
                                           const std::string& checkpoint) {
    const Settings& settings = invocation.settings;
    const bool auto_group = settings.text("group") == "auto";
    MOEX_ASSIGN(options, options_of_pack(invocation, auto_group));
    if (!auto_group || invocation.check_only) return options;

    MOEX_ASSIGN(chosen,
                with_smallest_group(checkpoint, options, settings.text("hub-dtype") == "auto"));
    std::printf("--group auto: groups of at most %u, the hub in %s\n", chosen.group_size_max,
                hub_dtype_name(chosen.hub_dtype));
    return chosen;
}

}  // namespace

Result<PackOptions> pack_options_of(const Invocation& invocation) {
    return options_of_pack(invocation, false);
}

int run_pack(const Invocation& invocation) {
    const std::string& checkpoint = *invocation.argument("HF_DIR");
    const std::string& out = *invocation.argument("OUT");
    const auto shadow = shadow_options_of(invocation);
    if (!shadow.ok()) return fail(shadow.error().message);
    const Result<PackOptions> chosen = options_for_checkpoint(invocation, checkpoint);
    if (!chosen.ok()) return fail(chosen.error().message);
    const PackOptions& options = *chosen;

    const std::string* calibration = invocation.argument("--calibrate");
    if (calibration && !std::filesystem::exists(*calibration))
        return fail(text(*calibration, ": cannot be read"));
    if (invocation.check_only)
        return std::filesystem::exists(checkpoint) ? exit_stopped
                                                   : fail(text(checkpoint, ": no such folder"));

    if (invocation.argument("--dry-run")) {
        if (*shadow || calibration)
            return fail("--dry-run plans a package; leave --shadow and --calibrate out");
        return run_dry(checkpoint, options);
    }

    ThreadPool threads(invocation.settings.number("threads"));
    const TimePoint started_at = now_steady();
    Result<PackReport> result = Error{ErrorCode::internal, ""};
    {
        ProgressBar bar("packing", invocation.settings.on("progress"));
        const auto progress = progress_into(bar);
        result = *shadow       ? pack_shadow(checkpoint, out, **shadow, options, threads, progress)
                 : calibration ? pack_calibrated(invocation, options, threads, progress)
                               : pack_checkpoint(checkpoint, out, options, threads, progress);
    }
    return report(result, out, started_at);
}

int run_synth(const Invocation& invocation) {
    const std::string& out = *invocation.argument("OUT");
    auto config = synth_shape(*invocation.argument("--shape"));
    if (!config.ok()) {
        fail(config.error().message);
        return exit_wrong_arguments;
    }

    if (const std::uint64_t tokens = invocation.settings.number("context"); tokens > 0)
        config->context_tokens = static_cast<std::uint32_t>(tokens);

    const Result<PackOptions> chosen = options_of_settings(invocation.settings);
    if (!chosen.ok()) return fail(chosen.error().message);
    const PackOptions& options = *chosen;
    if (invocation.check_only) return exit_stopped;

    const std::string name = options.name.empty() ? *invocation.argument("--shape") : options.name;
    const std::string& seed = invocation.settings.text("seed");
    ThreadPool threads(invocation.settings.number("threads"));
    const TimePoint started_at = now_steady();
    Result<PackReport> result = Error{ErrorCode::internal, ""};
    {
        ProgressBar bar("writing", invocation.settings.on("progress"));
        result = synth_package(*config, name, seed.empty() ? 1 : std::stoull(seed), out, options,
                               threads, progress_into(bar));
    }
    return report(result, out, started_at);
}

int run_verify(const Invocation& invocation) {
    const std::string& directory = *invocation.argument("DIR");
    auto package = ModelPackage::open(directory);
    if (!package.ok()) return fail(package.error().message);

    Status status;
    {
        ProgressBar bar("verifying", invocation.settings.on("progress"));
        status = verify_package(
            directory, [&](std::uint64_t done, std::uint64_t total) { bar.show(done, total, ""); });
    }
    if (!status.ok()) return fail(status.error().message);

    std::printf("%s: every hash and shape is right\n", directory.c_str());
    return exit_stopped;
}

}  // namespace moex
