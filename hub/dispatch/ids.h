// The numbers by which dispatch names a worker's connection, a round and an attempt. Each is unique
// for the life of the hub; 0 names none, and as a worker of an answer the local backend.
#pragma once

#include <cstdint>

namespace moex {

using WorkerId = std::uint64_t;
using RoundId = std::uint64_t;
using AttemptId = std::uint64_t;

}  // namespace moex
