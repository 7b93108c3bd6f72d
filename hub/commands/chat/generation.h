// Parts that generate and chat share: options of the sampler, and the way of tokens from the
// engine's thread to the main thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "hub/engine/engine.h"
#include "hub/model/package/generation_defaults.h"
#include "hub/options/options.h"

namespace moex {

// Returns the sampling options. Options that the settings do not give have the package's defaults.
SamplingOptions sampling_of(const Settings& settings, const GenerationDefaults& defaults);

// A queue of tokens from the engine's thread to the main thread.
class TokenMailbox {
  public:
    GenerationSink sink() {
        return {.on_token =
                    [this](const TokenEvent& event) {
                        const std::lock_guard lock(mutex_);
                        tokens_.push_back(event.token);
                        wake_.notify_one();
                    },
                .on_end =
                    [this](const GenerationEnd& end) {
                        const std::lock_guard lock(mutex_);
                        end_ = end;
                        wake_.notify_one();
                    }};
    }

    // Waits for tokens or for the end of the generation. `end` is set once, together with the last
    // tokens.
    std::deque<SampledToken> take(std::optional<GenerationEnd>& end) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return !tokens_.empty() || end_; });
        end = end_;
        return std::exchange(tokens_, {});
    }

  private:
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<SampledToken> tokens_;
    std::optional<GenerationEnd> end_;
};

}  // namespace moex
