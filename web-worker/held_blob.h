// A blob that lies in this machine's memory.
#pragma once

#include <memory>

#include "protocol/bytes.h"

namespace moex {

// Verified; it stays where it is while this is held.
struct HeldBlob {
    ByteView bytes;
    std::shared_ptr<const void> holds;
    explicit operator bool() const { return holds != nullptr; }
};

}  // namespace moex
