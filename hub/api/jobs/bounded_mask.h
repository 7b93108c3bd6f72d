// The mask of the tokens that a request rules out beside its form (TokenBounds).
// A form comes first: where its mask and these rules leave no token, the form's mask holds, so that
// an answer with a form is always complete.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hub/api/completion_params.h"
#include "hub/engine/sampler.h"

namespace moex {

class BoundedMask : public TokenMask {
  public:
    // `own_ends` are the model's ends, `asked_ends` those that the request names. `inner` is the
    // mask of the answer's form; null: any token.
    BoundedMask(TokenBounds bounds, std::vector<TokenId> own_ends, std::vector<TokenId> asked_ends,
                std::size_t vocab_size, std::shared_ptr<TokenMask> inner);
    std::span<const std::uint64_t> allowed(std::span<const TokenId> answer,
                                           std::uint32_t tokens_left) override;
    std::vector<TokenId> forced(std::span<const TokenId> answer, std::size_t tokens_max) override;

  private:
    void forbid(std::span<const TokenId> ids);

    const TokenBounds bounds_;
    const std::vector<TokenId> own_ends_, asked_ends_;
    const std::size_t vocab_size_;
    const std::shared_ptr<TokenMask> inner_;
    std::vector<std::uint64_t> bits_;
};

}  // namespace moex
