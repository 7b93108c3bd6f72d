// The name under which a hub keeps a worker's counters and its place: random, and kept beside the
// weights, so that a worker that is started again is the one that it was.
#pragma once

#include <filesystem>
#include <string>

#include "protocol/result.h"

namespace moex::native {

std::string random_worker_key();  // 32 hex digits

// The key in the file `worker-key` of `folder`, made there when there is none that can be used;
// readable for its owner alone. An error when it cannot be kept.
Result<std::string> kept_worker_key(const std::filesystem::path& folder);

}  // namespace moex::native
