// Reports the quality that lossy modes of computing experts cost on a text, as a table and as CSV.
#pragma once

#include <string>

#include "hub/commands/load_model.h"
#include "hub/engine/perplexity.h"

namespace moex::bench {

struct LossReportOptions {
    std::string modes;             // names of the modes, separated by commas
    std::string calibration_path;  // path of a text for `hybrid` and `linear`; empty: none
    std::string out_path;          // path of a CSV file to write; empty: none
    PerplexityOptions perplexity;
    bool progress = false;
};

// Returns invalid_argument if a mode is unknown; the message names the mode.
Status check_modes(const std::string& modes);
// Returns the table as text. Returns not_found if the package lacks a file; the message names the
// file.
Result<std::string> report_losses(LoadedModel& model, std::span<const TokenId> tokens,
                                  const LossReportOptions& options);

}  // namespace moex::bench
