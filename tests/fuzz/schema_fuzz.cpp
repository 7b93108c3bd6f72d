// Fuzzes JSON schemas. Any bytes must either be refused with a sentence, or give a grammar that
// keeps two promises. Every reachable state can reach an end within the number of bytes that the
// state reports, and every finished answer is JSON. (Inside a character of a free member's name a
// state may report too many bytes.)
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

// Extends the answer by those bytes of `random` that the grammar accepts, then by the shortest path
// to an end.
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
    // The fuzzer's input is a schema, a line end, and bytes that the answer tries to use.
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
