// What `eval --experts` measures: how much lossy ways of computing experts cost on a text.
#pragma once

#include <string>

#include "hub/commands/load_model.h"
#include "hub/engine/perplexity.h"

namespace moex {

struct EvalLossOptions {
    std::string ways;              // by name, with commas between them
    std::string calibration_path;  // text for the hybrid's choice of layers; empty: the record's
    std::string out_path;          // a CSV; empty: none
    bool record = false;      // into the package's folder (hub/foresight/lossy/measured_losses.h)
    std::string measured_on;  // for the record
    PerplexityOptions perplexity;
    bool progress = false;
};

// invalid_argument names a way that is unknown; not_found what the package lacks for one.
Status check_ways(const std::string& ways);
// The table as text.
Result<std::string> eval_loss(LoadedModel& model, std::span<const TokenId> tokens,
                              const EvalLossOptions& options);

}  // namespace moex
