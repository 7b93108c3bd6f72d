// A model's layers in words, for people that pack or inspect it.
#pragma once

#include <string>
#include <vector>

#include "hub/model/config.h"

namespace moex {

// Returns a line for each run of layers of one plan: "0-3, 8: window 128; sinks", and one for what
// all layers share.
std::vector<std::string> layer_lines(const ModelConfig& config);

}  // namespace moex
