// Template source → tokens. White space is treated as transformers sets Jinja up: trim_blocks and
// lstrip_blocks on, one final newline dropped.
// Source: Jinja 3, "Template Designer Documentation", whitespace control and literals.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moex::jinja {

enum class TokenKind {
    text,
    print_begin,
    print_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    floating,
    symbol,
    end
};

struct Token {
    TokenKind kind = TokenKind::end;
    std::string text;  // of literals: the decoded value; of symbols: the operator
    std::uint32_t line = 1;
};

// Throws Failure naming the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace moex::jinja
