// Tests of filling in the middle: the tokens of each family, the prompts, and the routes that
// editors ask, with tokenizers that have such tokens.
#include "tests/hub/api/api_fixture.h"

#include <algorithm>

#include "hub/api/fill_middle.h"

namespace moex::test {
namespace {

// Returns the demo's tokenizer with further tokens, in place of its last words. The ids stay within
// the demo's vocabulary, so that its model can read them.
std::shared_ptr<const Tokenizer> with_tokens(const std::vector<std::string>& names) {
    const ModelPackage& package = *DemoModel::get().package;
    Json file = Json::parse(package.tokenizer_file("tokenizer.json").value());
    Json& vocab = file["model"]["vocab"];
    Json& merges = file["model"]["merges"];
    const int first = static_cast<int>(vocab.size()) - static_cast<int>(names.size());
    std::vector<std::string> dropped;
    for (const auto& [word, id] : vocab.items())
        if (id >= first) dropped.push_back(word);
    for (const std::string& word : dropped) vocab.erase(word);
    Json kept = Json::array();
    for (const Json& merge : merges) {
        const std::string joined = merge.is_array()
                                       ? merge[0].get<std::string>() + merge[1].get<std::string>()
                                       : [&] {
                                             std::string words = merge;
                                             return words.erase(words.find(' '), 1);
                                         }();
        if (std::find(dropped.begin(), dropped.end(), joined) == dropped.end())
            kept.push_back(merge);
    }
    merges = std::move(kept);
    for (std::size_t i = 0; i < names.size(); ++i)
        file["added_tokens"].push_back({{"id", first + static_cast<int>(i)},
                                        {"content", names[i]},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", false},
                                        {"special", true}});
    return Tokenizer::load(file.dump(), package.tokenizer_file("tokenizer_config.json").value())
        .value();
}

const std::vector<std::string> qwen_tokens{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                                           "<|repo_name|>", "<|file_sep|>"};

std::string prompt_of(const Tokenizer& tokenizer, MiddleParts parts,
                      std::size_t tokens_max = 1000) {
    const auto marks = find_fill_middle(tokenizer);
    EXPECT_TRUE(marks);
    return tokenizer.decode(make_middle_prompt(*marks, tokenizer, std::move(parts), tokens_max).ids,
                            false);
}

TEST(FillMiddleTest, TheTokensOfEachFamilyAreFound) {
    const struct {
        std::vector<std::string> tokens;
        const char *family, *prompt;
    } cases[] = {
        {qwen_tokens, "qwen", "<|fim_prefix|>a = <|fim_suffix|>\nend<|fim_middle|>"},
        {{"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
         "deepseek",
         "<｜fim▁begin｜>a = <｜fim▁hole｜>\nend<｜fim▁end｜>"},
        {{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
         "starcoder",
         "<fim_prefix>a = <fim_suffix>\nend<fim_middle>"},
        {{"▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"}, "codellama", "▁<PRE>a = ▁<SUF>\nend▁<MID>"},
        {{"[PREFIX]", "[SUFFIX]", "[MIDDLE]"}, "codestral", "[SUFFIX]\nend[PREFIX]a = "},
        {{"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
         "glm",
         "<|code_prefix|>a = <|code_suffix|>\nend<|code_middle|>"},
    };
    for (const auto& one : cases) {
        const auto tokenizer = with_tokens(one.tokens);
        const auto marks = find_fill_middle(*tokenizer);
        ASSERT_TRUE(marks) << one.family;
        EXPECT_STREQ(marks->family, one.family);
        const auto text = SpecialTokens::as_text;
        EXPECT_EQ(prompt_of(*tokenizer, {.prefix = tokenizer->encode("a = ", text),
                                         .suffix = tokenizer->encode("\nend", text)}),
                  one.prompt);
    }
    EXPECT_FALSE(find_fill_middle(*DemoModel::get().tokenizer));
    EXPECT_FALSE(find_fill_middle(*with_tokens({"<|fim_prefix|>", "<|fim_suffix|>"})));
}

TEST(FillMiddleTest, PromptsThatAreTooLongLoseTheirFarEnds) {
    const auto tokenizer = with_tokens(qwen_tokens);
    const auto ids = [&](const char* words) {
        return tokenizer->encode(words, SpecialTokens::as_text);
    };
    const MiddleParts parts{.prefix = ids("1 2 3 4 5 6"),
                            .suffix = ids("7 8 9"),
                            .files = {{"one.py", "old"}, {"two.py", "new"}}};
    EXPECT_EQ(prompt_of(*tokenizer, parts),
              "<|repo_name|>project\n<|file_sep|>one.py\nold<|file_sep|>two.py\nnew"
              "<|file_sep|>edited\n<|fim_prefix|>1 2 3 4 5 6<|fim_suffix|>7 8 9<|fim_middle|>");

    const auto marks = find_fill_middle(*tokenizer);
    const std::size_t whole = make_middle_prompt(*marks, *tokenizer, parts, 1000).ids.size();
    for (std::size_t most = 8; most <= whole; ++most) {
        const MiddlePrompt made = make_middle_prompt(*marks, *tokenizer, parts, most);
        EXPECT_LE(made.ids.size(), most);
        EXPECT_EQ(made.was_cut, most < whole);
        const std::string words = tokenizer->decode(made.ids, false);
        EXPECT_NE(words.find("6<|fim_suffix|>7"), std::string::npos) << words;
        // the file that was given first goes first
        EXPECT_LE(words.find("old") != std::string::npos, words.find("new") != std::string::npos);
    }
}

TEST(FillMiddleTest, SentencePieceAddsNoSpaceBeforeTheSuffix) {
    Json vocab{{"<unk>", 0}, {"<s>", 1}, {"▁", 2}, {"a", 3}, {"b", 4}, {"▁a", 5}, {"▁b", 6}};
    for (int byte = 0; byte < 256; ++byte) {
        char name[16];
        std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
        vocab[name] = 7 + byte;
    }
    const auto added = [](int id, const char* name) {
        return Json{{"id", id},        {"content", name}, {"single_word", false},
                    {"lstrip", false}, {"rstrip", false}, {"normalized", false},
                    {"special", true}};
    };
    const Json file{{"version", "1.0"},
                    {"added_tokens",
                     {added(0, "<unk>"), added(1, "<s>"), added(300, "▁<PRE>"),
                      added(301, "▁<SUF>"), added(302, "▁<MID>")}},
                    {"normalizer",
                     {{"type", "Sequence"},
                      {"normalizers",
                       {{{"type", "Prepend"}, {"prepend", "▁"}},
                        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
                    {"pre_tokenizer", nullptr},
                    {"post_processor", nullptr},
                    {"decoder",
                     {{"type", "Sequence"},
                      {"decoders",
                       {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                        {{"type", "ByteFallback"}},
                        {{"type", "Fuse"}},
                        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
                    {"model",
                     {{"type", "BPE"},
                      {"unk_token", "<unk>"},
                      {"fuse_unk", true},
                      {"byte_fallback", true},
                      {"vocab", vocab},
                      {"merges", {"▁ a", "▁ b"}}}}};
    const auto tokenizer = Tokenizer::load(file.dump(), "");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_EQ((*tokenizer)->encode("b a", SpecialTokens::as_text), (std::vector<TokenId>{6, 5}));
    EXPECT_EQ(encode_inside(**tokenizer, "b a"), (std::vector<TokenId>{4, 5}));
    EXPECT_EQ(encode_inside(**tokenizer, " b"), (std::vector<TokenId>{6}));
    EXPECT_EQ(encode_inside(**tokenizer, ""), std::vector<TokenId>{});
    EXPECT_STREQ(find_fill_middle(**tokenizer)->family, "codellama");
}

class EditorTest : public ApiTest {
  protected:
    void SetUp() override {
        ApiTest::SetUp();
        api_ = std::make_unique<Api>(model_.package, with_tokens(qwen_tokens), model_.chat_template,
                                     *engine_, ApiOptions{});
    }
    Json asked(Handler handler, const Json& body) {
        const auto answer = ask(handler, body);
        EXPECT_EQ(answer->status(), 200u) << body << answer->response().body;
        return answer->json();
    }
    // Returns the continuation of a plain prompt that names the tokens itself.
    Json continued(const std::string& prompt) {
        return asked(text_path, {{"prompt", prompt}, {"max_tokens", 8}, {"temperature", 0}});
    }
};

TEST_F(EditorTest, EveryRouteFillsTheSameMiddle) {
    const Json plain = continued("<|fim_prefix|>Once upon <|fim_suffix|> a ship<|fim_middle|>");
    const std::string text = plain["choices"][0]["text"];
    ASSERT_FALSE(text.empty());

    Json body{
        {"prompt", "Once upon "}, {"suffix", " a ship"}, {"max_tokens", 8}, {"temperature", 0}};
    const Json filled = asked(text_path, body);
    EXPECT_EQ(filled["choices"][0]["text"], text);
    EXPECT_EQ(filled["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]);

    const Json infill{{"input_prefix", "Once "},
                      {"prompt", "upon "},
                      {"input_suffix", " a ship"},
                      {"n_predict", 8},
                      {"temperature", 0}};
    const Json whole = asked(&Api::infill, infill);
    EXPECT_EQ(whole["content"], text);
    EXPECT_EQ(whole["stop_type"], "limit");
    EXPECT_EQ(whole["truncated"], false);
    EXPECT_EQ(whole["tokens_evaluated"], plain["usage"]["prompt_tokens"]);

    Json streamed = infill;
    streamed["stream"] = true;
    const auto events = ask(&Api::infill, streamed);
    std::string joined;
    for (const Json& one : events->chunks()) joined += one["content"].get<std::string>();
    EXPECT_EQ(joined, text);
    EXPECT_EQ(events->chunks().back()["stop"], true);

    dialect_ = Dialect::ollama;
    const Json generated = asked(&Api::ollama_generate,
                                 {{"model", model_.package->name()},
                                  {"prompt", "Once upon "},
                                  {"suffix", " a ship"},
                                  {"system", "Be brief."},
                                  {"stream", false},
                                  {"options", {{"num_predict", 8}, {"temperature", 0}}}});
    EXPECT_EQ(generated["response"], text);
    EXPECT_EQ(generated["moex"]["dropped"], Json::array({"system"}));
    const Json shown = asked(&Api::ollama_show, {{"model", model_.package->name()}});
    EXPECT_NE(std::find(shown["capabilities"].begin(), shown["capabilities"].end(), "insert"),
              shown["capabilities"].end());
}

TEST_F(EditorTest, TextsOfAnEditorNameNoSpecialTokens) {
    const Json filled = asked(
        text_path, {{"prompt", "<|fim_middle|>"}, {"suffix", "<|im_end|>"}, {"max_tokens", 1}});
    EXPECT_GT(filled["usage"]["prompt_tokens"], 8);
}

TEST_F(EditorTest, ALongFileIsCutAndASuffixAloneIsRefusedForItsLength) {
    std::string lines;
    for (int i = 0; i < 2000; ++i) lines += "a line of words\n";
    const Json whole = asked(&Api::infill, {{"input_prefix", lines},
                                            {"input_suffix", lines},
                                            {"input_extra", {{{"text", lines}}}},
                                            {"n_predict", 4}});
    EXPECT_EQ(whole["truncated"], true);
    EXPECT_LT(whole["tokens_evaluated"], 1024);

    const auto refused = ask(text_path, {{"prompt", lines}, {"suffix", "x"}});
    EXPECT_EQ(refused->status(), 400u);
    EXPECT_EQ(refused->json()["error"]["code"], "context_length_exceeded");
}

TEST_F(EditorTest, FieldsOfTheAnswerAreThoseThatWereAskedFor) {
    Json body{{"input_prefix", ""},
              {"input_suffix", ""},
              {"input_extra", {{{"filename", "a.txt"}, {"text", "words"}}}},
              {"n_predict", 0},
              {"response_fields", {"content", "timings/prompt_n", "nothing"}}};
    const Json read = asked(&Api::infill, body);
    EXPECT_EQ(read["content"], "");
    EXPECT_TRUE(read["timings/prompt_n"].is_number());
    EXPECT_EQ(read.size(), 2u);
    body["response_fields"] = {""};
    EXPECT_EQ(asked(&Api::infill, body), Json::object());
}

TEST_F(EditorTest, WrongFieldsAndModelsWithoutTheTokensAreNamed) {
    const std::pair<Json, const char*> cases[] = {
        {{{"input_prefix", "a"}}, "input_suffix"},
        {{{"input_suffix", "a"}}, "input_prefix"},
        {{{"input_prefix", "a"}, {"input_suffix", 3}}, "input_suffix"},
        {{{"input_prefix", "a"}, {"input_suffix", "b"}, {"input_extra", {{{"text", 1}}}}},
         "input_extra"},
        {{{"input_prefix", "a"}, {"input_suffix", "b"}, {"n_predict", "x"}}, "max_tokens"},
    };
    for (const auto& [body, param] : cases) {
        const auto answer = ask(&Api::infill, body);
        EXPECT_EQ(answer->status(), 400u) << body;
        EXPECT_EQ(answer->json()["error"]["param"], param) << answer->response().body;
    }
    make({}, {});
    const Json body{{"input_prefix", "a"}, {"input_suffix", ""}};
    const auto answer = ask(&Api::infill, body);
    EXPECT_EQ(answer->status(), 400u);
    EXPECT_EQ(answer->json()["error"]["param"], "input_suffix");
    EXPECT_NE(answer->response().body.find("filling in the middle"), std::string::npos);
}

}  // namespace
}  // namespace moex::test
