// A regular expression over UTF-8, of whoever has an engine: PCRE2 in a native program
// (regex_pcre2.cpp), the browser's RegExp in a tab (web-worker/local/browser_text.cpp). A program
// links one of them.
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
    using Range = std::pair<std::size_t, std::size_t>;  // [begin, end) in bytes

    // An error names what this engine cannot do. The pattern is valid UTF-8.
    static Result<std::unique_ptr<const Regex>> compile(std::string_view oniguruma);
    virtual ~Regex() = default;
    // Appends the non-empty matches of `text` (valid UTF-8), from left to right. Thread-safe.
    virtual void find(std::string_view text, std::vector<Range>& matches) const = 0;
};

}  // namespace moex
