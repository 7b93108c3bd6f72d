// SplitPattern: the pattern of a pre-tokenizer, in Oniguruma syntax or as a literal. It is
// immutable, and find() is thread-safe. In a native program PCRE2's limits apply to every match. If
// a match exceeds them, the remaining text stays one piece. Source: tokenizers' "Split".
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/tokenizer/regex.h"
#include "protocol/result.h"

namespace moex {

class SplitPattern {
  public:
    using Range = Regex::Range;

    static Result<SplitPattern> compile_regex(std::string_view oniguruma);
    static Result<SplitPattern> compile_literal(std::string_view literal);

    // Appends all non-empty matches of the pattern in `text` (valid UTF-8) to `matches`, in order.
    void find(std::string_view text, std::vector<Range>& matches) const;

  private:
    SplitPattern() = default;
    std::unique_ptr<const Regex> regex_;
    std::string literal_;  // literal to search for if `regex_` is null
};

}  // namespace moex
