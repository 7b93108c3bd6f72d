// What a round's groups share: x in wire form, made once for all that it travels in, and memory
// for their answers.
#pragma once

#include <span>
#include <vector>

#include "protocol/messages.h"

namespace moex {

struct WireRows {
    Dtype dtype = Dtype::f16;
    std::uint32_t row_size = 0;
    Bytes bytes;  // as encode_rows() writes them
};

// The frame of encode_group_dispatch(), bit for bit, for a message whose x would be the rows
// `tokens` of `from`; message.x is not looked at. `from` is of the dtype that its x travels in.
Bytes encode_group_dispatch(const GroupDispatch& message, const WireRows& from,
                            std::span<const std::uint32_t> tokens, bool lz4);

// The same message as without `memory`, into which y is written if it has room; what it holds is
// of no matter.
Result<GroupResult> decode_group_result(ByteView frame, const WireLimits& limits,
                                        std::vector<float> memory);

}  // namespace moex
