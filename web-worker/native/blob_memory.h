// Verified blobs that stay in this machine's memory, up to a budget: what was asked for least
// recently goes first. One thread's.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <utility>

#include "protocol/bytes.h"
#include "protocol/sha256.h"

namespace moex::native {

class BlobMemory {
  public:
    explicit BlobMemory(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

    // Null where it is not here; valid until the next call.
    const Bytes* find(const Sha256& hash);
    // A copy of it, unless it is here or larger than the budget.
    void keep(const Sha256& hash, ByteView blob);

  private:
    using Entry = std::pair<Sha256, Bytes>;
    const std::uint64_t bytes_max_;
    std::uint64_t bytes_ = 0;
    std::list<Entry> newest_first_;
    std::map<Sha256, std::list<Entry>::iterator> by_hash_;
};

}  // namespace moex::native
