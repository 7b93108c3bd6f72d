// The lossy modes of a package by name: the values that a request may give for `moex.experts`,
// and that `moex-hub eval --experts` measures. A hub serves two (served_modes.h):
//   "speculative", also "early:1"   every second MoE layer sends its calls before the answers of
//                                   the layer before it have arrived
//   "estimator"                     the estimator's guesses replace the routers' choices
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "hub/foresight/lossy/measured_losses.h"
#include "hub/foresight/lossy/served_modes.h"

namespace moex {

// The name that answers report for the mode "speculative". The 1 means that calls are sent early
// from MoE layer 1 on.
inline constexpr std::string_view early_calls_mode = "early:1";
inline constexpr std::string_view estimator_mode = "estimator";

// Returns the reported name of the mode that a request calls `name`. Error: invalid_argument if no
// served mode has this name.
Result<std::string_view> parse_lossy_mode(std::string_view name);

// Creates the speculator of a lossy mode at its first use and keeps it; the rows of several
// requests share one speculator.
class LossyModes {
  public:
    LossyModes(SpeculationSources sources, MeasuredLosses losses);

    // Returns the mode called `name`; both names of a mode give the same speculator. May be called
    // from any thread. Errors: invalid_argument: no mode has this name; not_found: the package
    // lacks a file, and the message names the command that makes this file; unsupported: the model
    // has too few MoE layers.
    Result<ExpertMode> find(std::string_view name);
    // Returns the reported names of the modes for which this package has all files.
    std::vector<std::string> offered();
    const MeasuredLosses& losses() const { return losses_; }

  private:
    Result<std::unique_ptr<ExpertSpeculator>> make(std::string_view mode) const;

    const SpeculationSources sources_;
    const MeasuredLosses losses_;
    std::mutex mutex_;  // guards made_
    std::map<std::string, std::unique_ptr<ExpertSpeculator>, std::less<>> made_;
};

}  // namespace moex
