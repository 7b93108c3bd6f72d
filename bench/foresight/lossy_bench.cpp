// lossy_bench measures the quality that lossy modes of computing experts cost on a text, for the
// modes that a hub serves and for modes that were tried and rejected
// (bench/foresight/speculation.h). Prints perplexity, KL divergence from the exact model, agreement
// of the likeliest token, and the share of the router's choices that were requested; CSV with
// --out. example: lossy_bench --text book.txt
// --windows 24 --experts estimator,early:1,lost:5
#include "bench/foresight/bench_command.h"
#include "bench/foresight/loss_report.h"
#include "hub/commands/calibrate.h"
#include "hub/commands/output.h"

namespace moex::bench {
namespace {

constexpr const char* help =
    "usage: lossy_bench --text FILE --experts MODES [--calibrate FILE] [--out FILE] [options]\n"
    "  --text FILE       UTF-8 text, tokenised once as a whole\n"
    "  --experts MODES   with commas between them: next-gate, quasi-hidden, estimator or hybrid\n"
    "                    guess a layer's experts one layer before (+weights: weighted by its\n"
    "                    router; :N: its router chooses among N); router-free: as estimator, and "
    "no\n"
    "                    router is computed; early[:N] lets every second call from MoE layer N on\n"
    "                    leave before the last answers are in (also with a guess:\n"
    "                    estimator+early:1); linear, as estimator, is fitted to 32 windows of\n"
    "                    --calibrate; lost:P loses P % of the calls\n"
    "  --calibrate FILE  another text: linear is fitted to it, and it chooses hybrid's layers\n"
    "  --out FILE        the table as CSV\n"
    "and the settings of `moex-hub eval` (--model, --window, --windows, --arithmetic ...)\n";

int run(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    set_log_of(settings);
    const auto given = [&](std::string_view name) {
        const std::string* value = invocation.argument(name);
        return value ? *value : std::string();
    };
    const auto refuse = [](std::string_view sentence) { return fail("lossy_bench", sentence); };
    const std::string modes = given("--experts");
    if (modes.empty()) return refuse("--experts MODES is missing (see --help)");
    if (const Status known = check_modes(modes); !known.ok()) return refuse(known.error().message);

    auto model = load_model(settings, [](std::string_view) {});
    if (!model.ok()) return refuse(model.error().message);
    if (!model->tokenizer) return refuse("the package has no tokenizer");
    if (const Status whole = model->package->require_all_blobs(); !whole.ok())
        return refuse(whole.error().message);
    const auto tokens = tokens_of_file(given("--text"), *model->tokenizer);
    if (!tokens.ok()) return refuse(tokens.error().message);

    PerplexityOptions perplexity;
    perplexity.window_tokens = static_cast<std::uint32_t>(settings.number("window"));
    perplexity.num_windows = static_cast<std::uint32_t>(settings.number("windows"));
    perplexity.kv_dtype = model->kv_dtype;
    const auto table = report_losses(*model, *tokens,
                                     {.modes = modes,
                                      .calibration_path = given("--calibrate"),
                                      .out_path = given("--out"),
                                      .perplexity = perplexity,
                                      .progress = settings.on("progress")});
    if (!table.ok()) return refuse(table.error().message);
    (void)print_now(*table);
    return exit_stopped;
}

}  // namespace
}  // namespace moex::bench

int main(int argc, char** argv) {
    int exit_code = 0;
    const auto invocation = moex::bench::parse_bench_command(
        argc, argv, moex::command_eval, {"--text", "--experts", "--calibrate", "--out"},
        moex::bench::help, exit_code);
    return invocation ? moex::bench::run(*invocation) : exit_code;
}
