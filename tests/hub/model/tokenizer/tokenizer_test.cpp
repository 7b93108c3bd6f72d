#include "hub/model/tokenizer/tokenizer.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hub/model/tokenizer/pattern_spelling.h"
#include "hub/model/tokenizer/split_pattern.h"
#include "hub/model/tokenizer/utf8.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using nlohmann::json;

std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream content;
    content << in.rdbuf();
    return content.str();
}

const std::string demo = repository().string() + "/static/models/demo/";

std::shared_ptr<const Tokenizer> demo_tokenizer() {
    auto loaded = Tokenizer::load(read_file(demo + "tokenizer.json"),
                                  read_file(demo + "tokenizer_config.json"));
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message);
    return loaded.ok() ? *loaded : nullptr;
}

// Returns a minimal tokenizer.json, whose vocabulary has the letters a, b, c and two merges.
json tiny_file() {
    return json::parse(R"({
        "added_tokens": [{"id": 5, "content": "<s>", "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
        "merges": ["a b", "ab c"]}
    })");
}
std::shared_ptr<const Tokenizer> load(const json& file, const std::string& config = "") {
    auto loaded = Tokenizer::load(file.dump(), config);
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message);
    return loaded.ok() ? *loaded : nullptr;
}
std::string load_error(const std::string& file, const std::string& config = "") {
    auto loaded = Tokenizer::load(file, config);
    return loaded.ok() ? "" : loaded.error().message;
}
using Ids = std::vector<TokenId>;

TEST(TokenizerTest, GoldenPromptsHaveTheirIds) {
    const auto tokenizer = demo_tokenizer();
    const json golden = json::parse(
        read_file(repository().string() + "/tests/golden/demo/golden.json"));

    std::size_t compared = 0;
    for (const json& entry : golden) {
        if (!entry.is_object() || !entry.contains("prompt") || !entry["prompt"].is_string() ||
            !entry.contains("ids"))
            continue;
        EXPECT_EQ(tokenizer->encode(entry["prompt"].get<std::string>(), SpecialTokens::parse),
                  entry["ids"].get<Ids>())
            << entry["prompt"];
        ++compared;
    }

    EXPECT_GT(compared, 0u);
}

TEST(TokenizerTest, SpecialTokensAreTokensOnlyWhenParsed) {
    const auto tokenizer = demo_tokenizer();
    const TokenId end = *tokenizer->token_id("<|im_end|>");
    EXPECT_TRUE(tokenizer->is_special(end));
    EXPECT_EQ(tokenizer->encode("<|im_end|>", SpecialTokens::parse), Ids{end});
    const Ids plain = tokenizer->encode("<|im_end|>", SpecialTokens::as_text);
    EXPECT_GT(plain.size(), 1u);
    EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
    EXPECT_EQ(tokenizer->decode(plain, true), "<|im_end|>");
}

TEST(TokenizerTest, PlainRangesHoldNoControlTokens) {
    const auto tokenizer = demo_tokenizer();
    const TokenId end = *tokenizer->token_id("<|im_end|>");

    // The second "<|im_end|>" in the text came from a message, so it must stay plain text.
    const std::string text = "<|im_end|>x<|im_end|>y<|im_end|>";
    const std::vector<TextRange> plain = {{10, 22}};
    const Ids ids = tokenizer->encode(text, plain);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 2);
    EXPECT_EQ(tokenizer->decode(ids, false), text);

    // Characters of the template and characters of a message do not form a control token together.
    const std::vector<TextRange> half = {{5, 10}};
    EXPECT_EQ(tokenizer->encode("<|im_end|>", half),
              tokenizer->encode("<|im_end|>", SpecialTokens::as_text));
    EXPECT_EQ(tokenizer->encode(text, std::span<const TextRange>()),
              tokenizer->encode(text, SpecialTokens::parse));
}

TEST(TokenizerTest, DecodingGivesTheTextBack) {
    const auto tokenizer = demo_tokenizer();
    for (const std::string text :
         {"", "plain", " naïve  café\n\n\t", "日本語 👩‍👩‍👧‍👦 עברית",
          "for (;;) { x += 1; }\r\n"}) {
        const Ids ids = tokenizer->encode(text, SpecialTokens::parse);
        EXPECT_EQ(tokenizer->decode(ids, true), utf8_nfc(text));

        StreamDecoder stream(*tokenizer);
        std::string streamed;
        for (const TokenId id : ids) {
            const std::string shown = stream.push(id);
            EXPECT_TRUE(utf8_is_valid(shown));
            streamed += shown;
        }

        EXPECT_EQ(streamed + stream.finish(), utf8_nfc(text));
    }
}

TEST(TokenizerTest, StreamHoldsBackHalfACharacter) {
    const auto tokenizer = demo_tokenizer();
    const std::string emoji = "\xF0\x9F\xA6\x8A";
    const Ids ids = tokenizer->encode(emoji, SpecialTokens::parse);
    ASSERT_GT(ids.size(), 1u);
    StreamDecoder stream(*tokenizer);
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(stream.push(ids[i]), "");
    EXPECT_EQ(stream.push(ids.back()), emoji);

    EXPECT_EQ(stream.push(ids.front()), "");
    EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
    EXPECT_EQ(stream.finish(), "");
}

TEST(TokenizerTest, BrokenBytesBecomeReplacementCharacters) {
    const std::string r = "\xEF\xBF\xBD";
    EXPECT_EQ(utf8_repair("a\xFF"
                          "b"),
              "a" + r + "b");
    EXPECT_EQ(utf8_repair("\xE2\x82"), r);  // one maximal part
    EXPECT_EQ(utf8_repair("\xE2\x82"
                          "A"),
              r + "A");

    EXPECT_EQ(utf8_repair("\xC0\x80"), r + r);          // never valid
    EXPECT_EQ(utf8_repair("\xED\xA0\x80"), r + r + r);  // a surrogate
    EXPECT_EQ(utf8_repair("\xF0\x9F\x98"
                          "x"),
              r + "x");
    EXPECT_EQ(utf8_repair("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
    const auto tokenizer = demo_tokenizer();

    EXPECT_EQ(tokenizer->encode("a\xFF"
                                "b",
                                SpecialTokens::parse),
              tokenizer->encode("a" + r + "b", SpecialTokens::parse));
}

TEST(TokenizerTest, HostileLengthsStayFast) {
    const auto tokenizer = demo_tokenizer();
    // Each of these inputs takes quadratic time in a simple tokenizer: long words, long runs of
    // combining marks in descending order, long runs of blanks.
    std::string marks = "a";
    for (int i = 0; i < 60'000; ++i) marks += i % 2 ? "\xCC\x81" : "\xCC\xA3";
    EXPECT_EQ(
        tokenizer->decode(tokenizer->encode(std::string(400'000, 'a'), SpecialTokens::parse), true)
            .size(),
        400'000u);

    EXPECT_FALSE(tokenizer->encode(marks, SpecialTokens::parse).empty());
    EXPECT_FALSE(tokenizer->encode(std::string(400'000, ' ') + "x", SpecialTokens::parse).empty());
    std::string opens;
    for (int i = 0; i < 50'000; ++i) opens += "<|im_sta";
    EXPECT_FALSE(tokenizer->encode(opens, SpecialTokens::parse).empty());
}

TEST(TokenizerTest, LongAndShortMergesAgree) {
    // Words of more than 48 symbols are merged with a heap, and shorter words with a scan. A long
    // word that repeats a short word must give the ids of the short word, repeated.
    const auto tokenizer = demo_tokenizer();
    const std::string word = "internationalisation";
    std::string longer;
    for (int i = 0; i < 5; ++i) longer += word;
    const Ids ids = tokenizer->encode(longer, SpecialTokens::parse);

    EXPECT_EQ(tokenizer->decode(ids, true), longer);
    EXPECT_EQ(load(tiny_file())->encode("abcab", SpecialTokens::parse), (Ids{4, 3}));
    std::string many;
    Ids expected;
    for (int i = 0; i < 100; ++i) many += "abcab", expected.insert(expected.end(), {4, 3});
    EXPECT_EQ(load(tiny_file())->encode(many, SpecialTokens::parse), expected);
}

TEST(TokenizerTest, MergesMayBePairsAndVocabularyMayRule) {
    json file = tiny_file();
    file["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "c"]])");
    EXPECT_EQ(load(file)->encode("abc", SpecialTokens::parse), Ids{4});
    file["model"]["merges"] = json::parse(R"([["a", "b"]])");
    EXPECT_EQ(load(file)->encode("abc", SpecialTokens::parse), (Ids{3, 2}));
    file["model"]["ignore_merges"] = true;
    EXPECT_EQ(load(file)->encode("abc", SpecialTokens::parse), Ids{4});
}

TEST(TokenizerTest, UnsupportedPartsAreNamed) {
    const auto changed = [](const char* pointer, const json& value) {
        json file = tiny_file();
        file[json::json_pointer(pointer)] = value;
        return load_error(file.dump());
    };

    EXPECT_NE(changed("/model/type", "Unigram").find("Unigram"), std::string::npos);
    EXPECT_NE(changed("/model/byte_fallback", true).find("byte_fallback"), std::string::npos);
    EXPECT_NE(changed("/normalizer", {{"type", "Lowercase"}}).find("Lowercase"), std::string::npos);
    EXPECT_NE(changed("/pre_tokenizer", {{"type", "Metaspace"}}).find("Metaspace"),
              std::string::npos);
    EXPECT_NE(changed("/pre_tokenizer", nullptr).find("ByteLevel"), std::string::npos);

    const json split = {
        {"type", "Split"}, {"behavior", "MergedWithNext"}, {"pattern", {{"Regex", "a"}}}};
    EXPECT_NE(changed("/pre_tokenizer", split).find("MergedWithNext"), std::string::npos);
    struct Case {
        const char* pointer;
        json value;
        const char* message;
    };

    for (
        const Case& c :
        {Case{"/model/dropout", 0.1, "model.dropout"},
         Case{"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
         Case{"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
         Case{"/model/unk_token", "<nowhere>", "<nowhere>"},
         Case{"/decoder", {{"type", "Metaspace"}}, "decoder \"Metaspace\""},
         Case{
             "/decoder",
             json::parse(
                 R"({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Strip"}]})"),
             "decoder \"Strip\""},
         Case{"/post_processor",
              {{"type", "RobertaProcessing"}},
              "post_processor \"RobertaProcessing\""},
         Case{"/post_processor",
              json::parse(
                  R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}], )"
                  R"("special_tokens": {}})"),
              "no ids"},
         Case{"/post_processor",
              json::parse(
                  R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]})"),
              "TemplateProcessing with"},
         Case{"/post_processor", json::parse(R"({"type": "TemplateProcessing", "single": []})"),
              "lacks the text"}})
        EXPECT_NE(changed(c.pointer, c.value).find(c.message), std::string::npos)
            << c.message << " not in: " << changed(c.pointer, c.value);

    json fused = tiny_file();
    fused["model"]["unk_token"] = "<s>";
    fused["model"]["fuse_unk"] = true;
    EXPECT_NE(load_error(fused.dump()).find("fuse_unk"), std::string::npos);
    EXPECT_NE(load_error(tiny_file().dump(), R"({"remove_space": true})").find("remove_space"),
              std::string::npos);
}

// An added token may serve as the unknown token. Settings that have no effect are accepted.
TEST(TokenizerTest, UnknownTokenStandsForMissingBytes) {
    json file = tiny_file();
    file["model"].update(json{{"unk_token", "<s>"},
                              {"dropout", nullptr},
                              {"end_of_word_suffix", ""},
                              {"byte_fallback", false},
                              {"fuse_unk", false}});
    file["truncation"] = {
        {"max_length", 1}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}};

    file["decoder"] = json::parse(R"({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]})");
    EXPECT_EQ(load(file)->encode("a!b", SpecialTokens::parse), (Ids{0, 5, 1}));
}

TEST(TokenizerTest, PostProcessorGoesAroundPromptsOnly) {
    json file = tiny_file();
    file["added_tokens"].push_back({{"id", 6}, {"content", "</s>"}, {"special", true}});
    file["post_processor"] = json::parse(R"({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "trim_offsets": false},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
         "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]},
         "</s>": {"id": "</s>", "ids": [6], "tokens": ["</s>"]}}}]})");
    EXPECT_EQ(load(file)->encode_prompt("abc"), (Ids{5, 4, 6}));

    EXPECT_EQ(load(file)->encode_prompt(""), (Ids{5, 6}));
    EXPECT_EQ(load(file)->encode("abc", SpecialTokens::parse), Ids{4});
    EXPECT_EQ(load(tiny_file())->encode_prompt("abc"), Ids{4});
}

TEST(TokenizerTest, PartsAreBounded) {
    const auto changed = [](const char* pointer, const json& value) {
        json file = tiny_file();
        file[json::json_pointer(pointer)] = value;
        const std::string message = load_error(file.dump());
        EXPECT_LT(message.size(), 600u);
        return message;
    };

    const json split = {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "a"}}}};
    EXPECT_NE(changed("/pre_tokenizer",
                      {{"type", "Sequence"}, {"pretokenizers", std::vector<json>(65, split)}})
                  .find("more than 64 steps"),
              std::string::npos);
    const json bos = json::parse(
        R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, )"
        R"({"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [5]}}})");

    EXPECT_NE(changed("/post_processor",
                      {{"type", "Sequence"}, {"processors", std::vector<json>(65, bos)}})
                  .find("more than 64 tokens"),
              std::string::npos);
    EXPECT_NE(changed("/added_tokens/0/content", std::string(1025, 'x')).find("1025 bytes"),
              std::string::npos);
    EXPECT_NE(changed("/model/vocab", {{std::string(100'000, 'x'), -1}}).find("the id of"),
              std::string::npos);

    EXPECT_NE(changed("/pre_tokenizer", {{"type", "Split"},
                                         {"behavior", "Isolated"},
                                         {"pattern", {{"Regex", std::string(100'000, 'x')}}}})
                  .find("too large"),
              std::string::npos);
}

TEST(TokenizerTest, DeepOrRepeatedNamesAreRefused) {
    const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
    EXPECT_NE(load_error("{\"model\": " + deep + "}").find("nested"), std::string::npos);
    EXPECT_NE(load_error(tiny_file().dump(), "{\"eos_token\": " + deep + "}").find("nested"),
              std::string::npos);
    EXPECT_NE(load_error(R"({"model": 1, "model": 2})").find("twice"), std::string::npos);
}

TEST(TokenizerTest, BrokenFilesAreRefused) {
    const auto changed = [](const char* pointer, const json& value) {
        json file = tiny_file();
        file[json::json_pointer(pointer)] = value;
        return load_error(file.dump());
    };

    EXPECT_FALSE(load_error("").empty());
    EXPECT_FALSE(load_error("[]").empty());
    EXPECT_FALSE(load_error("{").empty());
    EXPECT_FALSE(load_error(tiny_file().dump(), "[]").empty());
    EXPECT_FALSE(changed("/model/vocab", json::array()).empty());
    EXPECT_FALSE(changed("/model/vocab/a", -1).empty());
    EXPECT_FALSE(changed("/model/vocab/a", 4'000'000'000u).empty());

    EXPECT_FALSE(changed("/model/vocab/a", 1).empty());  // two tokens may not have the same id
    EXPECT_NE(changed("/model/merges/0", "a x").find("vocabulary lacks"), std::string::npos);
    EXPECT_FALSE(changed("/model/merges/0", "ab").empty());
    EXPECT_FALSE(changed("/model/merges/0", json::array({"a"})).empty());
    EXPECT_FALSE(changed("/added_tokens/0/content", "").empty());
    EXPECT_FALSE(changed("/added_tokens/0/id", "5").empty());
    EXPECT_FALSE(
        changed("/pre_tokenizer",
                json{{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "("}}}})
            .empty());
}

TEST(TokenizerTest, ConfigAddsTokensAndNamesSpecialOnes) {
    json file = tiny_file();
    file["added_tokens"][0]["special"] = false;
    const auto tokenizer = load(
        file, R"({"eos_token": {"content": "<s>"}, )"
              R"("added_tokens_decoder": {"9": {"content": "<x>", "special": true}}})");
    EXPECT_TRUE(tokenizer->is_special(5));
    EXPECT_TRUE(tokenizer->is_special(9));

    EXPECT_EQ(tokenizer->vocab_size(), 10u);
    EXPECT_EQ(tokenizer->encode("a<x>b<s>", SpecialTokens::parse), (Ids{0, 9, 1, 5}));
    EXPECT_EQ(tokenizer->decode(Ids{0, 9, 7, 1, 5}, true), "ab");
    EXPECT_EQ(tokenizer->token_bytes(7), "");
    file["added_tokens"].push_back({{"id", 6}, {"content", "<img>"}});
    EXPECT_TRUE(load(file, R"({"extra_special_tokens": {"image_token": "<img>"}})")->is_special(6));
}

TEST(TokenizerTest, PatternsKeepOnigurumasMeaning) {
    EXPECT_EQ(
        *pcre2_spelling(R"((?i:'s|'t)|\s+(?!\S)|[^\s\p{Han}])"),
        R"((?:'[sS]|'[tT])|\p{White_Space}+(?!\P{White_Space})|[^\p{White_Space}\p{sc:Han}])");
    for (const char* pattern :
         {R"(\w+)", R"(\bx)", "[a[b]]", "[a&&b]", "(?<name>a)", "(?x)a", "[a", "a)", "\\"})
        EXPECT_FALSE(pcre2_spelling(pattern).ok()) << pattern;

    // Test constructs of Oniguruma that the RegExp of a browser interprets differently.
    EXPECT_EQ(*ecmascript_spelling(R"((?i:'s)|\p{Han}[]\-\x{1F600}]|\u00e9.{1,3}{x}\'\e\z)"),
              R"((?:'[sS])|\p{sc=Han}[\]\-\u{1F600}]|\u{00e9}[^\n]{1,3}\{x\}'\x1b(?![^]))");
    for (const char* refused : {R"(\w+)", "(?>a)", "[a[b]]", R"(\x{41)", "\\"})
        EXPECT_FALSE(ecmascript_spelling(refused).ok()) << refused;

    const auto pattern = SplitPattern::compile_regex(R"(\s)");
    ASSERT_TRUE(pattern.ok());
    std::vector<SplitPattern::Range> matches;

    // U+0085 is white space for the pattern; U+180E and U+FEFF are not
    pattern->find("\xC2\x85\xE1\xA0\x8E\xEF\xBB\xBF", matches);
    EXPECT_EQ(matches, (std::vector<SplitPattern::Range>{{0, 2}}));
}

TEST(TokenizerTest, EndlessPatternsAreCutShort) {
    const auto pattern = SplitPattern::compile_regex("(a|aa)+$x");
    ASSERT_TRUE(pattern.ok());
    std::vector<SplitPattern::Range> matches;
    pattern->find(std::string(2000, 'a'), matches);
    EXPECT_TRUE(matches.empty());
}

}  // namespace
}  // namespace moex
