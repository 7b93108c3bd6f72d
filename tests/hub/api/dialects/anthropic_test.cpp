// Tests of Anthropic's Messages: they return the text of a chat completion as content blocks and
// events.
#include "hub/api/dialects/anthropic.h"
#include "tests/hub/api/dialects/dialect_fixture.h"

namespace moex::test {
namespace {

class AnthropicTest : public DialectTest {
  protected:
    AnthropicTest() : DialectTest(Dialect::anthropic) {}
    Json message(Json extra = Json::object()) {
        Json body{
            {"model", model_name_}, {"messages", words_}, {"max_tokens", 12}, {"temperature", 0}};
        body.update(extra);
        return body;
    }
    Json whole(const Json& body) {
        const auto answer = ask(&Api::anthropic_message, body);
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        return answer->json();
    }
    Json with_tool(Json extra = Json::object()) {
        Json body = message({{"max_tokens", 200}, {"temperature", 1}});
        body["tools"] = Json::array({{{"name", "add"}, {"input_schema", add_parameters()}}});
        body.update(extra);
        return body;
    }
    CompletionParams read(const Json& body) {
        auto params = read_anthropic(body, {.vocab_size = 8192});
        EXPECT_TRUE(params.ok()) << params.refusal().message;
        return *std::move(params);
    }
    const Json same_{{"messages", words_}, {"temperature", 0}, {"max_tokens", 12}};
};

// Joins the events of a stream into one message, as a client does.
Json joined(const CapturedAnswer& answer) {
    Json message;
    std::vector<std::string> inputs;
    const auto events = answer.chunks();
    for (std::size_t i = 0; i < events.size(); ++i) {
        const Json& event = events[i];
        EXPECT_EQ(answer.names()[i], event["type"]);
        if (event["type"] == "message_start") message = event["message"];
        if (event["type"] == "content_block_start") {
            EXPECT_EQ(event["index"], message["content"].size());
            message["content"].push_back(event["content_block"]);
            inputs.emplace_back();
        }
        if (event["type"] == "content_block_delta") {
            const Json& delta = event["delta"];
            Json& block = message["content"][event["index"].get<std::size_t>()];
            for (const char* field : {"text", "thinking"})
                if (delta.contains(field))
                    block[field] = block[field].get<std::string>() +
                                   delta[field].get<std::string>();
            inputs.back() += delta.value("partial_json", "");
        }
        if (event["type"] == "content_block_stop" && !inputs.back().empty())
            message["content"].back()["input"] = Json::parse(inputs.back());
        if (event["type"] != "message_delta") continue;
        message.update(event["delta"]);
        message["usage"].update(event["usage"]);
    }
    EXPECT_EQ(answer.names().front(), "message_start");
    EXPECT_EQ(answer.names().back(), "message_stop");
    return message;
}

TEST_F(AnthropicTest, AMessageHasTheWordsOfTheChat) {
    const Json said = whole(message());
    EXPECT_TRUE(said["id"].get<std::string>().starts_with("msg_"));
    ASSERT_EQ(said["content"].size(), 1u);
    EXPECT_EQ(said["content"][0]["text"], content_in_openai(same_));
    EXPECT_EQ(said["stop_reason"], "max_tokens");
    EXPECT_EQ(said["usage"]["output_tokens"], 12);
    const int prompt = said["usage"]["input_tokens"].get<int>() +
                       said["usage"]["cache_read_input_tokens"].get<int>();
    EXPECT_EQ(prompt, in_openai(same_)["usage"]["prompt_tokens"]);
    EXPECT_EQ(ask(&Api::anthropic_count, {{"model", model_name_}, {"messages", words_}})->json(),
              (Json{{"input_tokens", prompt}}));
}

TEST_F(AnthropicTest, TheEventsJoinToTheMessage) {
    for (const Json& body : {message(), with_tool({{"tool_choice", {{"type", "any"}}}})}) {
        Json streamed = body;
        streamed["stream"] = true;
        streamed["seed"] = 3;
        const Json from_events = joined(*ask(&Api::anthropic_message, streamed));
        EXPECT_FALSE(from_events["content"].empty());
        EXPECT_TRUE(from_events["stop_reason"].is_string());
        if (!body.contains("tools")) {
            EXPECT_EQ(from_events["content"], whole(body)["content"]);
        }
        for (const Json& block : from_events["content"])
            if (block["type"] == "tool_use") expect_sum(block["input"]);
    }
}

TEST_F(AnthropicTest, AStopSequenceIsNamed) {
    const std::string text = whole(message())["content"][0]["text"];
    const std::string stop = text.substr(5, 3);
    const Json said = whole(message({{"stop_sequences", {"never this", stop}}}));
    EXPECT_EQ(said["content"][0]["text"], text.substr(0, text.find(stop)));
    EXPECT_EQ(said["stop_reason"], "stop_sequence");
    EXPECT_EQ(said["stop_sequence"], stop);
}

TEST_F(AnthropicTest, AToolIsUsedAndItsResultTaken) {
    const Json choice{{"type", "tool"}, {"name", "add"}, {"disable_parallel_tool_use", true}};
    const Json said = whole(with_tool({{"tool_choice", choice}}));
    EXPECT_EQ(said["stop_reason"], "tool_use");
    const Json& call = said["content"].back();
    EXPECT_EQ(call["type"], "tool_use");
    expect_sum(call["input"]);

    const Json result{{"type", "tool_result"},
                      {"tool_use_id", call["id"]},
                      {"content", {{{"type", "text"}, {"text", "3"}}}}};
    Json messages = words_;
    messages.push_back({{"role", "assistant"}, {"content", said["content"]}});
    messages.push_back({{"role", "user"}, {"content", {result}}});
    const Json again = whole(with_tool({{"messages", messages}, {"max_tokens", 4}}));
    EXPECT_EQ(again["role"], "assistant");
}

TEST_F(AnthropicTest, BlocksBecomeTheMessagesOfAChat) {
    const CompletionParams params = read(message(
        {{"system", {{{"type", "text"}, {"text", "Be"}}, {{"type", "text"}, {"text", "brief."}}}},
         {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}},
         {"messages",
          {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "What is 1 + 2?"}}}}},
           {{"role", "assistant"},
            {"content",
             {{{"type", "thinking"}, {"thinking", "Easy."}, {"signature", ""}},
              {{"type", "text"}, {"text", "I add."}},
              {{"type", "tool_use"},
               {"id", "abc"},
               {"name", "add"},
               {"input", {{"a", 1}, {"b", 2}}}}}}},
           {{"role", "user"},
            {"content",
             {{{"type", "tool_result"}, {"tool_use_id", "abc"}, {"content", "3"}},
              {{"type", "text"}, {"text", "Well?"}}}}}}}}));
    ASSERT_EQ(params.messages.size(), 5u) << params.messages;
    EXPECT_EQ(params.messages[0], (Json{{"role", "system"}, {"content", "Be\nbrief."}}));
    EXPECT_EQ(params.messages[2]["reasoning_content"], "Easy.");
    EXPECT_EQ(params.messages[2]["tool_calls"][0]["function"]["arguments"]["b"], 2);
    EXPECT_EQ(params.messages[3]["role"], "tool");
    EXPECT_EQ(params.messages[3]["content"], "3");
    EXPECT_EQ(params.messages[4], (Json{{"role", "user"}, {"content", "Well?"}}));
    EXPECT_EQ(params.template_variables["enable_thinking"], true);
}

TEST_F(AnthropicTest, ThoughtsAreBlocksOfTheirOwn) {
    CompletionParams params;
    const Json body = Json::object();
    const auto writer = anthropic_endpoint.write({.header = {}, .params = params, .body = body});
    const AnswerTotals totals;
    const AnswerChoice choice{.content = "Three.", .reasoning = "Easy.", .finish_reason = "stop"};
    const Json blocks = writer->whole(std::span(&choice, 1), totals)["content"];

    CapturedAnswer answer;
    answer.begin_stream({});
    const auto take = [&](ReplyWriter::Events events) {
        for (StreamEvent& event : events) answer.send_event(std::move(event), {});
    };
    take(writer->begin(7));
    take(writer->say(0, {"Ea", ""}, {}));
    take(writer->say(0, {"sy.", "Th"}, {}));
    take(writer->say(0, {"", "ree."}, {}));
    take(writer->end_choice(0, choice, &totals));
    take(writer->end(totals));
    EXPECT_EQ(joined(answer)["content"], blocks);
    EXPECT_EQ(blocks[0]["thinking"], "Easy.");
    EXPECT_EQ(blocks[1]["text"], "Three.");
}

TEST_F(AnthropicTest, AnAnswerHasTheSchemaThatIsAskedFor) {
    const Json format{{"type", "json_schema"}, {"schema", add_parameters()}};
    const Json said = whole(message({{"max_tokens", 60}, {"output_config", {{"format", format}}}}));
    expect_sum(Json::parse(said["content"][0]["text"].get<std::string>()));
}

TEST_F(AnthropicTest, InvalidFieldsAreRefusedByName) {
    const auto image = Json{{"type", "image"}, {"source", {{"type", "base64"}}}};
    const std::pair<Json, const char*> cases[] = {
        {{{"max_tokens", nullptr}}, "max_tokens: Field required"},
        {{{"max_tokens", 0}}, "max_tokens"},
        {{{"messages", Json::array()}}, "messages"},
        {{{"messages", {{{"role", "narrator"}, {"content", "x"}}}}}, "messages.0.role"},
        {{{"thread", {{"type", "create"}}}}, "thread"},
        {{{"messages", {{{"role", "user"}, {"content", {image}}}}}}, "messages.0.content.0"},
        {{{"messages", {{{"role", "user"}, {"content", 3}}}}}, "messages.0.content"},
        {{{"tool_choice", {{"type", "sometimes"}}}}, "tool_choice"},
        {{{"thinking", {{"type", "maybe"}}}}, "thinking.type"},
        {{{"stop_sequences", "a"}}, "stop_sequences"},
        {{{"mcp_servers", {{{"url", "x"}}}}}, "mcp_servers"},
        {{{"output_config",
           {{"format", {{"type", "json_schema"}, {"schema", {{"uniqueItems", true}}}}}}}},
         "output_config.format.schema"},
    };
    for (const auto& [extra, name] : cases) {
        const auto answer = ask(&Api::anthropic_message, message(extra));
        EXPECT_EQ(answer->status(), 400u) << extra;
        const Json error = answer->json();
        EXPECT_EQ(error["type"], "error");
        EXPECT_EQ(error["error"]["type"], "invalid_request_error");
        EXPECT_NE(error["error"]["message"].get<std::string>().find(name), std::string::npos)
            << error;
    }
    const auto unknown = ask(&Api::anthropic_message, message({{"model", "claude"}}));
    EXPECT_EQ(unknown->status(), 404u);
    EXPECT_EQ(unknown->json()["error"]["type"], "not_found_error");
}

TEST_F(AnthropicTest, AnErrorOfAStreamIsAnEventOfThatName) {
    experts_.hold();
    const auto answer = start(&Api::anthropic_message, message({{"stream", true}}).dump());
    experts_.fail();
    answer->wait();
    const Json error = answer->streamed() ? answer->chunks().back() : answer->json();
    EXPECT_EQ(error["type"], "error");
    EXPECT_EQ(error["error"]["type"], "overloaded_error");
    EXPECT_EQ(answer->streamed() ? answer->names().back() : answer->response().event_name, "error");
}

}  // namespace
}  // namespace moex::test
