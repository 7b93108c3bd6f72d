// The interface of a store outside of the GPU's memory for pages of keys and values; in a tab: the
// browser's files. Bytes are those of the GPU's cache, a page's layers one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// One call at a time. `done` may be called at once.
class EvictedPages {
  public:
    virtual ~EvictedPages() = default;
    // Stores a page, in place of what it held. `layers` stay valid until `done`.
    virtual void write(std::uint32_t page, ByteView layers, std::function<void(Status)> done) = 0;
    // Gives the bytes of layer `layer` of the pages, one page after the other. They are valid
    // during the call of `done` only.
    virtual void read(std::uint32_t layer, std::span<const std::uint32_t> pages,
                      std::function<void(Result<ByteView>)> done) = 0;
};

}  // namespace moex
