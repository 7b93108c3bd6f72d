// Tests of what agents and editors send unasked: tools of any schema and type, histories that were
// cut, and fields of other servers.
#include <fstream>

#include "hub/api/jobs/answer_form.h"
#include "hub/api/openai_request.h"
#include "tests/hub/api/api_fixture.h"

namespace moex::test {
namespace {

Json function_tool(const char* name, Json parameters, bool strict = false) {
    Json function{{"name", name}, {"parameters", std::move(parameters)}};
    if (strict) function["strict"] = true;
    return {{"type", "function"}, {"function", std::move(function)}};
}

Json with_member(Json schema) {
    return {{"type", "object"},
            {"properties", {{"v", std::move(schema)}, {"n", {{"type", "integer"}}}}},
            {"required", {"n"}}};
}

class AgentsTest : public ApiTest {
  protected:
    Json asked(Handler handler, const Json& body) {
        const auto answer = ask(handler, body);
        EXPECT_EQ(answer->status(), 200u) << body << answer->response().body;
        return answer->json();
    }
    Json chatted(const Json& extra) { return asked(chat_path, chat("Go", extra)); }
};

TEST_F(AgentsTest, NoSchemaOfAToolStopsTheRequest) {
    // A grammar holds the first of these schemas, so that a strict tool may have them, too.
    const Json held[] = {
        {{"type", "string"}, {"format", "binary"}},
        {{"type", "integer"}, {"minimum", 5}, {"maximum", 4}},
        {{"$ref", "#/properties/v"}},
        {{"type", "number"}, {"multipleOf", 0.25}},
        {{"if", {{"const", 1}}}, {"then", {{"const", 1}}}},
        {{"type", "array"}, {"contains", {{"const", 1}}}},
    };
    const Json others[] = {
        {{"type", "array"}, {"uniqueItems", true}},
        {{"type", "array"}, {"contains", {{"const", 1}}}, {"maxContains", 1}},
        {{"type", "object"}, {"propertyNames", {{"maxLength", 3}}}},
        {{"oneOf", {{{"minimum", 1}}, {{"maximum", 4}}}}},
        {{"anyOf", {{{"not", {{"pattern", "a"}}}}, {{"type", "null"}}}}},
        {{"if", {{"pattern", "a"}}}, {"then", {{"const", "b"}}}},
        {{"$ref", "https://example.org/schema.json"}},
        {{"type", "any"}},
        {{"type", "string"}, {"pattern", "a(?!x)"}},
        {{"type", "string"}, {"pattern", "("}},
        {{"type", "number"}, {"multipleOf", 1e-20}},
        {{"type", "integer"}, {"minimum", "1"}},
        {{"enum", 3}},
        7,
    };
    const auto status = [&](const Json& schema, bool strict) {
        const Json tool = function_tool("t", with_member(schema), strict);
        return ask(chat_path, chat("Go", {{"tools", {tool}}, {"max_tokens", 4}}))->status();
    };
    for (const Json& schema : held) {
        EXPECT_EQ(status(schema, false), 200u) << schema;
        EXPECT_EQ(status(schema, true), 200u) << schema;
    }
    for (const Json& schema : others) {
        EXPECT_EQ(status(schema, false), 200u) << schema;
        EXPECT_EQ(status(schema, true), 400u) << schema;
    }
}

TEST_F(AgentsTest, WeakenedKeywordsAreNamedAndTheRestHolds) {
    const Json schema = with_member({{"type", "array"},
                                     {"items", {{"type", "boolean"}}},
                                     {"maxItems", 3},
                                     {"uniqueItems", true}});
    for (const bool streams : {false, true}) {
        Json body = chat("Go", {{"tools", {function_tool("mark", schema)}},
                                {"tool_choice", "required"},
                                {"parallel_tool_calls", false},
                                {"temperature", 1},
                                {"seed", 3},
                                {"max_tokens", 120},
                                {"stream", streams}});
        const auto answer = ask(chat_path, body);
        ASSERT_EQ(answer->status(), 200u) << answer->response().body;
        const Json moex = streams ? answer->chunks().back()["moex"] : answer->json()["moex"];
        EXPECT_EQ(moex["weakened"],
                  Json::array(
                      {{{"tool", "mark"}, {"path", "properties.v"}, {"keyword", "uniqueItems"}}}));
        ASSERT_TRUE(moex["arguments_valid"].is_boolean()) << moex;
        if (streams) continue;
        const Json call = answer->json()["choices"][0]["message"]["tool_calls"][0]["function"];
        const Json arguments = Json::parse(call["arguments"].get<std::string>());
        EXPECT_TRUE(arguments["n"].is_number_integer());
        const Json list = arguments.value("v", Json::array());
        bool is_unique = true;
        for (const Json& one : list) EXPECT_TRUE(one.is_boolean());
        for (std::size_t i = 0; i < list.size(); ++i)
            for (std::size_t j = 0; j < i; ++j) is_unique = is_unique && list[i] != list[j];
        EXPECT_EQ(moex["arguments_valid"], is_unique) << arguments;
    }
}

TEST_F(AgentsTest, ToolsOfOtherTypesAreLeftOutAndNamed) {
    const Json own = function_tool("own", with_member({{"type", "null"}}));
    const Json said = chatted({{"tools",
                                {{{"type", "code_interpreter"}},
                                 own,
                                 {{"type", "custom"}, {"custom", {{"name", "edit"}}}}}}});
    EXPECT_EQ(said["moex"]["left_out"], Json::array({{{"type", "code_interpreter"}},
                                                     {{"type", "custom"}, {"name", "edit"}}}));

    dialect_ = Dialect::responses;
    const Json response = asked(
        &Api::respond,
        {{"input", "Go"},
         {"max_output_tokens", 4},
         {"tools", {{{"type", "local_shell"}}, {{"type", "mcp"}, {"server_label", "x"}}}}});
    EXPECT_EQ(response["moex"]["left_out"].size(), 2u) << response;

    dialect_ = Dialect::anthropic;
    const Json message = asked(&Api::anthropic_message,
                               {{"model", model_.package->name()},
                                {"max_tokens", 4},
                                {"messages", {{{"role", "user"}, {"content", "Go"}}}},
                                {"tools", {{{"type", "text_editor_20250728"}, {"name", "edit"}}}}});
    EXPECT_EQ(message["moex"]["left_out"],
              Json::array({{{"type", "text_editor_20250728"}, {"name", "edit"}}}));
}

TEST_F(AgentsTest, AChoiceOfToolsMayHaveTheSpellingOfAnyDialect) {
    const Json a = function_tool("a", with_member({{"type", "null"}})),
               b = function_tool("b", with_member({{"type", "null"}})),
               only_b{{"mode", "required"}, {"tools", {{{"type", "function"}, {"name", "b"}}}}};
    Json beside = only_b;
    beside["type"] = "allowed_tools";
    const std::pair<Json, const char*> calls[] = {
        {"any", ""},
        {{{"type", "any"}}, ""},
        {{{"type", "required"}}, ""},
        {{{"type", "function"}, {"name", "b"}}, "b"},
        {{{"type", "tool"}, {"name", "b"}}, "b"},
        {{{"type", "allowed_tools"}, {"allowed_tools", only_b}}, "b"},
        {beside, "b"}};
    for (const auto& [choice, name] : calls) {
        const Json said = chatted({{"tools", {a, b}},
                                   {"tool_choice", choice},
                                   {"parallel_tool_calls", false},
                                   {"temperature", 0},
                                   {"max_tokens", 200}});
        const Json& message = said["choices"][0]["message"];
        ASSERT_TRUE(message.contains("tool_calls")) << choice << said;
        if (*name != 0) EXPECT_EQ(message["tool_calls"][0]["function"]["name"], name) << choice;
    }
    const auto shown = [&](const Json& choice) {
        return chatted(
            {{"tools", {a}}, {"tool_choice", choice}, {"max_tokens", 2}})["usage"]["prompt_tokens"];
    };
    for (const char* word : {"auto", "none"}) EXPECT_EQ(shown({{"type", word}}), shown(word));
    EXPECT_LT(shown("none"), shown("auto")) << "the model is shown no tools";
    const auto unknown = ask(chat_path, chat("Go", {{"tools", {a}},
                                                    {"tool_choice",
                                                     {{"type", "allowed_tools"},
                                                      {"mode", "required"},
                                                      {"tools", {{{"name", "other"}}}}}}}));
    EXPECT_EQ(unknown->status(), 400u);
    EXPECT_EQ(unknown->json()["error"]["param"], "tool_choice");
}

TEST_F(AgentsTest, AToolMayBeFlatWithoutATypeOrThereTwice) {
    const Json own = function_tool("own", with_member({{"type", "null"}}));
    Json flat = own["function"], untyped = own;
    flat["type"] = "function";
    flat["name"] = "flat";
    untyped.erase("type");
    untyped["function"]["name"] = "untyped";
    const Json said = chatted({{"tools", {own, flat, untyped, own}}, {"max_tokens", 2}});
    EXPECT_EQ(said["moex"]["left_out"], Json::array({{{"type", "function"}, {"name", "own"}}}));
}

TEST_F(AgentsTest, AHistoryMayHaveThePartsOfOtherPrograms) {
    const Json image{{"type", "image_url"}, {"image_url", {{"url", "data:,"}}}};
    const Json body{
        {"messages",
         {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "Go"}}}}},
          {{"role", "assistant"},
           {"content",
            {{{"type", "thinking"}, {"thinking", "Hm."}},
             {{"type", "output_text"}, {"text", "I look."}}}},
           {"tool_calls",
            {{{"id", "c"}, {"type", "custom"}, {"custom", {{"name", "sh"}, {"input", "ls"}}}}}}},
          {{"role", "tool"}, {"tool_call_id", "c"}},
          {{"role", "function"}, {"name", "sh"}, {"content", {image}}},
          {{"role", "user"}, {"content", "On"}}}}};
    const std::string prompt = asked(&Api::apply_template, body)["prompt"];
    EXPECT_NE(prompt.find("I look."), std::string::npos) << prompt;
    EXPECT_NE(prompt.find("reads text only"), std::string::npos) << prompt;

    dialect_ = Dialect::responses;
    const Json arguments[] = {nullptr, "", {{"a", 1}}, "{\"a\":"};
    const Json outputs[] = {nullptr, {{"exit", 0}}, {{{"type", "input_image"}}}, "done"};
    for (std::size_t i = 0; i < std::size(arguments); ++i)
        asked(&Api::respond,
              {{"max_output_tokens", 2},
               {"input",
                {{{"role", "user"}, {"content", {{{"type", "summary_text"}, {"text", "So far."}}}}},
                 {{"type", "function_call"}, {"name", "f"}, {"arguments", arguments[i]}},
                 {{"type", "function_call_output"}, {"call_id", "x"}, {"output", outputs[i]}}}}});

    dialect_ = Dialect::anthropic;
    const Json document{{"type", "document"},
                        {"source", {{"type", "content"}, {"content", "The sea is deep."}}}};
    asked(&Api::anthropic_message, {{"model", model_.package->name()},
                                    {"max_tokens", 2},
                                    {"messages", {{{"role", "user"}, {"content", {document}}}}}});
}

TEST_F(AgentsTest, APromptThatIsTooLongIsSaidInTheWordsThatAgentsLookFor) {
    std::string words;
    while (words.size() < 200'000) words += "sea ";
    const auto refused = ask(chat_path, chat(words));
    ASSERT_EQ(refused->status(), 400u);
    const std::string message = refused->json()["error"]["message"];
    EXPECT_TRUE(message.starts_with("prompt is too long: ")) << message;
    EXPECT_NE(message.find("maximum context length is "), std::string::npos) << message;
}

TEST_F(AgentsTest, ThePromptOfAChatAndOfAResponseIsCounted) {
    const Json prompt_tokens = chatted({{"max_tokens", 1}})["usage"]["prompt_tokens"],
               wanted{{"object", "response.input_tokens"}, {"input_tokens", prompt_tokens}};
    EXPECT_EQ(asked(&Api::chat_count, chat("Go")), wanted);
    dialect_ = Dialect::responses;
    EXPECT_EQ(asked(&Api::respond_count, {{"input", "Go"}}), wanted);
}

TEST_F(AgentsTest, ItemsOfOtherToolsBecomeText) {
    dialect_ = Dialect::responses;
    asked(&Api::respond,
          {{"max_output_tokens", 2},
           {"input",
            {{{"role", "user"}, {"content", "Go"}},
             {{"type", "web_search_call"}, {"id", "w"}, {"status", "completed"}},
             {{"type", "local_shell_call"}, {"call_id", "s"}, {"action", {{"command", {"ls"}}}}},
             {{"type", "local_shell_call_output"}, {"call_id", "s"}, {"output", "a.txt"}},
             {{"role", "assistant"}, {"content", {{{"type", "refusal"}, {"refusal", "No."}}}}},
             {{"role", "user"}, {"content", "And?"}}}}});
}

TEST_F(AgentsTest, BrokenArgumentsOfEarlierCallsAreHealed) {
    const auto healed = [&](const Json& arguments) {
        Json messages{{{"role", "user"}, {"content", "a"}},
                      {{"role", "assistant"},
                       {"content", nullptr},
                       {"tool_calls",
                        {{{"id", "c"},
                          {"type", "function"},
                          {"function", {{"name", "f"}, {"arguments", arguments}}}}}}},
                      {{"role", "tool"}, {"tool_call_id", "c"}, {"content", nullptr}}};
        const auto params = parse_chat_params(Json{{"messages", messages}}.dump(), {});
        EXPECT_TRUE(params.ok()) << arguments;
        return params->messages[1]["tool_calls"][0]["function"]["arguments"].dump();
    };
    EXPECT_EQ(healed(""), "{}");
    EXPECT_EQ(healed(" \n"), "{}");
    EXPECT_EQ(healed(nullptr), "{}");
    EXPECT_EQ(healed(R"({"a": 1})"), R"({"a":1})");
    EXPECT_EQ(healed(R"({"a": "x)"), R"({"text":"{\"a\": \"x"})");
    EXPECT_EQ(healed("[1]"), R"({"text":"[1]"})");
    EXPECT_EQ(healed(R"({"id": 12345678901234567890})"), R"({"id":12345678901234567890})");
}

TEST_F(AgentsTest, HalfASurrogatePairBecomesTheReplacementCharacter) {
    const std::pair<const char*, const char*> cases[] = {
        {R"("a\ude00b")",
         "a\xef\xbf\xbd"
         "b"},
        {R"("\ud83d\u0041")",
         "\xef\xbf\xbd"
         "A"},
        {R"("\ud83d\ud83d\ude00")", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {R"("\\ud83d")", "\\ud83d"},
        {R"("\uD83D\uDE00")", "\xf0\x9f\x98\x80"},
    };
    for (const auto& [sent, read] : cases) {
        const auto params = parse_chat_params(
            R"({"messages":[{"role":"user","content":)" + std::string(sent) + "}]}", {});
        ASSERT_TRUE(params.ok()) << sent;
        EXPECT_EQ(params->messages[0]["content"], read);
    }
}

TEST_F(AgentsTest, FieldsOfOtherServersAreDoneOrNamed) {
    const Json free = chatted({{"max_tokens", -1}, {"stop", "e"}});
    EXPECT_EQ(free["choices"][0]["finish_reason"], "stop");
    const Json stops = chatted({{"stop", {"q", "w", "z", "x", "j", "k", "v", "e"}}});
    EXPECT_EQ(stops["choices"][0]["message"]["content"].get<std::string>().find('e'),
              std::string::npos);
    EXPECT_EQ(chatted({{"reasoning_effort", "high"}})["moex"]["dropped"],
              Json::array({"reasoning_effort"}));

    const auto content = [&](const Json& extra) {
        return chatted(extra)["choices"][0]["message"]["content"].get<std::string>();
    };
    const Json pick{{"choice", {"left", "right"}}};
    const std::string picked = content({{"structured_outputs", pick}});
    EXPECT_TRUE(picked == "left" || picked == "right") << picked;
    EXPECT_EQ(content({{"guided_regex", "ab{3}"}}), "abbb");
    EXPECT_EQ(content({{"regex", "^x|y$"}}).size(), 1u);
    EXPECT_EQ(content({{"ebnf", "root ::= \"no\""}}), "no");
    EXPECT_EQ(content({{"guided_json", "{\"const\": [1]}"}}), "[1]");
    EXPECT_TRUE(
        Json::parse(content({{"structured_outputs", {{"json_object", true}}}})).is_object());

    Json text{{"prompt", "Once"}, {"max_tokens", 8}, {"temperature", 0}};
    const std::string whole = asked(text_path, text)["choices"][0]["text"];
    const auto ids = model_.tokenizer->encode(whole, SpecialTokens::as_text);
    text["stop_token_ids"] = {ids.back()};
    const Json ended = asked(text_path, text)["choices"][0];
    EXPECT_EQ(ended["finish_reason"], "stop");
    EXPECT_LT(ended["text"].get<std::string>().size(), whole.size());
}

TEST_F(AgentsTest, ABadEffortIsNamedInTheWordsOfItsDialect) {
    const Json user = {{{"role", "user"}, {"content", "Go"}}};
    const std::string model = model_.package->name();
    struct Row {
        Dialect dialect;
        Handler handler;
        Json body;
        std::string field;  // its path, joined by points
    };
    const Row rows[] = {
        {Dialect::openai, chat_path, {{"messages", user}}, "reasoning_effort"},
        {Dialect::openai, chat_path, {{"messages", user}}, "reasoning.effort"},
        {Dialect::responses, &Api::respond, {{"input", "Go"}}, "reasoning.effort"},
        {Dialect::anthropic,
         &Api::anthropic_message,
         {{"model", model}, {"max_tokens", 2}, {"messages", user}},
         "output_config.effort"},
        {Dialect::ollama, &Api::ollama_chat, {{"model", model}, {"messages", user}}, "think"}};
    for (const Row& row : rows)
        for (const Json& effort : {Json("ultra"), Json(7), Json{{"a", 1}}, Json{"high"}}) {
            dialect_ = row.dialect;
            Json body = row.body;
            const std::size_t point = row.field.find('.');
            if (point == std::string::npos)
                body[row.field] = effort;
            else
                body[row.field.substr(0, point)][row.field.substr(point + 1)] = effort;
            const auto refused = ask(row.handler, body);
            EXPECT_EQ(refused->status(), 400u) << body;
            const std::string& said = refused->response().body;
            EXPECT_NE(said.find("'" + row.field + "'"), std::string::npos) << said;
            EXPECT_NE(said.find("medium"), std::string::npos) << said;
            const std::string found = Json(effort.dump()).dump();
            EXPECT_NE(said.find(found.substr(1, found.size() - 2)), std::string::npos) << said;
        }
    dialect_ = Dialect::openai;
    EXPECT_EQ(ask(chat_path, chat("Go", {{"reasoning", "high"}}))->status(), 400u);
    EXPECT_EQ(chatted({{"reasoning", {{"effort", "low"}, {"exclude", true}}}})["moex"]["dropped"],
              Json({"reasoning.exclude", "reasoning.effort"}));
    dialect_ = Dialect::responses;
    const auto tokens = ask(&Api::respond, {{"input", "Go"}, {"max_output_tokens", "many"}});
    EXPECT_EQ(tokens->json()["error"]["param"], "max_output_tokens");
}

TEST_F(AgentsTest, WhatAnAnswerLacksIsRefusedAndWhatItDoesWithoutIsNamed) {
    for (const Json& asked_for :
         {Json{{"echo", true}}, Json{{"n_probs", 3}}, Json{{"return_tokens", true}},
          Json{{"return_token_ids", true}}, Json{{"return_tokens_as_token_ids", true}},
          Json{{"response_fields", {"content"}}}, Json{{"post_sampling_probs", true}},
          Json{{"stop_regex", "a+"}}, Json{{"include_stop_str_in_output", true}},
          Json{{"no_stop_trim", true}}, Json{{"n_indent", 4}}, Json{{"t_max_predict_ms", 9}},
          Json{{"lora", {{{"id", 0}}}}}, Json{{"truncate_prompt_tokens", 5}}}) {
        const auto refused = ask(chat_path, chat("Go", asked_for));
        EXPECT_EQ(refused->status(), 400u) << asked_for;
        EXPECT_EQ(refused->json()["error"]["param"], asked_for.begin().key());
    }
    const Json neutral{{"mirostat", 0},  {"typical_p", 1.0},       {"top_n_sigma", -1},
                       {"echo", false},  {"n_probs", 0},           {"return_progress", true},
                       {"n_predict", 2}, {"reasoning_budget", -1}, {"timings_per_token", false}};
    const Json answer = asked(chat_path, {{"messages", chat("Go")["messages"]}, {"n_predict", 2}});
    EXPECT_EQ(answer["usage"]["completion_tokens"], 2);
    EXPECT_FALSE(chatted(neutral)["moex"].contains("dropped"));
    for (const Json& advice :
         {Json{{"mirostat", 2}}, Json{{"dry_multiplier", 0.8}}, Json{{"thinking_budget", 9}},
          Json{{"skip_special_tokens", false}}, Json{{"typical_p", 0.5}},
          Json{{"safe_prompt", true}}, Json{{"context_management", {{"edits", Json::array()}}}}})
        EXPECT_EQ(chatted(advice)["moex"]["dropped"], Json::array({advice.begin().key()}));
}

TEST_F(AgentsTest, NoDialectIgnoresWhatConstrainsAnAnswer) {
    const std::string model = model_.package->name();
    const struct {
        Dialect dialect;
        Handler handler;
        Json body;
    } rows[] = {{Dialect::openai, chat_path, chat("Go")},
                {Dialect::anthropic,
                 &Api::anthropic_message,
                 {{"model", model}, {"messages", chat("Go")["messages"]}, {"max_tokens", 2}}},
                {Dialect::responses, &Api::respond, {{"input", "Go"}, {"max_output_tokens", 2}}},
                {Dialect::ollama,
                 &Api::ollama_chat,
                 {{"model", model}, {"messages", chat("Go")["messages"]}, {"stream", false}}}};
    for (const auto& row : rows)
        for (const Json& constraint :
             {Json{{"stop_regex", "a+"}}, Json{{"lora", {{{"id", 0}}}}}, Json{{"n_indent", 4}},
              Json{{"truncate_prompt_tokens", 5}}, Json{{"logits_processors", {"one"}}},
              Json{{"use_beam_search", true}}, Json{{"include_stop_str_in_output", true}}}) {
            dialect_ = row.dialect;
            Json body = row.body;
            body.update(constraint);
            const auto refused = ask(row.handler, body);
            EXPECT_EQ(refused->status(), 400u) << body;
            EXPECT_NE(refused->response().body.find(constraint.begin().key()), std::string::npos)
                << refused->response().body;
        }
}

Json read_json(const std::filesystem::path& file) {
    std::ifstream in(file);
    return Json::parse(in);
}

// All tools of a public MCP server in one request, not strict, as an agent passes them on. The
// rules of the answer are made as for a request; the prompts would be too long for the demo model.
TEST_F(AgentsTest, ToolsOfPublicServersNeverStopARequest) {
    const Json servers = read_json(repository() / "tests/golden/agents/mcp_tools.json");
    EXPECT_GE(servers.size(), 50u);
    const std::size_t vocab_size = model_.package->config().vocab_size;
    const std::vector<std::uint32_t> ends = model_.package->generation_defaults().eos_token_ids;
    MaskMaker masks(Vocabulary(*model_.tokenizer, vocab_size, {ends.begin(), ends.end()}));
    std::size_t num_tools = 0;
    for (const auto& [server, tools] : servers.items()) {
        Json given = Json::array();
        for (const Json& tool : tools) given.push_back({{"type", "function"}, {"function", tool}});
        const auto params = read_chat_params(chat("Go", {{"tools", given}}),
                                             {.vocab_size = vocab_size});
        ASSERT_TRUE(params.ok()) << server << ": " << params.refusal().message;
        EXPECT_EQ(params->calls.mode, ToolChoice::Mode::automatic) << server;
        EXPECT_FALSE(params->notes.contains("left_out")) << server;
        const CallSyntax syntax;
        const auto rules = rules_of_answer({params->form, params->calls, syntax}, {}, masks);
        ASSERT_TRUE(rules.ok()) << server << ": " << rules.refusal().message;
        num_tools += tools.size();
    }
    EXPECT_GE(num_tools, 800u);
}

TEST_F(AgentsTest, EffortMayBeAVariableOfTheTemplate) {
    const Json effort{{"chat_template_kwargs", {{"reasoning_effort", "low"}}}};
    EXPECT_EQ(chatted(effort)["moex"]["dropped"], Json({"chat_template_kwargs.reasoning_effort"}));
    EXPECT_FALSE(chatted({{"reasoning_effort", nullptr}})["moex"].contains("dropped"));
}

TEST_F(AgentsTest, RandomSeedIsMistralsNameOfTheSeed) {
    const auto text = [&](const Json& seed) {
        Json body = chat("Go", {{"temperature", 1}, {"max_tokens", 12}});
        body.update(seed);
        return asked(chat_path, body)["choices"][0]["message"]["content"];
    };
    EXPECT_EQ(text({{"random_seed", 7}}), text({{"seed", 7}}));
    EXPECT_NE(text({{"random_seed", 8}}), text({{"seed", 7}}));
}

// A prompt of 300 tokens and more in steps of at most 64.
TEST_F(AgentsTest, StreamReportsTheProgressOfThePrompt) {
    make({.step_rows_max = 64}, {});
    std::string words;
    for (int i = 0; i < 150; ++i) words += "One garden ";
    const auto progress = [&](Handler handler, const Json& body, std::size_t& first_text) {
        const auto answer = ask(handler, body);
        EXPECT_TRUE(answer->streamed());
        std::vector<Json> reports;
        first_text = 0;
        const std::vector<Json> chunks = answer->chunks();
        for (std::size_t i = 0; i < chunks.size(); ++i) {
            if (!chunks[i].contains("prompt_progress")) {
                const Json& choice = chunks[i]["choices"][0];
                const Json text = choice.contains("text")
                                      ? choice["text"]
                                      : choice["delta"].value("content", Json());
                if (first_text == 0 && text.is_string() && text != "") first_text = i;
                continue;
            }
            EXPECT_EQ(first_text, 0u);
            reports.push_back(chunks[i]["prompt_progress"]);
        }
        return reports;
    };
    std::size_t first_text = 0;
    const Json asks{{"stream", true}, {"return_progress", true}, {"max_tokens", 4}};
    const std::vector<Json> cold = progress(chat_path, chat(words.c_str(), asks), first_text);
    ASSERT_GE(cold.size(), 5u);
    EXPECT_EQ(cold.front()["cache"], 0);
    for (std::size_t i = 0; i < cold.size(); ++i) {
        EXPECT_EQ(cold[i]["total"], cold.back()["processed"]);
        if (i > 0) EXPECT_GT(cold[i]["processed"], cold[i - 1]["processed"]);
        if (i > 0) EXPECT_LE(cold[i]["processed"], 64 + cold[i - 1]["processed"].get<int>());
    }
    const std::vector<Json> warm = progress(chat_path, chat(words.c_str(), asks), first_text);
    ASSERT_GE(warm.size(), 2u);
    EXPECT_GT(warm.front()["cache"], 0);
    EXPECT_EQ(warm.front()["cache"], warm.front()["processed"]);
    EXPECT_EQ(warm.back()["processed"], cold.back()["total"]);

    Json text = asks;
    text["prompt"] = words;
    EXPECT_GE(progress(text_path, text, first_text).size(), 5u);
    text["return_progress"] = false;
    EXPECT_TRUE(progress(text_path, text, first_text).empty());
}

TEST_F(AgentsTest, PiecesOfAStreamShowTheTimesSoFar) {
    const Json asks{{"stream", true}, {"timings_per_token", true}, {"max_tokens", 6}};
    const auto judge = [](const Json& timings, std::uint64_t tokens) {
        EXPECT_EQ(timings["predicted_n"], tokens);
        EXPECT_GT(timings["prompt_n"].get<int>() + timings["cache_n"].get<int>(), 0);
        EXPECT_TRUE(timings["prompt_per_second"].is_number());
        EXPECT_TRUE(timings["predicted_per_second"].is_number());
    };
    std::uint64_t tokens = 0;
    for (const Json& chunk : ask(chat_path, chat("Go", asks))->chunks()) {
        const Json& choice = chunk["choices"][0];
        const Json text = choice["delta"].value("content", Json());
        if (text.is_string() && text != "" && choice["finish_reason"].is_null())
            judge(chunk["timings"], ++tokens);
    }
    EXPECT_GE(tokens, 3u);

    dialect_ = Dialect::responses;
    const auto answer = ask(&Api::respond, {{"input", "Go"},
                                            {"max_output_tokens", 6},
                                            {"stream", true},
                                            {"timings_per_token", true},
                                            {"return_progress", true}});
    tokens = 0;
    bool has_progress = false;
    for (const Json& event : answer->chunks()) {
        if (event["type"] == "response.output_text.delta" && event["delta"] != "")
            judge(event["timings"], ++tokens);
        if (!event.contains("prompt_progress")) continue;
        EXPECT_EQ(event["type"], "response.in_progress");
        EXPECT_EQ(tokens, 0u);
        has_progress = true;
    }
    EXPECT_GE(tokens, 3u);
    EXPECT_TRUE(has_progress);
    EXPECT_EQ(answer->chunks().back()["timings"]["predicted_n"], 6);
}

TEST_F(AgentsTest, ToolsThatMakeThePromptTooLongAreNamedSo) {
    Json tool = function_tool("t", with_member({{"type", "null"}}));
    for (const int words : {3000, 40000}) {
        std::string description;
        for (int i = 0; i < words; ++i) description += "some words ";
        tool["function"]["description"] = description;
        const auto answer = ask(chat_path, chat("Go", {{"tools", {tool}}}));
        EXPECT_EQ(answer->status(), 400u);
        EXPECT_EQ(answer->json()["error"]["code"], "context_length_exceeded");
        EXPECT_EQ(answer->json()["error"]["type"], "exceed_context_size_error");
    }
}

TEST_F(AgentsTest, MessagesOfAnthropicMayHoldSystemWordsAndUnknownBlocks) {
    dialect_ = Dialect::anthropic;
    const std::string name = "mcp__" + std::string(110, 'n');
    const Json image{{"type", "image"}, {"source", {{"type", "base64"}}}};
    asked(&Api::anthropic_message,
          {{"model", model_.package->name()},
           {"max_tokens", 4},
           {"tools", {{{"name", name}, {"input_schema", {{"type", "object"}}}}}},
           {"messages",
            {{{"role", "user"}, {"content", "Go"}},
             {{"role", "system"}, {"content", {{{"type", "text"}, {"text", "Be brief."}}}}},
             {{"role", "assistant"},
              {"content",
               {{{"type", "server_tool_use"}, {"id", "s"}, {"name", "web_search"}},
                {{"type", "tool_use"}, {"id", "c"}, {"name", name}, {"input", ""}}}}},
             {{"role", "user"},
              {"content",
               {{{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", {image}}},
                {{"type", "tool_reference"}, {"tool_name", name}}}}}}}});
}

TEST_F(AgentsTest, SystemWordsReachATemplateThatTakesThemFirstOnly) {
    const auto first_only = ChatTemplate::parse(
        "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}"
        "{{- raise_exception('system comes first') }}{%- endif %}"
        "{{- m.role + ': ' + m.content + '\\n' }}{%- endfor %}");
    ASSERT_TRUE(first_only.ok());
    api_ = std::make_unique<Api>(model_.package, model_.tokenizer, *first_only, *engine_,
                                 ApiOptions{});
    const Json body{{"messages",
                     {{{"role", "system"}, {"content", "One."}},
                      {{"role", "user"}, {"content", "Hi"}},
                      {{"role", "system"}, {"content", "Two."}}}}};
    EXPECT_EQ(asked(&Api::apply_template, body)["prompt"], "system: One.\n\nTwo.\nuser: Hi\n");
}

}  // namespace
}  // namespace moex::test
