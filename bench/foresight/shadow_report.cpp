#include "bench/foresight/shadow_report.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "bench/foresight/contest.h"
#include "bench/foresight/fewer_experts.h"
#include "hub/commands/progress.h"
#include "hub/foresight/shadow/shadow_experts.h"
#include "hub/model/pack/whole_file.h"

namespace moex::bench {
namespace {

constexpr std::uint32_t side_by_side = 8;
constexpr std::uint32_t periods[] = {1, 2, 4, 8, 16};

// A shadow as --shadow names it: DIR is a folder that `pack --shadow` wrote; DIR:N requests N
// experts of that shadow per token; served:N requests N of the model's own experts.
struct NamedShadow {
    std::string folder;       // folder of the shadow; empty: the model's own experts
    std::uint32_t top_k = 0;  // experts per token; 0: as many as the model
};
NamedShadow named_shadow(const std::string& given) {
    NamedShadow named{.folder = given};
    const std::size_t colon = given.rfind(':');
    std::uint32_t top_k = 0;
    if (colon != std::string::npos) {
        const char *const first = given.data() + colon + 1, *const last = given.data() +
                                                                          given.size();
        const auto [end, failure] = std::from_chars(first, last, top_k);
        if (failure == std::errc() && end == last && top_k > 0)
            named = {given.substr(0, colon), top_k};
    }
    if (named.top_k > 0 && named.folder == "served") named.folder.clear();
    return named;
}

// Returns the alignments that are measured on text: tokens are always aligned at every token; keys
// and values never, or at one of the periods.
std::vector<ShadowAlignment> text_alignments() {
    std::vector<ShadowAlignment> all{{1, 0}};
    for (const std::uint32_t kv : periods) all.push_back({1, kv});
    return all;
}
std::vector<ShadowAlignment> answer_alignments() {
    std::vector<ShadowAlignment> all{{0, 0}, {0, 1}};
    for (const std::uint32_t token : periods) {
        all.push_back({token, 0});
        for (const std::uint32_t kv : periods) all.push_back({token, kv});
    }
    return all;
}

std::string period_text(std::uint32_t period) { return period == 0 ? "-" : text(period); }

std::string cell(const char* format, double a, double b) {
    char shown[64];
    std::snprintf(shown, sizeof shown, format, a, b);
    return shown;
}

// Measures a shadow over windows of one kind: windows of the text, or answers of the model.
class Measurement {
  public:
    // `shadow`: the shadow's experts; null for the model's own experts. `top_k`: experts per token;
    // 0 for as many as the model.
    Measurement(LoadedModel& model, const ShadowPackage* shadow, std::uint32_t top_k,
                bool generated, const ShadowTrialOptions& options)
        : model_(model),
          trial_(*model.decoder, options) {
        experts_ = model.local.get();
        if (shadow) experts_ = &own_.emplace(*shadow, *model.threads);
        if (top_k > 0) {
            fewer_ = make_fewer_experts(*experts_, top_k);
            experts_ = fewer_.get();
        }

        const ModelConfig& config = model.package->config();
        std::uint32_t num_layers = 0;
        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
            num_layers += config.is_moe(layer);
        RecallOptions recall{
            .num_layers = num_layers, .top_k = config.top_k, .fetches = contest_fetches(config)};
        RecallOptions behind_first = recall;
        behind_first.first_layer = 1;

        const std::uint64_t served_bytes = std::uint64_t{num_layers} * config.num_experts *
                                           model.package->expert_blob_bytes();
        const std::string name = text(shadow ? shadow_dtype_name(shadow->record().dtype) : "served",
                                      top_k > 0 ? text(':', top_k) : std::string());
        for (const ShadowAlignment alignment : generated ? answer_alignments() : text_alignments())
            results_.push_back({name, shadow ? shadow->size_bytes() : served_bytes, served_bytes,
                                generated, alignment, RecallMeter(recall),
                                RecallMeter(behind_first)});
    }

    // `windows` are windows of the text; `ended(done, all)` is called after each measured
    // alignment.
    Status run(std::span<const std::span<const TokenId>> windows,
               const std::function<void(std::size_t, std::size_t)>& ended) {
        const std::size_t rounds = (windows.size() + side_by_side - 1) / side_by_side,
                          all = rounds * results_.size();
        for (std::size_t round = 0; round < rounds; ++round) {
            const auto these = windows.subspan(
                round * side_by_side,
                std::min<std::size_t>(side_by_side, windows.size() - round * side_by_side));
            MOEX_TRY(trial_.serve(these, *model_.local));
            for (std::size_t i = 0; i < results_.size(); ++i) {
                RecallMeter* const meters[] = {&results_[i].all, &results_[i].behind_first};
                MOEX_TRY(trial_.follow(results_[i].alignment, *experts_, meters));
                results_[i].times = trial_.times();
                ended(round * results_.size() + i + 1, all);
            }
        }
        return {};
    }
    std::vector<ShadowResult>& results() { return results_; }

  private:
    LoadedModel& model_;
    std::optional<ShadowExperts> own_;
    std::unique_ptr<ExpertBackend> fewer_;
    ExpertBackend* experts_ = nullptr;
    ShadowTrial trial_;
    std::vector<ShadowResult> results_;
};

std::string csv_title(const ShadowResult& result) {
    return text(
        result.name, ',', result.size_bytes, ',',
        cell("%.4f",
             static_cast<double>(result.size_bytes) / static_cast<double>(result.served_bytes), 0),
        ',', result.generated ? "answers" : "text", ',', result.alignment.token_period, ',',
        result.alignment.kv_period);
}

}  // namespace

Result<std::vector<ShadowResult>> measure_shadows(LoadedModel& model, const std::string& paths,
                                                  std::span<const TokenId> tokens,
                                                  std::uint32_t window_tokens,
                                                  std::uint32_t num_windows, bool progress) {
    std::vector<std::span<const TokenId>> windows;
    for (std::uint32_t i = 0; i < num_windows; ++i)
        windows.push_back(tokens.subspan(std::size_t{i} * window_tokens, window_tokens));
    const auto prompts = std::span(windows).first(
        std::min<std::size_t>(windows.size(), shadow_prompts_max));

    std::vector<ShadowResult> results;
    std::istringstream folders(paths);
    for (std::string folder; std::getline(folders, folder, ',');) {
        const NamedShadow named = named_shadow(folder);
        std::optional<ShadowPackage> shadow;
        if (!named.folder.empty()) {
            MOEX_ASSIGN(opened, ShadowPackage::open(named.folder, *model.package));
            shadow = std::move(opened);
        }
        ProgressLine line(progress);

        for (const bool generated : {false, true}) {
            if (generated && window_tokens <= shadow_prompt_tokens) continue;

            ShadowTrialOptions options{.windows_max = side_by_side,
                                       .num_tokens = window_tokens,
                                       .kv_dtype = model.kv_dtype};
            if (generated) {
                options.prompt_tokens = shadow_prompt_tokens;
                options.num_tokens = std::min(window_tokens,
                                              shadow_prompt_tokens + shadow_answer_tokens_max);
            }
            Measurement measurement(model, shadow ? &*shadow : nullptr, named.top_k, generated,
                                    options);
            MOEX_TRY(measurement.run(
                generated ? prompts : std::span(windows), [&](std::size_t done, std::size_t all) {
                    line.show(static_cast<double>(done) / static_cast<double>(all),
                              text(folder, generated ? ": answers " : ": text ", done, "/", all));
                }));
            for (ShadowResult& result : measurement.results()) results.push_back(std::move(result));
        }
    }
    return results;
}

std::string shadow_tables(const std::vector<ShadowResult>& results) {
    if (results.empty()) return {};

    std::string out =
        "\nshadows: recall, aligned every so many tokens (-: never)\n"
        "  shadow  of served  on       tokens  keys  ";
    for (const std::uint32_t fetch : results[0].all.options().fetches)
        out += text("behind first @", fetch, fetch < 10 ? "  " : " ");
    out += "all layers @";
    out += text(results[0].all.options().top_k, '\n');

    for (const ShadowResult& result : results) {
        char shown[128];
        std::snprintf(
            shown, sizeof shown, "  %-6s  %9.3f  %-7s  %6s  %4s  ", result.name.c_str(),
            static_cast<double>(result.size_bytes) / static_cast<double>(result.served_bytes),
            result.generated ? "answers" : "text",
            period_text(result.alignment.token_period).c_str(),
            period_text(result.alignment.kv_period).c_str());
        out += shown;
        for (std::size_t i = 0; i < result.all.options().fetches.size(); ++i)
            out += cell("%.3f ± %.3f    ", result.behind_first.recall(i).mean(),
                        result.behind_first.recall(i).deviation());
        out += cell("%.3f ± %.3f\n", result.all.recall(0).mean(), result.all.recall(0).deviation());
    }

    out += "\nanswers: recall by token, all layers, the first is 1\n   token ";
    std::vector<const ShadowResult*> shown;
    for (const ShadowResult& result : results) {
        const ShadowAlignment a = result.alignment;
        const bool is_corner = a.token_period <= 1 && a.kv_period <= 1;
        if (!result.generated || !is_corner) continue;
        shown.push_back(&result);
        std::string title = text(result.name, ' ', period_text(a.token_period), '/',
                                 period_text(a.kv_period));
        title.resize(10, ' ');
        out += text(' ', title);
    }
    out += '\n';
    for (std::uint32_t token = 1; token <= shadow_answer_tokens_max; token *= 2) {
        out += cell("  %6.0f ", token, 0);
        for (const ShadowResult* result : shown)
            out += result->all.at_token(token - 1).count() > 0
                       ? cell(" %.3f     ", result->all.at_token(token - 1).mean(), 0)
                       : " -         ";
        out += '\n';
    }

    out +=
        "\nanswers, ms a token of these windows: the model, the shadow, to align it (late "
        "departure)\n";
    for (const ShadowResult* result : shown)
        out += text("  ", result->name, ' ', period_text(result->alignment.token_period), '/',
                    period_text(result->alignment.kv_period),
                    cell("  %.3f  %.3f", result->times.served_ms, result->times.shadow_ms),
                    cell("  %.4f\n", result->times.align_ms, 0));
    return out;
}

Status write_shadow_reports(const std::vector<ShadowResult>& results,
                            const std::filesystem::path& folder, const std::string& note) {
    std::string rows = text("# ", note, '\n',
                            "shadow,bytes,share_of_served,on,token_period,kv_period,layers,fetched,"
                            "recall,deviation,windows\n"),
                tokens = text("# ", note, '\n',
                              "shadow,bytes,share_of_served,on,token_period,kv_period,token,recall,"
                              "deviation\n"),
                times = text("# ", note, '\n',
                             "shadow,bytes,share_of_served,on,token_period,kv_period,served_ms,"
                             "shadow_ms,align_ms\n");
    for (const ShadowResult& result : results) {
        for (const auto& [layers, meter] :
             {std::pair{"all", &result.all}, std::pair{"behind_first", &result.behind_first}})
            for (std::size_t i = 0; i < meter->options().fetches.size(); ++i)
                rows += text(
                    csv_title(result), ',', layers, ',', meter->options().fetches[i], ',',
                    cell("%.5f,%.5f", meter->recall(i).mean(), meter->recall(i).deviation()), ',',
                    meter->recall(i).count(), '\n');
        for (std::uint32_t token = 1; token <= shadow_answer_tokens_max; token *= 2)
            if (const Spread& recall = result.all.at_token(token - 1); recall.count() > 0)
                tokens += text(csv_title(result), ',', token, ',',
                               cell("%.5f,%.5f", recall.mean(), recall.deviation()), '\n');
        if (result.generated)
            times += text(csv_title(result), ',',
                          cell("%.4f,%.4f", result.times.served_ms, result.times.shadow_ms),
                          cell(",%.5f\n", result.times.align_ms, 0));
    }
    MOEX_TRY(write_whole_file(folder / "shadow_times.csv", as_byte_view(times)));
    MOEX_TRY(write_whole_file(folder / "shadows.csv", as_byte_view(rows)));
    return write_whole_file(folder / "shadow_tokens.csv", as_byte_view(tokens));
}

}  // namespace moex::bench
