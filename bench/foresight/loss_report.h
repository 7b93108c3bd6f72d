// The quality that lossy modes of computing experts cost on a text, as a table and as CSV.
#pragma once

#include <string>

#include "hub/commands/load_model.h"
#include "hub/engine/perplexity.h"

namespace moex::bench {

struct LossReportOptions {
    std::string modes;             // by name, with commas between them
    std::string calibration_path;  // a text for `hybrid` and `linear`; empty: none
    std::string out_path;          // a CSV file; empty: none
    PerplexityOptions perplexity;
    bool progress = false;
};

// invalid_argument: the message names the unknown mode.
Status check_modes(const std::string& modes);
// Returns the table as text. not_found: the message names the file that the package lacks.
Result<std::string> report_losses(LoadedModel& model, std::span<const TokenId> tokens,
                                  const LossReportOptions& options);

}  // namespace moex::bench
