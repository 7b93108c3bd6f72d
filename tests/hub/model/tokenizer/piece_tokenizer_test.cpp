// Tokenizers of SentencePiece's kind: characters, "▁" for a space, bytes as a fallback.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hub/model/tokenizer/charsmap.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

// Returns a file in the form of Llama 2's. Ids: <unk> 0, <s> 1, </s> 2, the bytes 3 to 258, then
// the pieces in the order of the list below.
json llama_file() {
    json file = json::parse(R"({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true},
            {"id": 1, "content": "<s>", "special": true, "normalized": false},
            {"id": 2, "content": "</s>", "special": true, "normalized": false}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "merges": ["▁ a", "a b", "▁a b", "< s", "<s >"]}
    })");
    json& vocab = file["model"]["vocab"];
    vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
    for (int byte = 0; byte < 256; ++byte) {
        char token[8];
        std::snprintf(token, sizeof token, "<0x%02X>", static_cast<unsigned>(byte));
        vocab[token] = 3 + byte;
    }
    int id = 259;
    for (const char* piece : {"▁", "a", "b", "▁a", "ab", "▁ab", "<", "s", ">", "<s"})
        vocab[piece] = id++;
    return file;
}
constexpr TokenId space = 259, a = 260, b = 261, space_a = 262, ab = 263, space_ab = 264;
TokenId byte(int value) { return static_cast<TokenId>(3 + value); }

std::shared_ptr<const Tokenizer> load_pieces(const json& file, const std::string& config = "") {
    auto loaded = Tokenizer::load(file.dump(), config);
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message);
    return loaded.ok() ? *loaded : nullptr;
}
std::string piece_error(const json& file, const std::string& config = "") {
    auto loaded = Tokenizer::load(file.dump(), config);
    return loaded.ok() ? "" : loaded.error().message;
}

TEST(PieceTokenizerTest, WordsAreMergedAndOtherCharactersAreBytes) {
    const auto tokenizer = load_pieces(llama_file());
    EXPECT_EQ(tokenizer->encode("ab a  b", SpecialTokens::parse),
              (Ids{space_ab, space_a, space, space, b}));
    EXPECT_EQ(tokenizer->encode("aé", SpecialTokens::parse),
              (Ids{space_a, byte(0xC3), byte(0xA9)}));
    EXPECT_EQ(tokenizer->encode("", SpecialTokens::parse), Ids{});
    EXPECT_EQ(tokenizer->encode("a<s>b", SpecialTokens::parse), (Ids{space_a, 1, space, b}));
    EXPECT_EQ(tokenizer->token_bytes(space_ab), " ab");
    EXPECT_EQ(tokenizer->token_bytes(byte(0xC3)), "\xC3");
}

TEST(PieceTokenizerTest, MergesCrossWordsWhereTheVocabularyDoes) {
    json file = llama_file();
    file["model"]["vocab"]["a▁"] = 269;
    file["model"]["merges"].insert(file["model"]["merges"].begin(), "a ▁");
    EXPECT_EQ(load_pieces(file)->encode("aa a", SpecialTokens::parse), (Ids{space_a, 269, a}));
}

// The merges of this file produce "<s>", which is a control token.
TEST(PieceTokenizerTest, MessagesMakeNoControlToken) {
    const auto tokenizer = load_pieces(llama_file());
    EXPECT_EQ(tokenizer->encode("<s>", SpecialTokens::parse), Ids{1});
    EXPECT_EQ(tokenizer->encode("<s>", SpecialTokens::as_text), (Ids{space, 268, 267}));

    json unigram = llama_file();
    unigram["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", json::array()}};
    for (const char* piece : {"<unk>", "<s>", "</s>", "▁", "<", "s", ">", "/"})
        unigram["model"]["vocab"].push_back({piece, -1.0});
    EXPECT_EQ(load_pieces(unigram)->encode("<s>", SpecialTokens::parse), Ids{1});
    EXPECT_EQ(load_pieces(unigram)->encode("<s>", SpecialTokens::as_text), (Ids{3, 4, 5, 6}));
}

// Older files match control tokens behind the normalizer, which adds characters.
TEST(PieceTokenizerTest, PlainRangesHoldBehindTheNormalizer) {
    json file = llama_file();
    file["added_tokens"][1]["normalized"] = true;
    const auto tokenizer = load_pieces(file);
    EXPECT_EQ(tokenizer->encode("<s>", SpecialTokens::parse), Ids{1});

    // The template writes the first "<s>"; the second is in the text of a message.
    const std::string text = "<s>a <s>";
    const std::vector<TextRange> message = {{3, 8}};
    const Ids ids = tokenizer->encode(text, message);
    EXPECT_EQ(ids.front(), 1u);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 1u), 1);
    EXPECT_EQ(tokenizer->decode(ids, false), "<s>a <s>");
}

TEST(PieceTokenizerTest, StreamGivesWholeCharactersAndOneLeadingSpaceLess) {
    const auto tokenizer = load_pieces(llama_file());
    const Ids ids = {space_a, byte(0xC3), byte(0xA9), byte(0xE2), byte(0x82), space_ab};
    StreamDecoder stream(*tokenizer);
    std::vector<std::string> parts;
    for (const TokenId id : ids) parts.push_back(stream.push(id));
    EXPECT_EQ(parts, (std::vector<std::string>{"a", "", "é", "", "", "\uFFFD ab"}));
    EXPECT_EQ(stream.finish(), "");
    EXPECT_EQ(tokenizer->decode(ids, true), "aé\uFFFD ab");
    EXPECT_EQ(tokenizer->decode(Ids{1, space, space_a}, true), " a");

    StreamDecoder behind(*tokenizer, true, TextBegin::earlier);
    EXPECT_EQ(behind.push(space_a), " a");
}

TEST(PieceTokenizerTest, UnigramTakesTheHighestSum) {
    json file = llama_file();
    file["model"] = json::parse(R"({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0],
        ["▁", -2], ["a", -3], ["b", -3], ["ab", -5.5], ["▁a", -4], ["▁ab", -8.5], ["ba", -1]]})");
    file["added_tokens"] = json::array();
    const auto tokenizer = load_pieces(file);

    EXPECT_EQ(tokenizer->encode("ab", SpecialTokens::parse), (Ids{5, 3}));  // -7, not -7.5 or -8.5
    EXPECT_EQ(tokenizer->encode("aba", SpecialTokens::parse), (Ids{5, 7}));
    EXPECT_EQ(tokenizer->encode("axyb", SpecialTokens::parse), (Ids{5, 0, 3}));  // one unknown run

    file["model"]["byte_fallback"] = true;
    file["model"]["vocab"].push_back({"<0x78>", -9});
    EXPECT_EQ(load_pieces(file)->encode("ax", SpecialTokens::parse), (Ids{5, 8}));
    // The text of a byte token is not this token, and "y" has no byte token.
    EXPECT_EQ(load_pieces(file)->encode("y", SpecialTokens::parse), (Ids{1, 0}));
    EXPECT_EQ(load_pieces(file)->token_bytes(8), "x");
}

TEST(PieceTokenizerTest, SingleWordsAreFoundAloneOnly) {
    json file = llama_file();
    file["added_tokens"].push_back(
        {{"id", 300}, {"content", "ab"}, {"single_word", true}, {"normalized", false}});
    const auto tokenizer = load_pieces(file);
    EXPECT_EQ(tokenizer->encode("ab.ab", SpecialTokens::parse), (Ids{300, space, byte('.'), 300}));
    EXPECT_EQ(tokenizer->encode("aab", SpecialTokens::parse), (Ids{space_a, ab}));
    EXPECT_EQ(tokenizer->encode("abé", SpecialTokens::parse),
              (Ids{space_ab, byte(0xC3), byte(0xA9)}));
}

TEST(PieceTokenizerTest, ConfigAddsBeginAndEnd) {
    const std::string both = R"({"add_bos_token": true, "bos_token": "<s>",)"
                             R"("add_eos_token": true, "eos_token": {"content": "</s>"}})";
    EXPECT_EQ(load_pieces(llama_file(), both)->encode_prompt("a"), (Ids{1, space_a, 2}));
    EXPECT_EQ(load_pieces(llama_file(), both)->encode("a", SpecialTokens::parse), Ids{space_a});
    EXPECT_EQ(load_pieces(llama_file())->encode_prompt("a"), Ids{space_a});
    EXPECT_EQ(load_pieces(llama_file(), R"({"add_bos_token": true})")->encode_prompt("a"),
              Ids{space_a});

    // A post-processor that adds the token already adds it once.
    json file = llama_file();
    file["post_processor"] = json::parse(
        R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
            {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [1]}}})");
    EXPECT_EQ(load_pieces(file, both)->encode_prompt("a"), (Ids{1, space_a, 2}));

    EXPECT_NE(piece_error(llama_file(), R"({"add_bos_token": true, "bos_token": "<begin>"})")
                  .find("add_bos_token is true, but bos_token \"<begin>\" is no token"),
              std::string::npos);
}

TEST(PieceTokenizerTest, UnsupportedPartsAreNamed) {
    struct Case {
        const char* pointer;
        json value;
        const char* message;
    };
    const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
    for (const Case& c :
         {Case{"/decoder", nullptr, "without a decoder"},
          Case{"/decoder", {{"type", "ByteLevel"}}, "decoder \"ByteLevel\""},
          Case{"/decoder", {{"type", "WordPiece"}}, "decoder \"WordPiece\""},
          Case{"/decoder", strip, "decoder \"Strip\""},
          Case{"/decoder/decoders/3/stop", 1, "decoder Strip with stop 1"},
          Case{"/decoder/decoders/0", {{"type", "Fuse"}}, "\"ByteFallback\" after Fuse"},
          Case{"/normalizer", {{"type", "Lowercase"}}, "normalizer \"Lowercase\""},
          Case{"/normalizer", {{"type", "Replace"}, {"content", "x"}}, "has no pattern"},
          Case{"/normalizer", {{"type", "Precompiled"}}, "has no precompiled_charsmap"},
          Case{"/normalizer",
               {{"type", "Precompiled"}, {"precompiled_charsmap", "AAA"}},
               "is not base64"},
          Case{"/normalizer",
               {{"type", "Precompiled"}, {"precompiled_charsmap", "/////w=="}},
               "wanted a trie of"},
          Case{"/pre_tokenizer",
               {{"type", "Metaspace"}, {"prepend_scheme", "sometimes"}},
               "prepend_scheme \"sometimes\""},
          Case{"/model/type", "WordPiece", "model type \"WordPiece\""},
          Case{"/model/type", "Unigram", "Unigram"},
          Case{"/model", json::parse(R"({"vocab": [["a", "b"]]})"), "a token and its score"},
          Case{"/model", json::parse(R"({"vocab": [["a", 1]], "unk_id": 1})"), "unk_id"}}) {
        json file = llama_file();
        file[json::json_pointer(c.pointer)] = c.value;
        const std::string message = piece_error(file);
        EXPECT_NE(message.find(c.message), std::string::npos)
            << c.message << " not in: " << message;
        EXPECT_LT(message.size(), 600u);
    }
}

TEST(PieceTokenizerTest, HostileLengthsStayFast) {
    const auto tokenizer = load_pieces(llama_file());
    for (const std::string& text :
         {std::string(400'000, 'a'), std::string(400'000, ' '), std::string(400'000, 'x')}) {
        const Ids ids = tokenizer->encode(text, SpecialTokens::parse);
        EXPECT_EQ(tokenizer->decode(ids, true), text);
    }
}

}  // namespace
}  // namespace moex
