// A text walked through the model in windows that do not overlap, each a fresh sequence: how
// predictors are calibrated, trained and measured. No logits are computed.
#pragma once

#include <functional>
#include <span>

#include "hub/engine/decoder.h"

namespace moex {

struct WindowOptions {
    std::uint32_t window_tokens = 512;
    std::uint32_t num_windows = 0;  // 0: as many whole windows as the text has
    KvDtype kv_dtype = KvDtype::f32;
    std::uint32_t chunk_tokens = 128;  // rows of one step; changes no bit
};

// How many windows the walk has. invalid_argument when the text has fewer, or none, or a window is
// beyond the context.
Result<std::uint32_t> count_windows(const ModelConfig& config, std::size_t num_tokens,
                                    const WindowOptions& options);

// `watch` hears each MoE layer of each step; `ended(windows_done, windows)` each window's end.
Status walk_windows(Decoder& decoder, ExpertBackend& experts, std::span<const TokenId> tokens,
                    const WindowOptions& options, const RouteWatch& watch,
                    const std::function<void(std::uint32_t, std::uint32_t)>& ended);

}  // namespace moex
