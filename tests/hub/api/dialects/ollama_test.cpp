// Tests of Ollama's routes: they return the text of a chat completion as lines of JSON.
#include "hub/api/dialects/ollama.h"
#include "tests/hub/api/dialects/dialect_fixture.h"

namespace moex::test {
namespace {

class OllamaTest : public DialectTest {
  protected:
    OllamaTest() : DialectTest(Dialect::ollama) {}
    Json chat(Json extra = Json::object()) {
        Json body{{"model", model_name_ + ":latest"},
                  {"messages", words_},
                  {"options", {{"temperature", 0}, {"num_predict", 12}}}};
        body.update(extra);
        return body;
    }
    std::string refused(Handler handler, const Json& body) {
        const auto answer = ask(handler, body);
        EXPECT_EQ(answer->status(), 400u) << body;
        EXPECT_EQ(answer->json().size(), 1u) << answer->response().body;
        return answer->json()["error"];
    }
    const Json same_{{"messages", words_}, {"temperature", 0}, {"max_tokens", 12}};
};

TEST_F(OllamaTest, AChatIsAStreamOfLinesUnlessItSaysOtherwise) {
    const auto streamed = ask(&Api::ollama_chat, chat());
    ASSERT_TRUE(streamed->streamed());
    std::string text;
    const auto lines = streamed->chunks();
    for (std::size_t i = 0; i < lines.size(); ++i) {
        EXPECT_EQ(lines[i]["model"], model_name_ + ":latest");
        EXPECT_EQ(lines[i]["message"]["role"], "assistant");
        EXPECT_EQ(lines[i]["done"], i + 1 == lines.size());
        EXPECT_EQ(lines[i].contains("eval_count"), i + 1 == lines.size());
        EXPECT_TRUE(streamed->names()[i].empty());
        text += lines[i]["message"]["content"].get<std::string>();
    }
    EXPECT_EQ(text, content_in_openai(same_));

    const Json whole = ask(&Api::ollama_chat, chat({{"stream", false}}))->json();
    EXPECT_EQ(whole["message"]["content"], text);
    EXPECT_EQ(whole["done_reason"], "length");
    EXPECT_EQ(whole["eval_count"], 12);
    EXPECT_EQ(whole["prompt_eval_count"], in_openai(same_)["usage"]["prompt_tokens"]);
    for (const char* name : {"total_duration", "prompt_eval_duration", "eval_duration"})
        EXPECT_GT(whole[name].get<std::int64_t>(), 1000) << name << ": nanoseconds";
    EXPECT_GE(whole["total_duration"], whole["eval_duration"]);
}

TEST_F(OllamaTest, APromptIsAChatOfOneMessageAndRawIsTheTextItself) {
    const Json options{{"temperature", 0}, {"num_predict", 12}};
    const Json asked{{"model", model_name_},
                     {"prompt", "Tell me a story"},
                     {"stream", false},
                     {"options", options}};
    EXPECT_EQ(ask(&Api::ollama_generate, asked)->json()["response"], content_in_openai(same_));

    Json raw = asked;
    raw["raw"] = true;
    const Json text = ask(&Api::complete,
                          {{"prompt", "Tell me a story"}, {"temperature", 0}, {"max_tokens", 12}})
                          ->json();
    EXPECT_EQ(ask(&Api::ollama_generate, raw)->json()["response"], text["choices"][0]["text"]);

    Json with_system = asked;
    with_system["system"] = "You are a pirate.";
    Json messages = Json::array({{{"role", "system"}, {"content", "You are a pirate."}}});
    messages.push_back(words_[0]);
    EXPECT_EQ(ask(&Api::ollama_generate, with_system)->json()["response"],
              content_in_openai({{"messages", messages}, {"temperature", 0}, {"max_tokens", 12}}));
}

TEST_F(OllamaTest, AFormatHolds) {
    const Json options{{"temperature", 1}, {"num_predict", 100}, {"seed", 3}};
    const Json object = Json::parse(
        ask(&Api::ollama_chat, chat({{"stream", false}, {"format", "json"}, {"options", options}}))
            ->json()["message"]["content"]
            .get<std::string>());
    EXPECT_TRUE(object.is_object());

    const Json sum = Json::parse(ask(&Api::ollama_generate, {{"model", model_name_},
                                                             {"prompt", "Two numbers"},
                                                             {"stream", false},
                                                             {"format", add_parameters()},
                                                             {"options", options}})
                                     ->json()["response"]
                                     .get<std::string>());
    expect_sum(sum);
    EXPECT_NE(
        refused(&Api::ollama_chat, chat({{"format", {{"not", Json::object()}}}})).find("'format'"),
        std::string::npos);
}

// Requests with tools are accepted. Earlier calls, whose arguments are objects, and their results
// enter the prompt.
TEST_F(OllamaTest, CallsAreObjectsAndComeWhole) {
    Json body = chat({{"stream", false}, {"options", {{"num_predict", 200}, {"seed", 4}}}});
    body["tools"] = Json::array({{{"type", "function"}, {"function", add_function()}}});
    const Json said = ask(&Api::ollama_chat, body)->json();
    EXPECT_EQ(said["done"], true);

    body["messages"] = Json::array(
        {words_[0],
         {{"role", "assistant"},
          {"content", ""},
          {"tool_calls", {{{"function", {{"name", "add"}, {"arguments", {{"a", 1}, {"b", 2}}}}}}}}},
         {{"role", "tool"}, {"content", "3"}, {"tool_name", "add"}}});
    EXPECT_GT(ask(&Api::ollama_chat, body)->json()["prompt_eval_count"], said["prompt_eval_count"]);
}

TEST_F(OllamaTest, AToolChoiceIsFollowed) {
    Json body = chat({{"stream", false},
                      {"options", {{"num_predict", 200}, {"temperature", 0}}},
                      {"tools", {{{"type", "function"}, {"function", add_function()}}}},
                      {"tool_choice", "required"},
                      {"parallel_tool_calls", false}});
    const Json said = ask(&Api::ollama_chat, body)->json()["message"];
    EXPECT_EQ(said["content"], "");
    ASSERT_EQ(said["tool_calls"].size(), 1u) << said;
    EXPECT_EQ(said["tool_calls"][0]["function"]["name"], "add");
    EXPECT_TRUE(said["tool_calls"][0]["function"]["arguments"]["a"].is_number()) << said;

    body["tool_choice"] = "none";
    EXPECT_FALSE(ask(&Api::ollama_chat, body)->json()["message"].contains("tool_calls"));
    body["tool_choice"] = "sometimes";
    EXPECT_NE(refused(&Api::ollama_chat, body).find("tool_choice"), std::string::npos);
}

TEST_F(OllamaTest, ACallIsWrittenOnceItsArgumentsAreWhole) {
    CompletionParams params;
    const Json body{{"model", "m"}};
    const auto writer = ollama_chat_endpoint.write({.header = {}, .params = params, .body = body});
    EXPECT_TRUE(writer->call(0, {.name = "add"}, "abcdefghi").empty());
    EXPECT_TRUE(writer->call(0, {.arguments = "{\"a\": "}, "").empty());
    EXPECT_TRUE(writer->call(0, {.arguments = "1}"}, "").empty());
    const auto next = writer->call(0, {.index = 1, .name = "clock"}, "123456789");
    ASSERT_EQ(next.size(), 1u);
    const Json call = Json::parse(next[0].data)["message"]["tool_calls"][0];
    EXPECT_EQ(call["function"]["name"], "add");
    EXPECT_EQ(call["function"]["arguments"], (Json{{"a", 1}}));

    const AnswerTotals totals;
    const auto last = writer->end_choice(0, {.finish_reason = "tool_calls"}, &totals);
    ASSERT_EQ(last.size(), 2u);
    EXPECT_EQ(Json::parse(last[0].data)["message"]["tool_calls"][0]["function"]["arguments"],
              Json::object());
    EXPECT_EQ(Json::parse(last[1].data)["done_reason"], "stop");
}

TEST_F(OllamaTest, AnEmptyRequestLoadsTheModelWhichIsLoaded) {
    const Json chat = ask(&Api::ollama_chat, {{"model", "x"}, {"messages", Json::array()}})->json();
    EXPECT_EQ(chat["done_reason"], "load");
    EXPECT_EQ(chat["message"]["content"], "");
    const Json text = ask(&Api::ollama_generate, {{"model", "x"}, {"keep_alive", -1}})->json();
    EXPECT_EQ(text["done_reason"], "load");
    EXPECT_EQ(text["response"], "");
}

TEST_F(OllamaTest, TheModelIsShown) {
    const Json tags = ask(&Api::ollama_tags, Json::object())->json();
    ASSERT_EQ(tags["models"].size(), 1u);
    EXPECT_EQ(tags["models"][0]["name"], model_name_ + ":latest");
    EXPECT_EQ(tags["models"][0]["digest"].get<std::string>().size(), 64u);

    for (const char* name : {"model", "name"}) {
        const Json shown = ask(&Api::ollama_show, {{name, model_name_ + ":latest"}})->json();
        EXPECT_EQ(shown["capabilities"][0], "completion");
        EXPECT_EQ(shown["model_info"]["general.basename"], model_name_);
        EXPECT_NE(shown["template"].get<std::string>().find("messages"), std::string::npos);
    }
    EXPECT_EQ(ask(&Api::ollama_show, {{"model", "llama3"}})->status(), 404u);
    EXPECT_EQ(ollama_time(std::chrono::nanoseconds(1'700'000'000'000'000'007)),
              "2023-11-14T22:13:20.000000007Z");
}

TEST_F(OllamaTest, UnsupportedFieldsAreRefusedByName) {
    EXPECT_EQ(refused(&Api::ollama_chat, {{"messages", words_}}), "model is required");
    const std::pair<Json, const char*> cases[] = {
        {{{"messages", 3}}, "messages"},
        {{{"messages", {{{"role", "user"}, {"content", "x"}, {"images", {"aGk="}}}}}}, "images"},
        {{{"format", 3}}, "format"},
        {{{"options", 3}}, "options"},
        {{{"options", {{"temperature", "hot"}}}}, "temperature"},
        {{{"think", 3}}, "think"},
        {{{"format", add_parameters()}, {"options", {{"num_predict", 3}}}}, "num_predict"},
    };
    for (const auto& [extra, name] : cases)
        EXPECT_NE(refused(&Api::ollama_chat, chat(extra)).find(name), std::string::npos) << extra;
    for (const char* name : {"suffix", "template", "images"}) {
        Json body{{"model", model_name_}, {"prompt", "x"}, {name, "y"}};
        if (std::string_view(name) == "images") body[name] = {"aGk="};
        EXPECT_NE(refused(&Api::ollama_generate, body).find(name), std::string::npos);
    }
}

TEST_F(OllamaTest, AnErrorInMidStreamIsALine) {
    experts_.fail();
    const auto answer = ask(&Api::ollama_chat, chat());
    const Json error = answer->streamed() ? answer->chunks().back() : answer->json();
    EXPECT_TRUE(error["error"].is_string()) << error;
}

}  // namespace
}  // namespace moex::test
