// moex-hub eval: the perplexity of a text, over windows that do not overlap; with --experts, what
// lossy ways of computing experts add to it.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "hub/commands/command.h"
#include "hub/commands/load_model.h"
#include "hub/commands/output.h"
#include "hub/commands/predict/eval_loss.h"
#include "hub/commands/progress.h"
#include "hub/engine/perplexity.h"

namespace moex {

namespace {

int run_eval_loss(const Invocation& invocation, LoadedModel& model, std::span<const TokenId> tokens,
                  const PerplexityOptions& perplexity) {
    const auto given = [&](std::string_view name) {
        const std::string* value = invocation.argument(name);
        return value ? *value : std::string();
    };
    const std::filesystem::path text_path = given("--text");
    const std::uint32_t windows = perplexity.num_windows;
    const std::string measured_on = text(
        text_path.filename().string(), ", ", windows == 0 ? "all" : std::to_string(windows),
        " windows of ", perplexity.window_tokens, " tokens, arithmetic ",
        invocation.settings.text("arithmetic"), ", hub in ", invocation.settings.text("hub-dtype"));
    const auto table = eval_loss(model, tokens,
                                 {.ways = given("--experts"),
                                  .calibration_path = given("--calibrate"),
                                  .out_path = given("--out"),
                                  .record = invocation.argument("--record") != nullptr,
                                  .measured_on = measured_on,
                                  .perplexity = perplexity,
                                  .progress = invocation.settings.on("progress")});
    if (!table.ok()) return fail(table.error().message);
    (void)print_now(*table);
    return exit_stopped;
}

}  // namespace

int run_eval(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    set_log_of(settings);

    const std::string& path = *invocation.argument("--text");
    std::ifstream file(path, std::ios::binary);
    if (!file) return fail(text(path, ": cannot be read"));
    const std::string content{std::istreambuf_iterator<char>(file), {}};

    const std::string* ways = invocation.argument("--experts");
    if (!ways && invocation.argument("--record"))
        return fail("--record keeps what --experts measures: give both");
    if (const Status known = ways ? check_ways(*ways) : Status(); !known.ok())
        return fail(known.error().message);

    auto model = load_model(
        settings, [](std::string_view) {},
        invocation.check_only ? LoadParts::texts : LoadParts::everything);
    if (!model.ok()) return fail(model.error().message);
    if (!model->tokenizer) return fail("the package has no tokenizer; eval needs one");
    if (invocation.check_only) return exit_stopped;
    if (const Status whole = model->package->require_all_blobs(); !whole.ok())
        return fail(text(whole.error().message, "; eval computes on this machine"));

    const std::vector<TokenId> tokens = model->tokenizer->encode(content, SpecialTokens::as_text);
    PerplexityOptions options;
    options.window_tokens = static_cast<std::uint32_t>(settings.number("window"));
    options.num_windows = static_cast<std::uint32_t>(settings.number("windows"));
    options.kv_dtype = model->kv_dtype;
    if (ways) return run_eval_loss(invocation, *model, tokens, options);

    Result<Perplexity> measured = Error{ErrorCode::internal, ""};
    {
        ProgressLine line(settings.on("progress"));
        const auto progress = [&](std::uint32_t done, std::uint32_t total, double perplexity) {
            char shown[64];
            std::snprintf(shown, sizeof shown, "window %u/%u  perplexity %.3f", done, total,
                          perplexity);
            line.show(static_cast<double>(done) / total, shown);
        };
        measured = measure_perplexity(*model->decoder, *model->local, tokens, options, progress);
    }
    if (!measured.ok()) return fail(measured.error().message);

    std::printf("perplexity %.4f  nll %.5f  predictions %llu  windows %u\n", measured->perplexity,
                measured->mean_nll, static_cast<unsigned long long>(measured->num_predictions),
                measured->num_windows);
    return exit_stopped;
}

}  // namespace moex
