// The options of a pack that settings and arguments give. Shared by the commands pack and pull.
#pragma once

#include "hub/commands/command.h"
#include "hub/model/pack/pack_options.h"

namespace moex {

Result<PackOptions> pack_options_of(const Invocation& invocation);

}  // namespace moex
