#include "hub/commands/chat/generation.h"

#include <random>

namespace moex {

SamplingOptions sampling_of(const Settings& settings, const GenerationDefaults& defaults) {
    const std::string &temperature = settings.text("temperature"), &top_p = settings.text("top-p"),
                      &seed = settings.text("seed");
    const double own_temperature = defaults.do_sample ? defaults.temperature : 0;

    SamplingOptions sampling;
    sampling.temperature = temperature.empty() ? own_temperature : std::stod(temperature);
    sampling.top_p = top_p.empty() ? defaults.top_p : std::stod(top_p);
    sampling.sample_top_k = defaults.sample_top_k;
    sampling.min_p = defaults.min_p;
    sampling.repetition_penalty = defaults.repetition_penalty;
    sampling.presence_penalty = defaults.presence_penalty;
    sampling.frequency_penalty = defaults.frequency_penalty;
    sampling.seed = seed.empty() ? std::random_device{}() : std::stoull(seed);
    return sampling;
}

}  // namespace moex
