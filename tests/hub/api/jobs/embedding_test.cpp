// Tests of /v1/embeddings and Ollama's /api/embed over a real engine.
#include <bit>
#include <cmath>

#include "tests/hub/api/api_fixture.h"

namespace moex::test {
namespace {

class EmbeddingTest : public ApiTest {
  protected:
    static constexpr Handler path = &Api::embed;
    using Row = std::vector<float>;

    std::vector<Row> rows_of(const Json& body) {
        const auto answer = ask(path, body);
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        const Json json = answer->json();
        std::vector<Row> rows;
        for (const Json& one : json["data"]) {
            EXPECT_EQ(one["index"], rows.size());
            EXPECT_EQ(one["object"], "embedding");
            rows.push_back(one["embedding"]);
        }
        return rows;
    }
    // Decodes an embedding from base64 of little-endian f32.
    static Row decoded(const std::string& words) {
        constexpr std::string_view digits =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        std::string bytes;
        std::uint32_t bits = 0;
        int held = 0;
        for (const char c : words) {
            if (c == '=') break;
            bits = bits << 6 | static_cast<std::uint32_t>(digits.find(c));
            held += 6;
            if (held < 8) continue;
            held -= 8;
            bytes += static_cast<char>(bits >> held & 0xff);
        }
        Row row(bytes.size() / sizeof(float));
        std::memcpy(row.data(), bytes.data(), row.size() * sizeof(float));
        return row;
    }
    void expect_refused(const Json& body, unsigned status, const char* param, const char* words) {
        const auto answer = ask(path, body);
        EXPECT_EQ(answer->status(), status) << body;
        const Json error = answer->json()["error"];
        EXPECT_EQ(error["param"], param) << error;
        EXPECT_NE(error["message"].get<std::string>().find(words), std::string::npos) << error;
    }

    const std::string sea_ = "The sea was calm that night.", fox_ = "A fox ran over the hill";
};

TEST_F(EmbeddingTest, ARowIsAsWideAsTheHiddenStateAndOfLengthOne) {
    const std::vector<Row> rows = rows_of({{"input", sea_}});
    ASSERT_EQ(rows.size(), 1u);
    ASSERT_EQ(rows[0].size(), model_.package->config().hidden_size);
    double squares = 0;
    for (const float value : rows[0]) squares += double{value} * value;
    EXPECT_NEAR(squares, 1, 1e-6);
}

TEST_F(EmbeddingTest, ManyAtOnceAreTheSameBitsAsEachAlone) {
    std::vector<std::string> inputs;
    for (int i = 0; i < 21; ++i) inputs.push_back(text(i % 2 == 0 ? sea_ : fox_, ' ', i));
    const std::vector<Row> together = rows_of({{"input", inputs}});
    ASSERT_EQ(together.size(), inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
        EXPECT_EQ(together[i], rows_of({{"input", inputs[i]}})[0]) << i;
    EXPECT_NE(together[0], together[1]);
}

// The engine's queue has room for one sequence: inputs that do not fit wait until other inputs end.
TEST_F(EmbeddingTest, MoreInputsThanTheQueueHoldsWaitTheirTurn) {
    const std::vector<std::string> inputs(9, sea_);
    const std::vector<Row> wanted = rows_of({{"input", inputs}});
    make({.sequences_max = 1, .queue_max = 1}, {});
    EXPECT_EQ(rows_of({{"input", inputs}}), wanted);
}

TEST_F(EmbeddingTest, IdsSayWhatTheirTextSays) {
    const auto sea = model_.tokenizer->encode_prompt(sea_),
               fox = model_.tokenizer->encode_prompt(fox_);
    const std::vector<Row> wanted = rows_of({{"input", {sea_, fox_}}});
    EXPECT_EQ(rows_of({{"input", {sea, fox}}}), wanted);
    EXPECT_EQ(rows_of({{"input", fox}}), std::vector<Row>{wanted[1]});
}

TEST_F(EmbeddingTest, Base64HoldsTheSameNumbers) {
    for (const std::string& words : {sea_, fox_}) {
        const auto answer = ask(path, {{"input", words}, {"encoding_format", "base64"}});
        const Row row = decoded(answer->json()["data"][0]["embedding"]);
        EXPECT_EQ(row, rows_of({{"input", words}})[0]);
    }
}

TEST_F(EmbeddingTest, UsageIsTheInputsTokens) {
    const std::size_t tokens = model_.tokenizer->encode_prompt(sea_).size() +
                               model_.tokenizer->encode_prompt(fox_).size();
    const Json usage = ask(path, {{"input", {sea_, fox_}}})->json()["usage"];
    EXPECT_EQ(usage, (Json{{"prompt_tokens", tokens}, {"total_tokens", tokens}}));
}

TEST_F(EmbeddingTest, UnsupportedFieldsAreRefusedByName) {
    expect_refused(Json::object(), 400, "input", "Missing");
    expect_refused({{"input", ""}}, 400, "input", "empty");
    expect_refused({{"input", Json::array()}}, 400, "input", "wanted");
    expect_refused({{"input", {sea_, 3}}}, 400, "input", "wanted");
    expect_refused({{"input", {3, -1}}}, 400, "input", "token ids");
    expect_refused({{"input", {model_.package->config().vocab_size}}}, 400, "input", "token ids");
    expect_refused({{"input", std::vector<std::string>(2049, "a")}}, 400, "input", "2048");
    expect_refused({{"input", sea_}, {"dimensions", 8}}, 400, "dimensions", "not supported");
    expect_refused({{"input", sea_}, {"encoding_format", "int8"}}, 400, "encoding_format",
                   "base64");
    expect_refused({{"input", sea_}, {"model", "gpt-4"}}, 404, "model", "does not exist");
    const Json long_input{
        {"input", std::vector<TokenId>(model_.package->config().context_tokens, 5)}};
    expect_refused(long_input, 400, "input", "context");
}

TEST_F(EmbeddingTest, AFailureIsToldOnceAndAHangUpEndsTheWork) {
    experts_.fail();
    const auto failed = ask(path, {{"input", std::vector<std::string>(12, sea_)}});
    EXPECT_EQ(failed->status(), 503u);

    experts_.hold();
    const auto left = start(path, Json{{"input", std::vector<std::string>(12, sea_)}}.dump());
    while (engine_->counters().running == 0) std::this_thread::yield();
    left->disconnect();
    experts_.release();
    while (!engine_->idle()) std::this_thread::yield();
    EXPECT_EQ(rows_of({{"input", sea_}}).size(), 1u);
}

TEST_F(EmbeddingTest, OllamasClientsReadTheSameRows) {
    const std::vector<Row> wanted = rows_of({{"input", {sea_, fox_}}});
    dialect_ = Dialect::ollama;
    const std::string model = model_.package->name() + ":latest";
    const auto embed = [&](const Json& input, const Json& extra = Json::object()) {
        Json body{{"model", model}, {"input", input}};
        body.update(extra);
        return ask(&Api::ollama_embed, body);
    };

    const Json both = embed({sea_, fox_})->json();
    EXPECT_EQ(both["embeddings"].get<std::vector<Row>>(), wanted);
    EXPECT_GT(both["prompt_eval_count"], 0);
    EXPECT_EQ(embed(sea_)->json()["embeddings"].get<std::vector<Row>>(),
              std::vector<Row>{wanted[0]});

    // An input longer than the context is cut, or refused if the request has truncate: false.
    std::string words;
    while (words.size() < 8u * model_.package->config().context_tokens) words += fox_ + ' ';
    const Json cut = embed(words)->json();
    EXPECT_EQ(cut["prompt_eval_count"], model_.package->config().context_tokens - 1);
    EXPECT_EQ(embed(words, {{"truncate", false}})->status(), 400u);
    EXPECT_EQ(embed(sea_, {{"dimensions", 8}})->status(), 400u);
    EXPECT_TRUE(ask(&Api::ollama_embed, {{"input", sea_}})->json()["error"].is_string());
}

}  // namespace
}  // namespace moex::test
