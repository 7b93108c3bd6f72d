// Rewrites a pre-tokenizer's pattern from Oniguruma's syntax into that of the engine that runs it.
// What an engine cannot say, or would take in another sense, is refused by its name.
// Case-insensitive groups fold ASCII only and \s is White_Space, as in @huggingface/tokenizers.
#pragma once

#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

// For PCRE2_UTF | PCRE2_UCP.
Result<std::string> pcre2_spelling(std::string_view oniguruma);
// For a RegExp with the flag "u" and no other that changes a meaning. Source: ECMA-262, 22.2.1.
Result<std::string> ecmascript_spelling(std::string_view oniguruma);

}  // namespace moex
