// Regex: a regular expression over UTF-8. There are two implementations: PCRE2 in a native program
// (regex_pcre2.cpp), and the browser's RegExp in a tab (web-worker/local/browser_text.cpp). A
// program links one of the two.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/result.h"

namespace moex {

class Regex {
  public:
    using Range = std::pair<std::size_t, std::size_t>;  // a match: bytes [begin, end) of the text

    // Compiles a pattern, which must be valid UTF-8. An error names a construct that the regex
    // engine does not support.
    static Result<std::unique_ptr<const Regex>> compile(std::string_view oniguruma);
    virtual ~Regex() = default;
    // Appends all non-empty matches of the pattern in `text` (valid UTF-8) to `matches`, from left
    // to right. Thread-safe.
    virtual void find(std::string_view text, std::vector<Range>& matches) const = 0;
};

}  // namespace moex
