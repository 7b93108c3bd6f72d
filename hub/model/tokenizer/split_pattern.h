// A pre-tokenizer's pattern: Oniguruma syntax in, PCRE2 underneath, matches out.
// Immutable; find() is thread-safe. Every match has PCRE2's limits; beyond them the rest of the
// text stays one piece.
// Source: tokenizers' "Split"; case-insensitive groups fold ASCII only and \s is White_Space, as in
// @huggingface/tokenizers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/result.h"

namespace moex {

class SplitPattern {
  public:
    using Range = std::pair<std::size_t, std::size_t>;  // [begin, end) in bytes

    static Result<SplitPattern> compile_regex(std::string_view oniguruma);
    static Result<SplitPattern> compile_literal(std::string_view literal);
    SplitPattern(SplitPattern&&) noexcept;
    SplitPattern& operator=(SplitPattern&&) noexcept;
    ~SplitPattern();

    // Non-empty matches of `text` (valid UTF-8) in order.
    void find(std::string_view text, std::vector<Range>& matches) const;

  private:
    SplitPattern();
    struct State;
    std::unique_ptr<State> state_;
};

// The rewriting alone, for tests: PCRE2's spelling of an Oniguruma pattern.
Result<std::string> pcre2_spelling(std::string_view oniguruma);

}  // namespace moex
