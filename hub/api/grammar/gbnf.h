// GBNF, llama.cpp's notation of grammars, to a grammar: `root ::= "a" [b-d]* other?`.
// Rules that do not come back to themselves become automata; the others are followed by a stack of
// bounded depth. A token by its number `<[123]>`, or by its text `<|im_end|>`, where the vocabulary
// has such a special token. Left recursion, an undefined rule, and a repeat of something that may
// be empty are refused.
// Source: llama.cpp, grammars/README.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "hub/api/grammar/grammar.h"

namespace moex {

// The id of a token by its text; nullopt: there is none.
using FindToken = std::function<std::optional<TokenId>(std::string_view)>;

// Adds the nodes of `root`; returns its own.
Result<NodeId> add_gbnf(std::vector<GrammarNode>& nodes, std::string_view source,
                        const FindToken& find_token, std::size_t vocab_size);

}  // namespace moex
