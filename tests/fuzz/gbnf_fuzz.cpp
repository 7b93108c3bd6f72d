// Fuzzes the GBNF parser. Any bytes must either be refused with a sentence, or give a grammar in
// which every state can reach an end within the number of bytes that the state reports.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/grammar/gbnf.h"
#include "hub/api/grammar/grammar_state.h"

namespace {

void require(bool holds) {
    if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace moex;
    constexpr std::size_t source_max = 1024, walk_max = 64;
    const std::string_view source(reinterpret_cast<const char*>(data), size);
    if (size > source_max) return 0;

    std::vector<GrammarNode> nodes;
    const auto no_token = [](std::string_view) { return std::optional<TokenId>(); };
    const auto root = add_gbnf(nodes, source, no_token, 1000);
    if (!root) {
        require(!root.error().message.empty());
        return 0;
    }
    const auto grammar = Grammar::build(std::move(nodes), *root);
    if (!grammar) {
        require(!grammar.error().message.empty());
        return 0;
    }

    // Feed the source of the grammar to the grammar itself, as far as it is accepted. Then choose
    // bytes of which each comes one step nearer to an end, unless the grammar requires a token.
    GrammarState state(*grammar);
    for (const char c : source) state.take(static_cast<unsigned char>(c));
    for (std::size_t i = 0; i < walk_max && !state.may_end(); ++i) {
        const std::uint32_t least = state.least();
        bool is_nearer = false;
        for (unsigned byte = 0; byte < 256 && !is_nearer; ++byte) {
            GrammarState next = state;
            if (!next.take(static_cast<unsigned char>(byte)) || next.least() >= least) continue;
            state = std::move(next);
            is_nearer = true;
        }
        const bool waits_for_token = !grammar.value()->named_tokens().empty();
        require(is_nearer || waits_for_token);
        if (!is_nearer) break;
    }
    return 0;
}
