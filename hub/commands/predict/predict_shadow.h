// What `predict --shadow` measures: shadows of the package beside the model, on a text and on what
// the model goes on with, for every alignment.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hub/commands/load_model.h"
#include "hub/foresight/shadow/shadow_trial.h"

namespace moex {

struct ShadowResult {
    std::string name;  // "int3"
    std::uint64_t size_bytes = 0, served_bytes = 0;
    bool generated = false;  // the model's own answer to prompt_tokens; otherwise the text
    ShadowAlignment alignment;
    RecallMeter all, behind_first;  // MoE layers
    // Of answers, all windows side by side; where one alignment gives all tokens they are read in
    // strides of it, which takes less.
    ShadowTimes times = {};
};

inline constexpr std::uint32_t shadow_prompt_tokens = 16, shadow_answer_tokens_max = 256,
                               shadow_prompts_max = 16;

// `paths`: folders of shadows, with commas between them; DIR:N asks N experts a token of one,
// served:N of the model's own. Text: the first num_windows windows,
// tokens aligned at every one. Answers: to their first 16 tokens, of the first 16 windows at most,
// 256 tokens or as many as a window has; not where a window has no more than the prompt.
Result<std::vector<ShadowResult>> measure_shadows(LoadedModel& model, const std::string& paths,
                                                  std::span<const TokenId> tokens,
                                                  std::uint32_t window_tokens,
                                                  std::uint32_t num_windows, bool progress);
std::string shadow_tables(const std::vector<ShadowResult>& results);
// shadows.csv, shadow_tokens.csv and shadow_times.csv in `folder`, which is there.
Status write_shadow_reports(const std::vector<ShadowResult>& results,
                            const std::filesystem::path& folder, const std::string& note);

}  // namespace moex
