// What a round's groups share: x in wire form, made once for all frames that it travels in, and
// memory for their answers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "protocol/messages.h"
#include "protocol/wire_frame.h"

namespace moex {

// The frame of encode_group_dispatch(), bit for bit, for a message whose x would be the rows
// `tokens` of `from`; message.x is not looked at. `from` is of the dtype that its x travels in.
Bytes encode_group_dispatch(const GroupDispatch& message, const WireRows& from,
                            std::span<const std::uint32_t> tokens, bool lz4);
// The same bytes without a copy of the rows: the frame shares them.
WireFrame gather_group_dispatch(const GroupDispatch& message, std::shared_ptr<const WireRows> from,
                                std::span<const std::uint32_t> tokens);

// The same message as without `memory`, into which y is written if it has room; what it holds is
// of no matter.
Result<GroupResult> decode_group_result(ByteView frame, const WireLimits& limits,
                                        std::vector<float> memory);

// What an answer says that it is, by its headers: its rows are not looked at. Of a RESULT its
// layer, num_tokens, hidden_dim and dtype.
Result<GroupShape> peek_result(ByteView frame, const WireLimits& limits);
Result<GroupShape> peek_group_result(ByteView frame, const WireLimits& limits);

}  // namespace moex
