// Types for the ids of a worker's connection, a round and an attempt. Each id is unique for the
// life of the hub. 0 means none; as the worker of an answer, 0 means the local backend.
#pragma once

#include <cstdint>

namespace moex {

using WorkerId = std::uint64_t;
using RoundId = std::uint64_t;
using AttemptId = std::uint64_t;

}  // namespace moex
