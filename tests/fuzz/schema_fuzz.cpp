// Any bytes as a JSON schema: refused with a sentence, or a grammar that keeps its promises. What
// a state accepts can still end, in no more bytes than it says, and what ends is JSON. (It may say
// more than there are inside a character of a free member's name.)
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "hub/api/grammar/grammar_state.h"
#include "hub/api/grammar/json_schema.h"
#include "hub/model/strict_json.h"

namespace {

using namespace moex;

void require(bool holds) {
    if (!holds) std::abort();
}

// Goes on by `random`'s bytes where they fit, then the shortest way to an end.
std::string draw(GrammarState state, std::string_view random) {
    std::string said;
    for (const char c : random)
        if (state.take(static_cast<unsigned char>(c))) said += c;

    constexpr std::uint32_t end_bytes_max = 400;
    while (!state.may_end()) {
        const std::uint32_t least = state.least();
        if (least > end_bytes_max) return {};
        bool is_nearer = false;
        for (unsigned byte = 0; byte < 256 && !is_nearer; ++byte) {
            GrammarState next = state;
            if (!next.take(static_cast<unsigned char>(byte)) || next.least() >= least) continue;
            said += static_cast<char>(byte);
            state = std::move(next);
            is_nearer = true;
        }
        require(is_nearer);
    }
    return said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // A schema, a line end, and what an answer tries to say.
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const std::string_view words = input.substr(0, input.find('\n'));
    constexpr std::size_t words_max = 2048;
    if (words.size() > words_max) return 0;
    const auto schema = parse_strict_json<OrderedJson>(words, "schema", {.depth_max = 64});
    if (!schema) return 0;

    const auto grammar = grammar_of_schema(*schema, "schema");
    if (!grammar) {
        require(!grammar.error().message.empty());
        return 0;
    }
    const std::string_view random = words.size() < input.size() ? input.substr(words.size() + 1)
                                                                : words;
    const std::string said = draw(GrammarState(*grammar), random.substr(0, 256));
    if (said.empty()) return 0;
    require(parse_strict_json<OrderedJson>(said, "answer", {.depth_max = 512}).ok());
    return 0;
}
