// Encoding and decoding of groups without extra copies of rows: the groups of a round share x in
// wire form, which is encoded once for all frames, and answers are decoded into reused memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "protocol/messages.h"
#include "protocol/wire_frame.h"

namespace moex {

// Returns the same frame, bit for bit, as encode_group_dispatch() of a message with the rows
// `tokens` of `from` as x. This function ignores message.x. `from` has the dtype of x on the wire.
Bytes encode_group_dispatch(const GroupDispatch& message, const WireRows& from,
                            std::span<const std::uint32_t> tokens, bool lz4);
// Returns the same bytes without a copy of the rows: the frame shares the rows of `from`.
WireFrame gather_group_dispatch(const GroupDispatch& message, std::shared_ptr<const WireRows> from,
                                std::span<const std::uint32_t> tokens);

// Decodes the same message as the version without `memory`. If the capacity of `memory` suffices, y
// is written into it. The contents of `memory` are ignored.
Result<GroupResult> decode_group_result(ByteView frame, const WireLimits& limits,
                                        std::vector<float> memory);

// These functions return the shape that the headers of an answer state, without reading its rows.
// For a RESULT the shape has layer, num_tokens, hidden_dim and dtype only.
Result<GroupShape> peek_result(ByteView frame, const WireLimits& limits);
Result<GroupShape> peek_group_result(ByteView frame, const WireLimits& limits);

}  // namespace moex
