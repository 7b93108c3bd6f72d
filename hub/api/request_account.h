// The account that the tokens of a request are charged to, as the API sees it. Each request has one
// object; any thread may call it.
#pragma once

#include <cstdint>
#include <functional>

#include "hub/api/refusal.h"

namespace moex {

class RequestAccount {
  public:
    virtual ~RequestAccount() = default;
    // Reserves the most tokens that the request may take, prompts and answers together. Called
    // once, before the work. Refuses with 429 if the client's limit leaves no room, and with 401 if
    // its key is no longer valid.
    virtual Checked<void> reserve(std::uint64_t tokens_max) = 0;
    // Reports the tokens that the request took; the rest of the reservation is given back. Called
    // once, after the work. Without this call the whole reservation is given back.
    virtual void settle(std::uint64_t tokens) = 0;
    // Counts tokens that have been sent to the client.
    virtual void count(std::uint64_t prompt_tokens, std::uint64_t answer_tokens) = 0;
    // `handler` runs if the client's key is revoked or expires while the request runs. It runs at
    // most once.
    virtual void on_key_ended(std::function<void()> handler) = 0;
};

}  // namespace moex
