// Splits the source of a template into tokens. White space is treated with the Jinja options of
// transformers: trim_blocks and lstrip_blocks are on, and one final newline is dropped.
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
    std::string text;  // value of a literal without quotes and escapes, or the operator
    std::uint32_t line = 1;
};

// Splits a template into tokens. Throws a Failure that names the line of an error.
std::vector<Token> tokenize(std::string_view source);

}  // namespace moex::jinja
