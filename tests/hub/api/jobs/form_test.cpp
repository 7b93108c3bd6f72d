// Tests of answers with a form (JSON, a schema), over the whole API and a real engine.
#include "tests/hub/api/api_fixture.h"

namespace moex::test {
namespace {

const Json story_schema{
    {"type", "object"},
    {"properties",
     {{"title", {{"type", "string"}, {"maxLength", 12}}},
      {"year", {{"type", "integer"}, {"minimum", 1700}, {"maximum", 1950}}},
      {"tags",
       {{"type", "array"}, {"items", {{"enum", {"sea", "war", "love"}}}}, {"maxItems", 3}}}}},
    {"required", {"title", "year", "tags"}},
    {"additionalProperties", false}};

Json with_schema(const Json& schema) {
    return {{"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"name", "it"}, {"schema", schema}}}}}};
}

class FormTest : public ApiTest {
  protected:
    Json choice(Json extra, int max_tokens = 200) {
        extra["max_tokens"] = max_tokens;
        const auto answer = ask(chat_path, chat("Tell me of the sea", extra));
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        return answer->status() == 200 ? answer->json()["choices"][0] : Json();
    }
    static void expect_story(const Json& choice) {
        const Json story = Json::parse(choice["message"]["content"].get<std::string>());
        EXPECT_LE(story["title"].get<std::string>().size(), 4 * 12u);
        EXPECT_GE(story["year"], 1700);
        EXPECT_LE(story["year"], 1950);
        EXPECT_LE(story["tags"].size(), 3u);
        EXPECT_EQ(story.size(), 3u);
    }
};

TEST_F(FormTest, AJsonObjectParsesWhereverTheBudgetEndsIt) {
    for (const int max_tokens : {2, 3, 7, 20, 60}) {
        const Json one = choice(
            {{"response_format", {{"type", "json_object"}}}, {"temperature", 1}}, max_tokens);
        const Json value = Json::parse(one["message"]["content"].get<std::string>());
        EXPECT_TRUE(value.is_object());
    }
}

TEST_F(FormTest, ASchemaHoldsForEveryChoiceGreedyOrDrawn) {
    Json extra = with_schema(story_schema);
    expect_story(choice(extra));
    extra["temperature"] = 1.5;
    extra["n"] = 3;
    extra["max_tokens"] = 120;
    extra["logit_bias"] = {{"0", 100}};
    extra["presence_penalty"] = 2;
    const auto answer = ask(chat_path, chat("Tell me of the sea", extra));
    ASSERT_EQ(answer->status(), 200u) << answer->response().body;
    const Json body = answer->json();
    for (const Json& one : body["choices"]) expect_story(one);
}

TEST_F(FormTest, AStreamSaysWhatTheWholeAnswerSays) {
    Json extra = with_schema(story_schema);
    const std::string whole = choice(extra)["message"]["content"];
    extra["stream"] = true;
    extra["max_tokens"] = 200;
    const auto streamed = ask(chat_path, chat("Tell me of the sea", extra));
    std::string joined;
    for (const Json& chunk : streamed->chunks()) {
        const Json& content = chunk["choices"][0]["delta"].value("content", Json());
        if (content.is_string()) joined += content.get<std::string>();
    }
    EXPECT_EQ(joined, whole);
}

// Clients throw on "length", also if the value is whole.
TEST_F(FormTest, WholeValueStopsEvenIfTheBudgetClosedIt) {
    const Json schema{
        {"type", "array"}, {"items", {{"type", "string"}, {"minLength", 3}}}, {"minItems", 2}};
    for (const int max_tokens : {14, 17, 30}) {
        const Json one = choice(with_schema(schema), max_tokens);
        EXPECT_TRUE(Json::parse(one["message"]["content"].get<std::string>()).is_array());
        EXPECT_EQ(one["finish_reason"], "stop") << max_tokens;
    }
}

TEST_F(FormTest, LessThanTheShortestAnswerIsRefusedWithBothNumbers) {
    Json body = chat("x", with_schema(story_schema));
    body["max_tokens"] = 10;
    const auto answer = ask(chat_path, body);
    EXPECT_EQ(answer->status(), 400u);
    const Json error = answer->json()["error"];
    EXPECT_EQ(error["param"], "max_tokens");
    EXPECT_EQ(error["n_max_tokens"], 10);
    const int least = error["n_min_tokens"];
    EXPECT_NE(error["message"].get<std::string>().find(std::to_string(least)), std::string::npos);

    body["max_tokens"] = least;
    const auto enough = ask(chat_path, body);
    ASSERT_EQ(enough->status(), 200u) << enough->response().body;
    expect_story(enough->json()["choices"][0]);
}

TEST_F(FormTest, StopsDoNotActInsideAnAnswerThatHasAForm) {
    Json extra = with_schema(story_schema);
    const Json free = choice(extra);
    extra["stop"] = {"\"", "e", "17"};
    EXPECT_EQ(choice(extra)["message"]["content"], free["message"]["content"]);
}

TEST_F(FormTest, ABegunAnswerIsFinished) {
    Json body = chat("x", with_schema(story_schema));
    body["max_tokens"] = 200;
    body["messages"].push_back({{"role", "assistant"}, {"content", "{\"title\": \"At"}});
    const auto answer = ask(chat_path, body);
    ASSERT_EQ(answer->status(), 200u) << answer->response().body;
    Json one = answer->json()["choices"][0];
    one["message"]["content"] = "{\"title\": \"At" + one["message"]["content"].get<std::string>();
    expect_story(one);

    body["messages"].back()["content"] = "Well, ";
    EXPECT_EQ(ask(chat_path, body)->status(), 400u);
}

TEST_F(FormTest, UnsupportedFormIsRefusedByNameAndPath) {
    const std::pair<Json, const char*> cases[] = {
        {with_schema({{"type", "array"}, {"uniqueItems", true}}), "'uniqueItems'"},
        {with_schema({{"type", "object"}, {"properties", {{"a", {{"uniqueItems", true}}}}}}),
         "schema.properties.a: 'uniqueItems'"},
        {with_schema(false), "nothing satisfies it"},
        {{{"response_format", {{"type", "xml"}}}}, "response_format"},
        {{{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema"},
        {{{"response_format", {{"type", "json_object"}}}, {"json_schema", true}}, "both"},
    };
    for (const auto& [extra, wanted] : cases) {
        const auto answer = ask(chat_path, chat("x", extra));
        EXPECT_EQ(answer->status(), 400u);
        const std::string message = answer->json()["error"]["message"];
        EXPECT_NE(message.find(wanted), std::string::npos) << message;
    }
}

// The model thinks freely first. Its thoughts end early enough for the answer to fit the token
// budget.
TEST_F(FormTest, ThoughtsAreFreeAndEndWhileTheAnswerStillFits) {
    const auto thinking = ChatTemplate::parse(
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content "
        "+ "
        "'<|im_end|>\n' }}{%- endfor %}{#- </think> -#}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}");
    ASSERT_TRUE(thinking.ok());
    api_ = std::make_unique<Api>(model_.package, model_.tokenizer, *thinking, *engine_,
                                 ApiOptions{});
    const Json first = choice(with_schema(story_schema), 90);
    expect_story(first);
    EXPECT_FALSE(first["message"].value("reasoning_content", "").empty());
    EXPECT_EQ(first["finish_reason"], "stop") << "the value is whole";

    Json body = chat("x", with_schema(story_schema));
    body["max_tokens"] = 20;
    EXPECT_EQ(ask(chat_path, body)->status(), 400u);
}

// The KV cache is too small for two whole sequences, so one sequence is preempted in the middle of
// its answer.
TEST_F(FormTest, ThePlaceInAGrammarOutlivesPreemption) {
    EngineOptions options;
    const KvCache probe(model_.package->config(), {options.page_tokens, 0});
    options.kv_bytes_max = 12 * probe.page_bytes();
    options.prefix_cache = false;
    make(options, {});
    std::vector<std::shared_ptr<CapturedAnswer>> answers;
    for (int i = 0; i < 3; ++i) {
        Json extra = with_schema(story_schema);
        extra["max_tokens"] = 120;
        extra["temperature"] = 1;
        extra["seed"] = i;
        answers.push_back(start(chat_path, chat("Tell me of the sea", extra).dump()));
    }
    for (const auto& answer : answers) {
        answer->wait();
        ASSERT_EQ(answer->status(), 200u) << answer->response().body;
        expect_story(answer->json()["choices"][0]);
    }
}

}  // namespace
}  // namespace moex::test
