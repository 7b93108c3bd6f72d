// What an answer may say next, by its grammar: the engine asks it before each draw.
// A hub's tokens and walks are shared (MaskMaker), a state is one answer's own. The next mask is
// made on a thread of its own while the step runs, so that nobody waits for it; a mask that is not
// there yet when it is asked for is made there and then.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "hub/api/grammar/mask.h"
#include "hub/engine/sampler.h"

namespace moex {

class MaskMaker {
  public:
    explicit MaskMaker(Vocabulary vocabulary);
    ~MaskMaker();  // what waits is dropped
    const Vocabulary& vocabulary() const { return vocabulary_; }
    MaskCache& cache() { return cache_; }

    // The grammar that was built under `key`, or a new one. Keeps the last few. Thread-safe.
    using Build = std::function<Result<std::shared_ptr<const Grammar>>()>;
    Result<std::shared_ptr<const Grammar>> grammar(const std::string& key, const Build& build);
    // Runs `job` soon, on the maker's thread. Each answer has at most one waiting.
    void post(std::function<void()> job);

  private:
    struct State;
    const Vocabulary vocabulary_;
    MaskCache cache_;
    std::shared_ptr<State> state_;  // its thread's, too
};

class AnswerMask : public TokenMask, public std::enable_shared_from_this<AnswerMask> {
  public:
    AnswerMask(std::shared_ptr<MaskMaker> maker, GrammarState begin);
    std::span<const std::uint64_t> allowed(std::span<const TokenId> answer,
                                           std::uint32_t tokens_left) override;
    // The answer's token `index` is `id`: makes the next mask while others work.
    void expect(std::size_t index, TokenId id);
    // Whether the budget has forbidden what the grammar allows.
    bool cut_short() const;
    std::uint32_t least() const;  // tokens to an end, each of one byte

  private:
    void follow(TokenId id);
    void fill(std::uint32_t tokens_left);

    const std::shared_ptr<MaskMaker> maker_;
    mutable std::mutex mutex_;  // of what follows
    GrammarState state_;
    std::size_t taken_ = 0;  // tokens
    bool is_lost_ = false;   // the answer left its grammar: never, unless somebody forced a token
    bool cut_short_ = false;
    TokenBits bits_;
    std::size_t bits_behind_ = 0;  // tokens before the one that bits_ are of
    std::uint32_t bits_left_ = 0;  // tokens_left of bits_; 0: none made yet
};

}  // namespace moex
