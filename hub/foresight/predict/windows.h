// Walks a text through the model in windows that do not overlap, each as a fresh sequence.
// Predictors are calibrated, trained and measured on such a walk. No logits are computed.
#pragma once

#include <functional>
#include <span>

#include "hub/engine/decoder.h"

namespace moex {

struct WindowOptions {
    std::uint32_t window_tokens = 512;
    std::uint32_t num_windows = 0;  // number of windows to walk; 0: all whole windows of the text
    KvDtype kv_dtype = KvDtype::f32;
    // number of rows in one step; it changes no bit of the result
    std::uint32_t chunk_tokens = 128;
};

// Returns the number of windows of a walk over a text of `num_tokens` tokens. The error is
// invalid_argument if the text has too few whole windows, or if a window is longer than the
// context.
Result<std::uint32_t> count_windows(const ModelConfig& config, std::size_t num_tokens,
                                    const WindowOptions& options);

// Lets the model read the windows of a text. Calls `watch` for each MoE layer of each step, and
// `ended(windows_done, windows)` at the end of each window; `ended` may be empty.
Status walk_windows(Decoder& decoder, ExpertBackend& experts, std::span<const TokenId> tokens,
                    const WindowOptions& options, const RouteWatch& watch,
                    const std::function<void(std::uint32_t, std::uint32_t)>& ended);

}  // namespace moex
