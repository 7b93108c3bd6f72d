// The recall of shadows beside the model, for every alignment: on a text, and on the answers that
// the model gives to the text's first tokens (`foresight_bench --shadow`).
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "bench/foresight/shadow_trial.h"
#include "hub/commands/load_model.h"

namespace moex::bench {

struct ShadowResult {
    std::string name;  // "int3"
    std::uint64_t size_bytes = 0, served_bytes = 0;
    bool generated = false;  // true: measured on the model's answers; false: on the text
    ShadowAlignment alignment;
    RecallMeter all, behind_first;  // MoE layers
    // Times for reading answers, of all windows together. An alignment that gives every token reads
    // them in chunks of its period, which is faster.
    ShadowTimes times = {};
};

inline constexpr std::uint32_t shadow_prompt_tokens = 16, shadow_answer_tokens_max = 256,
                               shadow_prompts_max = 16;

// Measures shadows. `paths` are folders of shadows, with commas between them; DIR:N requests N
// experts of that shadow per token, served:N of the model's own. On text: the first num_windows
// windows, with tokens aligned at every token. On answers: up to 256 tokens that continue the first
// 16 tokens of a window, for at most 16 windows; answers are left out if windows are not longer
// than the prompt.
Result<std::vector<ShadowResult>> measure_shadows(LoadedModel& model, const std::string& paths,
                                                  std::span<const TokenId> tokens,
                                                  std::uint32_t window_tokens,
                                                  std::uint32_t num_windows, bool progress);
std::string shadow_tables(const std::vector<ShadowResult>& results);
// Writes shadows.csv, shadow_tokens.csv and shadow_times.csv into `folder`, which must exist.
Status write_shadow_reports(const std::vector<ShadowResult>& results,
                            const std::filesystem::path& folder, const std::string& note);

}  // namespace moex::bench
