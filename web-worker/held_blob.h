// The type of a blob that is held in this machine's memory.
#pragma once

#include <memory>

#include "protocol/bytes.h"

namespace moex {

// A verified blob. Its bytes stay valid and in place while `holds` exists.
struct HeldBlob {
    ByteView bytes;
    std::shared_ptr<const void> holds;
    explicit operator bool() const { return holds != nullptr; }
};

}  // namespace moex
