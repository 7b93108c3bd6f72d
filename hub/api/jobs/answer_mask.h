// The token masks of answers with a grammar; the engine requests a mask before it draws each token.
// MaskMaker holds the vocabulary and the walks, which all answers of a hub share. AnswerMask holds
// the state of one answer. A separate thread makes the next mask while the model's step runs, so
// that the engine does not wait. A mask that is not ready when the engine requests it is made at
// once.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "hub/api/grammar/mask.h"
#include "hub/engine/sampler.h"

namespace moex {

struct AnswerRules;  // hub/api/jobs/answer_form.h

class MaskMaker {
  public:
    explicit MaskMaker(Vocabulary vocabulary);
    ~MaskMaker();  // drops queued jobs
    const Vocabulary& vocabulary() const { return vocabulary_; }
    MaskCache& cache() { return cache_; }

    // Returns the rules that were built under `key`, or builds them. Keeps the last 32 of them.
    // Thread-safe.
    using Build = std::function<Result<std::shared_ptr<const AnswerRules>>()>;
    Result<std::shared_ptr<const AnswerRules>> rules(const std::string& key, const Build& build);
    // Queues `job` for the thread of this mask maker. Each answer has at most one job queued.
    void post(std::function<void()> job);

  private:
    struct State;
    const Vocabulary vocabulary_;
    MaskCache cache_;
    std::shared_ptr<State> state_;  // state that the mask maker shares with its thread
};

// The masks of an answer: follows its tokens through the grammar.
class AnswerMask : public TokenMask, public std::enable_shared_from_this<AnswerMask> {
  public:
    AnswerMask(std::shared_ptr<MaskMaker> maker, GrammarState begin);
    std::span<const std::uint64_t> allowed(std::span<const TokenId> answer,
                                           std::uint32_t tokens_left) override;
    std::vector<TokenId> forced(std::span<const TokenId> answer, std::size_t tokens_max) override;
    // Queues the making of the next mask, after token number `index` of the answer, which is `id`.
    void expect(std::size_t index, TokenId id);
    // Returns true if the token budget has forbidden a token that the grammar allows.
    bool cut_short() const;
    // Returns true if the answer is complete after its last token, for which expect() was called.
    bool is_complete() const;
    std::uint32_t least() const;  // tokens to the shortest end of the answer, one byte each

  private:
    void follow(TokenId id);
    void fill(std::uint32_t tokens_left);

    const std::shared_ptr<MaskMaker> maker_;
    mutable std::mutex mutex_;  // guards the following members
    GrammarState state_;
    std::size_t taken_ = 0;  // number of tokens of the answer that `state_` has taken
    bool is_lost_ = false;   // the answer left its grammar; only a forced token can cause that
    bool cut_short_ = false;
    TokenBits bits_;
    // Number of the answer's tokens before the token that `bits_` masks.
    std::size_t bits_behind_ = 0;
    std::uint32_t bits_left_ = 0;  // tokens_left that `bits_` was made for; 0: no mask was made yet
    // The last token that expect() got, and its index; used by the engine's thread alone.
    TokenId last_id_ = 0;
    std::size_t last_index_ = 0;
    bool has_last_ = false;
};

}  // namespace moex
