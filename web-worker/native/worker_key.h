// The worker key: a random name under which a hub keeps a worker's counters and its placement. The
// key is stored beside the weights, so that the hub recognises a worker that is started again.
#pragma once

#include <filesystem>
#include <string>

#include "protocol/result.h"

namespace moex::native {

std::string random_worker_key();  // 32 hex digits

// Returns the key in the file `worker-key` of `folder`. Creates the file, readable by its owner
// only, if it does not exist or holds no valid key. Returns an error if the file cannot be written.
Result<std::string> kept_worker_key(const std::filesystem::path& folder);

}  // namespace moex::native
