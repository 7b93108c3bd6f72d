// The lossy ways of one package by name: what requests may ask for, and what eval measures. Each
// is made when it is first asked for and kept; rows of several requests share it.
#pragma once

#include <memory>
#include <mutex>

#include "hub/foresight/lossy/measured_losses.h"
#include "hub/foresight/lossy/speculation.h"

namespace moex {

// What "speculative" means in a request: the way that saves round trips.
inline constexpr std::string_view way_by_default = "early:1";

// The package's routers and what it has learned; what it lacks is null, and hybrid has the layers
// that were recorded. An error names what cannot be read; unsupported: a dense model.
Result<SpeculationSources> load_speculation_sources(
    const std::shared_ptr<const ModelPackage>& package, ThreadPool& threads);

class LossyWays {
  public:
    LossyWays(SpeculationSources sources, MeasuredLosses losses);

    // Any thread. The same speculator for the same way, however it is written. invalid_argument:
    // nothing is called so; not_found: what the package lacks, and the command that makes it;
    // unsupported: the model has too few MoE layers.
    Result<ExpertWay> find(std::string_view name);
    // Those that this package has all for: early calls, each guess alone and with the router's
    // weights, and what was measured besides.
    std::vector<std::string> offered();
    const MeasuredLosses& losses() const { return losses_; }

  private:
    const SpeculationSources sources_;
    const MeasuredLosses losses_;
    std::mutex mutex_;
    std::map<std::string, std::unique_ptr<Speculator>, std::less<>> made_;
};

}  // namespace moex
