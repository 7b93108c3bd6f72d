// Encoding and decoding of group messages without extra copies of rows. The groups of a round share
// the rows of x in wire form, which are encoded once for all frames. Answers are decoded into
// reused memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "protocol/messages.h"
#include "protocol/wire_frame.h"

namespace moex {

// Returns the same frame, bit for bit, as encode_group_dispatch() of a message in which x has the
// rows `tokens` of `from`. This function ignores message.x. `from` has the dtype that x has on the
// wire.
Bytes encode_group_dispatch(const GroupDispatch& message, const WireRows& from,
                            std::span<const std::uint32_t> tokens, bool lz4);
// Returns the same bytes as encode_group_dispatch(), without a copy of the rows: the frame shares
// the rows of `from`.
WireFrame gather_group_dispatch(const GroupDispatch& message, std::shared_ptr<const WireRows> from,
                                std::span<const std::uint32_t> tokens);

// Decodes a GROUP_RESULT into `memory`. The result equals that of the function without `memory`. If
// the capacity of `memory` suffices, y is written into it without an allocation. The old contents
// of `memory` are ignored.
Result<GroupResult> decode_group_result(ByteView frame, const WireLimits& limits,
                                        std::vector<float> memory);

// These functions return the shape of an answer from its headers, without reading its rows. For a
// RESULT the shape has layer, num_tokens, hidden_dim and dtype only.
Result<GroupShape> peek_result(ByteView frame, const WireLimits& limits);
Result<GroupShape> peek_group_result(ByteView frame, const WireLimits& limits);

}  // namespace moex
