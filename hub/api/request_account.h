// Whom a request's tokens are counted for, as the API sees it. One per request; any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "hub/api/refusal.h"

namespace moex {

class RequestAccount {
  public:
    virtual ~RequestAccount() = default;
    // Once, before the work: the most it may take, prompts and answers together. Refuses with 429
    // while the client's limit leaves no room for it, with 401 when its key opens nothing any more.
    virtual Checked<void> reserve(std::uint64_t tokens_max) = 0;
    // Once, after the work: what it took. The rest of the reservation is given back. Without this
    // all of it is.
    virtual void settle(std::uint64_t tokens) = 0;
    // Tokens that have left for the client.
    virtual void count(std::uint64_t prompt_tokens, std::uint64_t answer_tokens) = 0;
    // `handler` runs at most once: when the key stops opening while the request runs.
    virtual void on_key_ended(std::function<void()> handler) = 0;
};

}  // namespace moex
