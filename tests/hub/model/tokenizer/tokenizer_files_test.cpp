// Tokenizers that are made of the files of SentencePiece and tiktoken.
#include "hub/model/tokenizer/tokenizer_files.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hub/model/tokenizer/base64.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "protocol/text.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

const std::string golden = repository().string() + "/tests/golden/tokenizers/";
constexpr const char* kimi = R"({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {)"
                             R"("656": {"content": "[BOS]"}, "658": {"content": "<|im_end|>"}}})";

std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream content;
    content << in.rdbuf();
    return content.str();
}

using Files = std::map<std::string, std::string>;
CheckpointTexts checkpoint_of(const Files& files) {
    CheckpointTexts checkpoint;
    for (const auto& [name, content] : files) checkpoint.names.push_back(name);
    checkpoint.read = [files](const std::string& name) -> Result<std::string> {
        return files.at(name);
    };
    checkpoint.where = "in/";
    return checkpoint;
}
std::shared_ptr<const Tokenizer> load_files(const Files& files, const std::string& config = "") {
    auto file = find_tokenizer_file(checkpoint_of(files), config);
    EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
    if (!file.ok() || !*file) return nullptr;
    auto loaded = Tokenizer::load((*file)->tokenizer_json, config);
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message);
    return loaded.ok() ? *loaded : nullptr;
}
std::string find_error(const Files& files, const std::string& config = "") {
    auto file = find_tokenizer_file(checkpoint_of(files), config);
    return file.ok() ? "" : file.error().message;
}

// A field of a protocol buffer with a content, or a small number.
std::string field(int number, std::string_view content) {
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(content.size())}
        .append(content);
}
std::string number(int field, int value) {
    if (field < 16) return {static_cast<char>(field << 3), static_cast<char>(value)};
    const int key = field << 3;
    return {static_cast<char>((key & 127) | 128), static_cast<char>(key >> 7),
            static_cast<char>(value)};
}
std::string proto_piece(std::string_view content, int type) {
    return field(1, field(1, content) + number(3, type));
}

TEST(TokenizerFilesTest, IdsAreThoseOfSentencePieceAndTiktoken) {
    std::size_t compared = 0;
    for (const json& file : json::parse(read_file(golden + "golden.json"))) {
        const std::string name = file["file"];
        const bool ranks = name == "tiktoken.model";
        const auto tokenizer = load_files(
            {{ranks ? "tiktoken.model" : "tokenizer.model", read_file(golden + name)}},
            ranks ? kimi : "");
        ASSERT_TRUE(tokenizer) << name;

        for (const json& one : file["cases"]) {
            const Ids ids = tokenizer->encode(one["text"].get<std::string>(), SpecialTokens::parse);
            EXPECT_EQ(ids, one["ids"].get<Ids>()) << name << ": " << one["text"];
            EXPECT_EQ(tokenizer->decode(ids, false), one["decoded"].get<std::string>())
                << name << ": " << one["text"];
            ++compared;
        }
    }
    EXPECT_GT(compared, 120u);
}

TEST(TokenizerFilesTest, PromptsBeginAsTransformersBeginsThem) {
    const Files llama = {{"tokenizer.model", read_file(golden + "bpe.model")}};
    EXPECT_EQ(load_files(llama)->encode_prompt("the"), (Ids{1, 263}));
    EXPECT_EQ(load_files(llama, R"({"add_bos_token": false, "add_eos_token": true})")
                  ->encode_prompt("the"),
              (Ids{263, 2}));

    // Behind an added token a text begins with "▁", unless the file says that it is not legacy.
    EXPECT_EQ(load_files(llama)->encode("</s>the", SpecialTokens::parse), (Ids{2, 263}));
    const Ids later =
        load_files(llama, R"({"legacy": false})")->encode("</s>the", SpecialTokens::parse);
    EXPECT_NE(later, (Ids{2, 263}));
    EXPECT_EQ(load_files(llama, R"({"legacy": false})")->encode("the", SpecialTokens::parse),
              Ids{263});

    const Files t5 = {{"spiece.model", read_file(golden + "unigram.model")}};
    EXPECT_EQ(load_files(t5, R"({"tokenizer_class": "T5Tokenizer"})")->encode_prompt("the").back(),
              1u);
    EXPECT_NE(load_files(t5)->encode_prompt("the").back(), 1u);
}

TEST(TokenizerFilesTest, TheFirstKnownFileCounts) {
    const std::string bpe = read_file(golden + "bpe.model");
    const auto name_of = [](const Files& files) -> std::string {
        auto file = find_tokenizer_file(checkpoint_of(files), kimi);
        EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
        return *file ? (*file)->name : "none";
    };
    EXPECT_EQ(name_of({{"tokenizer.json", "{}"}, {"tokenizer.model", bpe}}), "tokenizer.json");
    EXPECT_EQ(name_of({{"tiktoken.model", "YQ== 0"}, {"tokenizer.model", bpe}}), "tokenizer.model");
    EXPECT_EQ(name_of({{"z.tiktoken", "YQ== 0"}, {"a.tiktoken", "YQ== 0"}}), "a.tiktoken");
    EXPECT_EQ(name_of({{"tokenizer.model", "YQ== 0"}}), "tokenizer.model");  // tiktoken format
    EXPECT_EQ(name_of({{"config.json", "{}"}}), "none");
}

TEST(TokenizerFilesTest, AddedTokensFileIsRead) {
    const std::string bpe = read_file(golden + "bpe.model");
    const auto tokenizer = load_files(
        {{"tokenizer.model", bpe}, {"added_tokens.json", R"({"<|im_end|>": 700})"}});
    EXPECT_EQ(tokenizer->encode("the<|im_end|>", SpecialTokens::parse), (Ids{263, 700}));
    EXPECT_TRUE(tokenizer->is_special(700));
    EXPECT_NE(find_error({{"tokenizer.model", bpe}, {"added_tokens.json", "[]"}})
                  .find("in/added_tokens.json is not an object"),
              std::string::npos);
}

TEST(TokenizerFilesTest, DamagedModelsAreRefusedByName) {
    const std::string bpe = read_file(golden + "bpe.model");
    struct Case {
        std::string content;
        const char* message;
    };
    const std::string unknown = proto_piece("<unk>", 2);
    for (const Case& c :
         {Case{bpe.substr(0, bpe.size() / 2), "is damaged or cut short"},
          Case{unknown + "\x0A\x7F", "is damaged or cut short"},
          Case{unknown + std::string(1, '\x0F'), "is damaged or cut short"},
          Case{field(1, std::string("\x0A\x05x", 3)), "a damaged piece 0"},
          Case{field(1, number(3, 2)), "a piece 0 of 0 bytes"},
          Case{field(1, field(1, "\xFF")), "a piece 0 of 1 bytes"},
          Case{field(1, field(1, "a") + number(3, 9)), "a piece of the type 9"},
          Case{field(1, field(1, "a") + std::string("\x15\x00\x00\xC0\x7F", 5)), "a finite score"},
          Case{unknown + proto_piece("a", 1) + proto_piece("a", 1) + field(2, number(3, 2)),
               "\"a\" twice"},
          Case{unknown + field(2, number(3, 4)), "has the type 4"},
          Case{unknown + field(2, number(24, 1)), "treat_whitespace_as_suffix"},
          Case{unknown + field(3, number(5, 0)), "lacks escape_whitespaces"},
          Case{"\n", "is damaged or cut short"}}) {
        const std::string message = find_error({{"tokenizer.model", c.content}});
        EXPECT_NE(message.find(c.message), std::string::npos)
            << c.message << " not in: " << message;
        EXPECT_EQ(message.rfind("in/tokenizer.model: ", 0), 0u) << message;
    }

    // No byte of the file, changed or cut off, leads out of bounds.
    for (std::size_t at = 0; at < bpe.size(); at += 97) {
        std::string changed = bpe;
        changed[at] = static_cast<char>(changed[at] ^ 0x55);
        (void)tokenizer_json_of_sentencepiece(changed, "");
        (void)tokenizer_json_of_sentencepiece(std::string_view(bpe).substr(0, at), "");
    }
}

TEST(TokenizerFilesTest, DamagedRanksAreRefusedByLine) {
    struct Case {
        const char* content;
        const char* message;
    };
    for (const Case& c :
         {Case{"YQ== 0\nYg==\n", "line 2 of the file of tiktoken has no token"},
          Case{"Y* 0\n", "line 1 of the file of tiktoken has a token that is not"},
          Case{" 0\n", "has a token that is not base64"},
          Case{"YQ== 0\nYg== 0\n", "line 2 of the file of tiktoken repeats"},
          Case{"YQ== 0\nYQ== 1\n", "the token of rank 1 twice"},
          Case{"YQ== -1\n", "has no rank below"}, Case{"YQ== 1x\n", "has no rank below"},
          Case{"YQ== 99999999\n", "has no rank below"}, Case{"", "has no tokens"}}) {
        const std::string message = find_error({{"tiktoken.model", c.content}}, kimi);
        EXPECT_NE(message.find(c.message), std::string::npos)
            << c.message << " not in: " << message;
    }

    const std::string other = find_error({{"x.tiktoken", "YQ== 0"}},
                                         R"({"tokenizer_class": "OtherTokenizer"})");
    EXPECT_NE(other.find("\"OtherTokenizer\" has no known split pattern"), std::string::npos);
    EXPECT_NE(other.find("TikTokenTokenizer or QWenTokenizer"), std::string::npos);
    EXPECT_EQ(
        find_error({{"x.tiktoken", "YQ== 0"}},
                   R"({"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer"]}})"),
        "");
}

TEST(TokenizerFilesTest, UnsupportedTokenizersLeaveIds) {
    const auto choose = [](const Files& files, std::uint64_t vocab_size) {
        return choose_tokenizer(checkpoint_of(files), "", vocab_size);
    };
    const std::string bpe = read_file(golden + "bpe.model");
    const auto whole = choose({{"tokenizer.model", bpe}}, 1000);
    ASSERT_TRUE(whole.ok());
    EXPECT_TRUE(whole->warnings.empty());
    EXPECT_FALSE(whole->tokenizer_json.empty());

    for (const Files& files :
         {Files{}, Files{{"tiktoken.model", "YQ== 0"}},
          Files{{"tokenizer.json", R"({"model": {"type": "WordPiece"}, "decoder": {}})"}}}) {
        const auto none = choose(files, 1000);
        ASSERT_TRUE(none.ok()) << none.error().message;
        EXPECT_TRUE(none->tokenizer_json.empty());
        ASSERT_EQ(none->warnings.size(), 1u);
        EXPECT_NE(none->warnings[0].find("accepts and returns token ids only"), std::string::npos);
    }
    EXPECT_NE(choose({{"tiktoken.model", "YQ== 0"}}, 1000)->warnings[0].find("in/tiktoken.model: "),
              std::string::npos);

    // A damaged file, or one of another model, is no reason to go on.
    EXPECT_NE(choose({{"tokenizer.json", "{"}}, 1000).error().message.find("in/tokenizer.json: "),
              std::string::npos);
    EXPECT_NE(choose({{"tokenizer.model", bpe}}, 10).error().message.find("from another model?"),
              std::string::npos);
}

TEST(TokenizerFilesTest, Base64IsReadAndWritten) {
    for (std::size_t size = 0; size < 9; ++size) {
        const std::string bytes = std::string("\xFF\x00zq\x80\x7F\xC3\xA9", 8).substr(0, size);
        EXPECT_EQ(base64_bytes(base64_text(bytes)), bytes);
    }
    EXPECT_EQ(base64_text("hub"), "aHVi");
    for (const char* wrong : {"a", "ab=c", "a b=", "====x"}) EXPECT_FALSE(base64_bytes(wrong));
}

}  // namespace
}  // namespace moex
