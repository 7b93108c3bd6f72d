// Draws random answers under the masks of a grammar, and makes vocabularies to draw from.
#pragma once

#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hub/api/grammar/json_schema.h"
#include "hub/api/grammar/mask.h"
#include "hub/api/grammar/schema_judge.h"
#include "hub/api/grammar/schema_values.h"
#include "tests/support/repository.h"

namespace moex::test {

inline OrderedJson json(std::string_view text) { return OrderedJson::parse(text); }

// A vocabulary of all bytes, and of tokens that cross the borders of JSON values and punctuation.
inline Vocabulary small_vocabulary() {
    std::vector<std::string> tokens;
    for (unsigned byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* token :
         {"{\"",     "\": ",     "\", \"",     "\"}",      "}}",       "]]",
          "[[",      "[]",       "{}",         ", ",       "\": \"",   "\": {\"",
          "true",    "false",    "null",       "tr",       "12",       "0.5",
          "1e",      "-1",       "999",        "ab",       "abc",      "the",
          " a",      "\\n",      "\\u",        "\\u00",    "\\ud83d",  "\\\"",
          "a\\",     "\xc3\xa9", "\xf0\x9f",   "\x98\x80", "\xe2\x82", "a\": 1, \"",
          "name",    "a\"",      "b\": ",      "\": 1}",   "1, ",      "], [",
          "\"]",     "\"}}",     "xyz\", \"a", "2024-",    "-02-",     "T1",
          ":00",     "@a.",      ".b",         "\n",       "  ",       "\"a\": 1, \"b\": 2}",
          "id\": \""})
        tokens.emplace_back(token);
    const auto end = static_cast<TokenId>(tokens.size());
    tokens.emplace_back("<end>");
    tokens.emplace_back("<call>");
    tokens.emplace_back("");  // padding
    return Vocabulary(std::move(tokens), {end + 1}, {end});
}

inline const Vocabulary& demo_vocabulary() {
    static const Vocabulary vocabulary = [] {
        const auto read = [](const char* name) {
            std::ifstream file((repository() / "static/models/demo/").string() + name,
                               std::ios::binary);
            return std::string(std::istreambuf_iterator<char>(file), {});
        };
        const auto tokenizer =
            Tokenizer::load(read("tokenizer.json"), read("tokenizer_config.json")).value();
        return Vocabulary(*tokenizer, tokenizer->vocab_size(), {8191, 8189});
    }();
    return vocabulary;
}

struct Drawn {
    std::string text;
    bool ended = false;  // true: an end token ended the answer, not the token budget
    std::uint32_t tokens = 0;
};

// Draws an answer from the allowed tokens, which are all equally likely. With `compare`, each mask
// is compared with the mask of fill_mask_plain().
inline Drawn draw_answer(const std::shared_ptr<const Grammar>& grammar,
                         const Vocabulary& vocabulary, MaskCache& cache, std::uint32_t tokens_max,
                         std::mt19937_64& random, bool compare) {
    GrammarState state(grammar);
    TokenBits bits(vocabulary.num_words()), plain(vocabulary.num_words());
    Drawn drawn;
    while (drawn.tokens < tokens_max) {
        const std::uint32_t left = tokens_max - drawn.tokens;
        fill_mask(state, left, vocabulary, cache, bits);
        if (compare) {
            fill_mask_plain(state, left, vocabulary, plain);
            for (TokenId id = 0; id < vocabulary.size(); ++id) {
                if (has_bit(bits, id) == has_bit(plain, id)) continue;
                ADD_FAILURE() << "behind '" << drawn.text << "' with " << left << " left, token '"
                              << vocabulary.bytes(id) << "': " << has_bit(bits, id);
                return drawn;
            }
        }

        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < vocabulary.size(); ++id)
            if (has_bit(bits, id)) allowed.push_back(id);
        if (allowed.empty()) {
            ADD_FAILURE() << "nothing may follow '" << drawn.text << "' with " << left << " left";
            return drawn;
        }
        const TokenId id = allowed[random() % allowed.size()];
        if (vocabulary.is_end(id)) {
            drawn.ended = true;
            return drawn;
        }
        if (!take_token(state, vocabulary, id)) {
            ADD_FAILURE() << "allowed, but not taken: '" << vocabulary.bytes(id) << "' behind '"
                          << drawn.text << "'";
            return drawn;
        }
        drawn.text += vocabulary.bytes(id);
        ++drawn.tokens;
    }
    EXPECT_TRUE(state.may_end()) << drawn.text;
    return drawn;
}

// Returns true if the schema admits the answer's text. References have to stay within the schema.
inline bool is_valid(const OrderedJson& schema, const std::string& answer) {
    const OrderedJson value = OrderedJson::parse(answer, nullptr, false);
    if (value.is_discarded()) return false;
    const auto resolve = [&](const OrderedJson& reference) -> const OrderedJson& {
        return schema.at(
            OrderedJson::json_pointer(reference["$ref"].get_ref<const std::string&>().substr(1)));
    };
    const auto admits = schema_admits(schema, value, resolve);
    return admits.ok() && *admits;
}

}  // namespace moex::test
