// Rewrites the pattern of a pre-tokenizer from Oniguruma's syntax to the syntax of the engine that
// runs it. The functions refuse constructs that the engine lacks or interprets differently, and
// name the construct. Case-insensitive groups fold ASCII letters only, and \s means the Unicode
// property White_Space, as in @huggingface/tokenizers.
#pragma once

#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

// Returns the pattern in the syntax of PCRE2 with the options PCRE2_UTF | PCRE2_UCP.
Result<std::string> pcre2_spelling(std::string_view oniguruma);
// Returns the pattern in the syntax of a JavaScript RegExp that has the flag "u" and no other flag
// that changes its meaning. Source: ECMA-262, 22.2.1.
Result<std::string> ecmascript_spelling(std::string_view oniguruma);

}  // namespace moex
