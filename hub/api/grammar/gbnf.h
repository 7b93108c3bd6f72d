// Compiles GBNF, llama.cpp's notation of grammars, into a grammar: `root ::= "a" [b-d]* other?`.
// Rules that are not recursive become automata; recursive rules need a stack, whose depth is
// bounded. A token is named by its number, `<[123]>`, or by its text, `<|im_end|>`, if the
// vocabulary has such a special token. Left recursion, an undefined rule, and a repeated part that
// may be empty are refused.
// Source: llama.cpp, grammars/README.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "hub/api/grammar/grammar.h"

namespace moex {

// A function that finds the id of a special token by its text; nullopt: the vocabulary has no such
// token.
using FindToken = std::function<std::optional<TokenId>(std::string_view)>;

// Adds to a grammar the nodes of the rule `root` and of all rules that `root` needs; returns the
// node of `root`.
Result<NodeId> add_gbnf(std::vector<GrammarNode>& nodes, std::string_view source,
                        const FindToken& find_token, std::size_t vocab_size);

}  // namespace moex
