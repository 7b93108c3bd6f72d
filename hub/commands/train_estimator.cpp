// moex-hub train-estimator: trains an estimator on the routes of a package's model, and stores it
// in the package.
#include <cstdio>

#include "hub/commands/calibrate.h"
#include "hub/commands/command.h"
#include "hub/commands/load_model.h"
#include "hub/foresight/predict/training.h"
#include "hub/model/pack/side_file_writer.h"

namespace moex {
namespace {

// Returns the package's default vectors. If the package has none, the function computes them on the
// text and stores them in the package.
Result<std::shared_ptr<const ExpertProfile>> profile_of(LoadedModel& model,
                                                        const Settings& settings,
                                                        const std::string& path) {
    auto held = load_expert_profile(*model.package);
    if (held.ok()) return std::make_shared<const ExpertProfile>(*std::move(held));
    if (held.error().code != ErrorCode::not_found) return held.error();

    MOEX_ASSIGN(profile,
                calibrate_on({.path = path, .tokens_max = settings.number("calibrate-tokens")},
                             *model.tokenizer, *model.decoder, *model.local, model.kv_dtype,
                             settings.on("progress")));
    MOEX_TRY(write_side_file(model.package->directory(), SideFile::default_vectors,
                             to_side_tensors(*profile, model.package->config())));
    return profile;
}

TrainingOptions training_options_of(const Settings& settings, const LoadedModel& model) {
    TrainingOptions options;
    options.window_tokens = static_cast<std::uint32_t>(settings.number("window"));
    options.num_windows = settings.number("windows");
    options.kv_dtype = model.kv_dtype;
    if (const std::string& seed = settings.text("seed"); !seed.empty())
        options.seed = std::stoull(seed);
    return options;
}

}  // namespace

int run_train_estimator(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    set_log_of(settings);

    const std::string& path = *invocation.argument("--text");
    auto model = load_model(
        settings, [](std::string_view) {},
        invocation.check_only ? LoadParts::texts : LoadParts::everything);
    if (!model.ok()) return fail(model.error().message);
    if (!model->tokenizer) return fail("the package has no tokenizer; train-estimator needs one");
    const auto tokens = tokens_of_file(path, *model->tokenizer);
    if (!tokens.ok()) return fail(tokens.error().message);
    if (invocation.check_only) return exit_stopped;
    if (const Status whole = model->package->require_all_blobs(); !whole.ok())
        return fail(text(whole.error().message, "; train-estimator computes on this machine"));

    const auto profile = profile_of(*model, settings, path);
    if (!profile.ok()) return fail(profile.error().message);
    const auto gates = RouterGates::load(model->package, *model->threads);
    if (!gates.ok()) return fail(gates.error().message);

    const ModelConfig& config = model->package->config();
    const TrainingOptions options = training_options_of(settings, *model);
    const auto num_moe = static_cast<std::uint32_t>(gates->moe_layers().size());
    Estimator estimator({.hidden_size = config.hidden_size,
                         .num_experts = config.num_experts,
                         .num_targets = num_moe > 0 ? num_moe - 1 : 0},
                        options.seed);
    Result<TrainingReport> report = Error{ErrorCode::internal, ""};
    {
        ProgressLine line(settings.on("progress"));
        const auto show = [&](std::uint64_t done, std::uint64_t total, double loss) {
            char shown[96];
            std::snprintf(shown, sizeof shown, "training: step %llu/%llu  loss %.4f",
                          static_cast<unsigned long long>(done),
                          static_cast<unsigned long long>(total), loss);
            line.show(static_cast<double>(done) / static_cast<double>(total), shown);
        };
        report = train_estimator(estimator, *model->decoder, *model->local, *gates, **profile,
                                 *tokens, options, show);
    }
    if (!report.ok()) return fail(report.error().message);

    const std::filesystem::path& directory = model->package->directory();
    if (const Status written = write_side_file(directory, SideFile::estimator,
                                               estimator.to_side_tensors());
        !written.ok())
        return fail(written.error().message);
    std::printf("%s: estimator of %zu parameters, %llu tokens, loss %.4f to %.4f nats\n",
                directory.c_str(), estimator.parameters().size(),
                static_cast<unsigned long long>(report->num_tokens), report->first_loss,
                report->last_loss);
    return exit_stopped;
}

}  // namespace moex
