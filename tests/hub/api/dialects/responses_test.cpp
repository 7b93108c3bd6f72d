// Tests of OpenAI's /v1/responses: it returns the text of a chat completion as output items and
// events.
#include "hub/api/dialects/responses.h"
#include "tests/hub/api/dialects/dialect_fixture.h"

namespace moex::test {
namespace {

class ResponsesTest : public DialectTest {
  protected:
    ResponsesTest() : DialectTest(Dialect::responses) {}
    Json wish(Json extra = Json::object()) {
        Json body{{"input", "Tell me a story"}, {"temperature", 0}, {"max_output_tokens", 12}};
        body.update(extra);
        return body;
    }
    Json whole(const Json& body) {
        const auto answer = ask(&Api::respond, body);
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        return answer->json();
    }
    Json with_tool(Json extra = Json::object()) {
        Json tool{{"type", "function"}};
        tool.update(add_function());
        Json body = wish({{"max_output_tokens", 200}, {"tools", {tool}}, {"seed", 3}});
        body["tool_choice"] = "required";
        body["parallel_tool_calls"] = false;
        body.update(extra);
        return body;
    }
    CompletionParams read(const Json& input) {
        auto params = read_responses({{"input", input}}, {.vocab_size = 8192});
        EXPECT_TRUE(params.ok()) << params.refusal().message;
        return *std::move(params);
    }
    const Json same_{{"messages", words_}, {"temperature", 0}, {"max_tokens", 12}};
};

TEST_F(ResponsesTest, AnAnswerHasTheWordsOfTheChat) {
    const Json said = whole(wish({{"store", true}, {"metadata", {{"a", "b"}}}}));
    EXPECT_TRUE(said["id"].get<std::string>().starts_with("resp_"));
    ASSERT_EQ(said["output"].size(), 1u);
    EXPECT_EQ(said["output"][0]["content"][0]["text"], content_in_openai(same_));
    EXPECT_EQ(said["status"], "incomplete");
    EXPECT_EQ(said["incomplete_details"]["reason"], "max_output_tokens");
    EXPECT_EQ(said["usage"]["output_tokens"], 12);
    EXPECT_EQ(said["usage"]["input_tokens"], in_openai(same_)["usage"]["prompt_tokens"]);
    EXPECT_EQ(said["store"], false) << "nothing is stored";
    EXPECT_EQ(said["metadata"]["a"], "b");
}

TEST_F(ResponsesTest, TheEventsAreNumberedAndEndInTheWholeAnswer) {
    for (const Json& body : {wish(), with_tool(), wish({{"top_logprobs", 2}})}) {
        Json streamed = body;
        streamed["stream"] = true;
        const auto answer = ask(&Api::respond, streamed);
        const auto events = answer->chunks();
        ASSERT_GT(events.size(), 6u);
        EXPECT_EQ(events[0]["type"], "response.created");
        std::map<std::string, std::string> deltas;
        for (std::size_t i = 0; i < events.size(); ++i) {
            EXPECT_EQ(events[i]["sequence_number"], i);
            EXPECT_EQ(events[i]["type"], answer->names()[i]);
            if (events[i].contains("delta"))
                deltas[events[i]["item_id"]] += events[i]["delta"].get<std::string>();
        }
        const Json& last = events.back()["response"];
        EXPECT_EQ(events.back()["type"], text("response.", last["status"].get<std::string>()));

        const Json at_once = whole(body);
        EXPECT_EQ(last["usage"]["output_tokens"], at_once["usage"]["output_tokens"]);
        ASSERT_EQ(last["output"].size(), at_once["output"].size());
        for (std::size_t i = 0; i < last["output"].size(); ++i) {
            const Json &item = last["output"][i], &same = at_once["output"][i];
            EXPECT_EQ(item["type"], same["type"]);
            const bool is_call = item["type"] == "function_call";
            const char* field = is_call ? "arguments" : "content";
            EXPECT_EQ(item[field], same[field]);
            EXPECT_EQ(deltas[item["id"]], is_call ? item["arguments"] : item["content"][0]["text"]);
        }
    }
}

TEST_F(ResponsesTest, AToolIsCalledAndItsOutputTaken) {
    const Json said = whole(with_tool());
    const Json call = said["output"].back();
    EXPECT_EQ(call["type"], "function_call");
    EXPECT_EQ(call["name"], "add");
    expect_sum(Json::parse(call["arguments"].get<std::string>()));

    Json input = words_;
    for (const Json& item : said["output"]) input.push_back(item);
    input.push_back(
        {{"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "3"}});
    const Json again = whole(
        with_tool({{"input", input}, {"tool_choice", "auto"}, {"max_output_tokens", 4}}));
    EXPECT_GT(again["usage"]["input_tokens"], said["usage"]["input_tokens"]);
}

TEST_F(ResponsesTest, ItemsBecomeTheMessagesOfAChat) {
    const Json call{
        {"type", "function_call"}, {"call_id", "abc"}, {"name", "add"}, {"arguments", "{\"a\":1}"}};
    const CompletionParams params = read(
        {{{"role", "developer"}, {"content", "Be brief."}},
         {{"type", "message"},
          {"role", "user"},
          {"content", {{{"type", "input_text"}, {"text", "What is 1?"}}}}},
         {{"type", "reasoning"},
          {"id", "rs_1"},
          {"summary", Json::array()},
          {"content", {{{"type", "reasoning_text"}, {"text", "Easy."}}}}},
         {{"type", "message"},
          {"role", "assistant"},
          {"content", {{{"type", "output_text"}, {"text", "I add."}}}}},
         call,
         {{"type", "function_call_output"}, {"call_id", "abc"}, {"output", "1"}},
         {{"role", "assistant"}, {"content", "One."}}});
    ASSERT_EQ(params.messages.size(), 5u) << params.messages;
    EXPECT_EQ(params.messages[0]["role"], "system");
    EXPECT_EQ(params.messages[2]["content"], "I add.");
    EXPECT_EQ(params.messages[2]["reasoning_content"], "Easy.");
    EXPECT_EQ(params.messages[2]["tool_calls"][0]["function"]["arguments"]["a"], 1);
    EXPECT_EQ(params.messages[3]["role"], "tool");
    EXPECT_EQ(params.messages[4]["content"], "One.");
    EXPECT_FALSE(params.continues) << "a new item follows, whoever spoke last";
}

TEST_F(ResponsesTest, AnAnswerHasTheSchemaThatIsAskedFor) {
    const Json format{{"type", "json_schema"}, {"name", "sum"}, {"schema", add_parameters()}};
    const Json said = whole(wish({{"max_output_tokens", 60}, {"text", {{"format", format}}}}));
    expect_sum(Json::parse(said["output"][0]["content"][0]["text"].get<std::string>()));
}

TEST_F(ResponsesTest, FieldsThatNeedAStoreAreRefusedByName) {
    const Json image{{"role", "user"}, {"content", {{{"type", "input_image"}}}}};
    const std::pair<Json, const char*> cases[] = {
        {{{"previous_response_id", "resp_1"}}, "previous_response_id"},
        {{{"conversation", "conv_1"}}, "conversation"},
        {{{"prompt", {{"id", "p"}}}}, "prompt"},
        {{{"background", true}}, "background"},
        {{{"truncation", "always"}}, "truncation"},
        {{{"input", nullptr}}, "input"},
        {{{"input", Json::array()}}, "input"},
        {{{"input", {{{"type", "item_reference"}, {"id", "x"}}}}}, "input[0].type"},
        {{{"input", {image}}}, "input[0].content[0].type"},
        {{{"max_output_tokens", 2}, {"text", {{"format", {{"type", "json_object"}}}}}}, ""},
        {{{"text", {{"format", {{"type", "xml"}}}}}}, "text.format"},
        {{{"text",
           {{"format", {{"type", "json_schema"}, {"name", "x"}, {"schema", add_parameters()}}}}},
          {"max_output_tokens", 3}},
         "max_output_tokens"},
    };
    for (const auto& [extra, param] : cases) {
        const auto answer = ask(&Api::respond, wish(extra));
        if (std::string_view(param).empty()) {
            EXPECT_EQ(answer->status(), 200u) << answer->response().body;
            continue;
        }
        EXPECT_EQ(answer->status(), 400u) << extra;
        EXPECT_EQ(answer->json()["error"]["param"], param) << answer->response().body;
    }
}

TEST_F(ResponsesTest, AFailureOfAStreamIsItsLastEvent) {
    CompletionParams params;
    const Json body = Json::object();
    const auto writer = responses_endpoint.write(
        {.header = {.id = "resp_x"}, .params = params, .body = body});
    const auto events = writer->fail({503, "No worker.", "unavailable", ""});
    ASSERT_EQ(events.size(), 1u);
    const Json failed = Json::parse(events[0].data);
    EXPECT_EQ(failed["type"], "response.failed");
    EXPECT_EQ(failed["response"]["status"], "failed");
    EXPECT_EQ(failed["response"]["error"]["message"], "No worker.");
}

}  // namespace
}  // namespace moex::test
