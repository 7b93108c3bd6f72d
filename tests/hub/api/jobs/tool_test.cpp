// Tests of tool calls: the call syntax of a chat template, the splitters, and whole answers over
// the API.
#include "tests/hub/api/api_fixture.h"

#include <fstream>
#include <iterator>

#include "hub/api/grammar/grammar_state.h"
#include "hub/api/jobs/channels.h"
#include "hub/api/jobs/tool_calls.h"
#include "tests/support/repository.h"

namespace moex::test {
namespace {

const Json weather_tool{{"type", "function"},
                        {"function",
                         {{"name", "get_weather"},
                          {"description", "The weather of a place."},
                          {"parameters",
                           {{"type", "object"},
                            {"properties",
                             {{"place", {{"type", "string"}, {"maxLength", 12}}},
                              {"days", {{"type", "integer"}, {"minimum", 1}, {"maximum", 7}}}}},
                            {"required", {"place", "days"}},
                            {"additionalProperties", false}}}}}};
const Json clock_tool{{"type", "function"}, {"function", {{"name", "clock"}}}};

std::shared_ptr<const ChatTemplate> template_of(const char* file) {
    std::ifstream in((repository() / "tests/golden/templates/").string() + file);
    const std::string source(std::istreambuf_iterator<char>(in), {});
    return ChatTemplate::parse(source).value();
}
CallSyntax syntax_of(const char* file) {
    return call_syntax(*template_of(file), *DemoModel::get().tokenizer);
}

TEST(ToolCallsTest, TheSyntaxIsFoundInTheTemplate) {
    EXPECT_STREQ(syntax_of("qwen3.jinja").name, "hermes");
    EXPECT_TRUE(syntax_of("qwen3.jinja").is_known);
    EXPECT_STREQ(syntax_of("mistral.jinja").name, "mistral");
    EXPECT_STREQ(syntax_of("llama3.jinja").name, "llama3");
    EXPECT_STREQ(syntax_of("gptoss.jinja").name, "gpt-oss");
    EXPECT_TRUE(syntax_of("gptoss.jinja").is_known);
    EXPECT_TRUE(syntax_of("gptoss.jinja").has_channels);
    EXPECT_STREQ(syntax_of("chatml.jinja").name, "hermes");
    EXPECT_FALSE(syntax_of("chatml.jinja").has_channels);
    EXPECT_FALSE(syntax_of("chatml.jinja").is_known) << "the default";
}

// A template of a model whose calls have XML parameters, as Qwen3-Coder writes them.
constexpr const char* parameter_template =
    "{%- for t in tools or [] %}{{- t | tojson + '\\n' }}{%- endfor %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
    "{%- for c in m.tool_calls or [] %}"
    "{{- ('\\n' if not loop.first else '') + '<tool_call>\\n<function=' + c.function.name + '>\\n' "
    "}}"
    "{%- for k, v in c.function.arguments | items %}"
    "{{- '<parameter=' + k + '>\\n' + (v if v is string else v | tojson) + '\\n</parameter>\\n' }}"
    "{%- endfor %}{{- '</function>\\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

TEST(ToolCallsTest, TheSyntaxIsThatOfARenderedCall) {
    const auto name_of = [](const std::string& source) {
        return std::string(
            call_syntax(*ChatTemplate::parse(source).value(), *DemoModel::get().tokenizer).name);
    };
    const auto calls = [](const std::string& written) {
        return "{%- for m in messages %}{%- for c in m.tool_calls or [] %}" + written +
               "{%- endfor %}{%- endfor %}";
    };
    EXPECT_EQ(name_of(parameter_template), "qwen3-coder");
    EXPECT_EQ(name_of(calls("<tool_call>{{ c.function.name }}\n{% for k, v in "
                            "c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
                            "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>")),
              "glm");
    EXPECT_EQ(name_of(calls("[TOOL_CALLS]{{ c.function.name }}[ARGS]"
                            "{{ c.function.arguments | tojson }}")),
              "mistral-args");
    EXPECT_EQ(name_of(calls("{{ '{\"name\": \"' + c.function.name + '\", \"parameters\": ' }}"
                            "{{ c.function.arguments | tojson }}{{ '}' }}")),
              "llama3");
    // The template describes tools with "parameters", and writes no calls of earlier turns.
    EXPECT_EQ(name_of("{\"name\": N, \"parameters\": P} Answer with <tool_call>"), "hermes");
    EXPECT_EQ(name_of("<tool_call><function=N><parameter=K>"), "qwen3-coder");
}

struct Told {
    std::string content;
    std::vector<std::pair<std::string, std::string>> calls;
    void take(const CalledText& part) {
        content += part.content;
        for (const CallPiece& piece : part.calls) {
            if (!piece.name.empty()) calls.emplace_back(piece.name, "");
            calls.back().second += piece.arguments;
        }
    }
    bool operator==(const Told&) const = default;
};

TEST(ToolCallsTest, CallsAreToldApartWhereverTheTextIsCut) {
    const std::string arguments = R"({"a": "}\"{", "b": [{"c": {}}]})";
    for (const char* file : {"qwen3.jinja", "mistral.jinja", "llama3.jinja"}) {
        const CallSyntax syntax = syntax_of(file);
        std::string text = "Well, <tool " + syntax.opens + (syntax.is_list ? "[" : "") +
                           syntax.before_name + "f" + syntax.before_arguments + arguments +
                           syntax.behind;
        if (!syntax.is_single)
            text += syntax.between + syntax.before_name + "g" + syntax.before_arguments + "{}" +
                    syntax.behind;
        text += syntax.closes;

        Told whole;
        CallSplitter at_once(syntax, false);
        whole.take(at_once.push(text));
        whole.take(at_once.finish());
        EXPECT_EQ(whole.content, "Well, <tool ") << file;
        ASSERT_EQ(whole.calls.size(), syntax.is_single ? 1u : 2u) << file;
        EXPECT_EQ(whole.calls[0], std::pair(std::string("f"), arguments));

        for (std::size_t cut = 0; cut <= text.size(); ++cut) {
            Told parts;
            CallSplitter splitter(syntax, false);
            parts.take(splitter.push(text.substr(0, cut)));
            parts.take(splitter.push(text.substr(cut)));
            parts.take(splitter.finish());
            EXPECT_EQ(parts, whole) << file << " at " << cut;
        }
    }
}

TEST(ToolCallsTest, ParametersBecomeAJsonObjectWhereverTheTextIsCut) {
    const CallSyntax syntax = call_syntax(*ChatTemplate::parse(parameter_template).value(),
                                          *DemoModel::get().tokenizer);
    Tool write{.name = "write", .parameters = OrderedJson::parse(R"({"type": "object",
        "$defs": {"n": {"type": "integer"}}, "properties": {"words": {"type": "string"},
        "count": {"$ref": "#/$defs/n"}, "list": {"type": "array"}}})")};
    const std::string text =
        "I write.<tool_call>\n<function=write>\n<parameter=words>\nA \"quote\",\n\xe6\x97\xa5 <b> "
        "12\n"
        "</parameter>\n<parameter=count>\n12\n</parameter>\n<parameter=list>\n[1, {\"a\": 2}]\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=write>\n</function>\n"
        "</tool_call>";
    const Told wanted{"I write.",
                      {{"write",
                        "{\"words\": \"A \\\"quote\\\",\\n\xe6\x97\xa5 <b> 12\", \"count\": 12, "
                        "\"list\": [1, {\"a\": 2}]}"},
                       {"write", "{}"}}};
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        Told parts;
        CallSplitter splitter(syntax, false, {write});
        parts.take(splitter.push(text.substr(0, cut)));
        parts.take(splitter.push(text.substr(cut)));
        parts.take(splitter.finish());
        EXPECT_EQ(parts, wanted) << cut << ' ' << parts.content;
    }
}

// The mask has to accept what the template itself writes for the same calls.
TEST(ToolCallsTest, TheMaskAcceptsWhatTheTemplateWrites) {
    const OrderedJson parameters = OrderedJson::parse(R"({"type": "object", "properties": {
        "words": {"type": "string"}, "size": {"type": ["integer", "null"]},
        "deep": {"type": "object", "properties": {"a": {"type": "array",
        "items": {"type": "boolean"}}}}}, "required": ["words"]})");
    const OrderedJson all[] = {
        OrderedJson::parse(R"({"words": "plain"})"),
        OrderedJson::parse(R"({"words": "a \"quote\" and\nlines, \u65e5\u672c \ud83d\ude00"})"),
        OrderedJson::parse(R"({"words": "", "size": 12, "deep": {"a": [true, false]}})"),
        OrderedJson::parse(R"({"words": "x", "size": null})"),
    };
    const auto& tokenizer = *DemoModel::get().tokenizer;
    for (const auto& source : {ChatTemplate::parse(parameter_template).value(),
                               template_of("qwen3.jinja"), template_of("llama3.jinja")}) {
        const CallSyntax syntax = call_syntax(*source, tokenizer);
        ToolChoice choice{.mode = ToolChoice::Mode::required,
                          .tools = {{"do", parameters}, {"other", parameters}}};
        std::vector<GrammarNode> nodes;
        WeakenedTools weakened;
        CallSyntax as_text = syntax;
        as_text.markers.clear();
        const NodeId root = add_tool_answer(nodes, choice, as_text, {}, weakened).value();
        const auto grammar = Grammar::build(std::move(nodes), root).value();
        EXPECT_TRUE(weakened.list.empty()) << weakened.list;
        for (const OrderedJson& first : all)
            for (const std::size_t count : {1u, 2u}) {
                if (count == 2 && syntax.is_single) continue;
                OrderedJson calls = OrderedJson::array();
                for (std::size_t i = 0; i < count; ++i)
                    calls.push_back(
                        {{"id", "callone01"},
                         {"type", "function"},
                         {"function", {{"name", i == 0 ? "do" : "other"}, {"arguments", first}}}});
                OrderedJson context;
                context["messages"] = OrderedJson::array();
                context["messages"].push_back({{"role", "user"}, {"content", "q"}});
                context["messages"].push_back(
                    {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}});
                context["add_generation_prompt"] = false;
                const std::string rendered = source->render(context).value();
                const std::size_t begin = rendered.find(syntax.opens);
                ASSERT_NE(begin, std::string::npos) << rendered;
                GrammarState state(grammar);
                std::size_t taken = begin;
                while (taken < rendered.size() &&
                       state.take(static_cast<unsigned char>(rendered[taken])))
                    ++taken;
                EXPECT_TRUE(state.may_end()) << rendered.substr(begin, taken - begin);
                EXPECT_TRUE(rendered.substr(taken).starts_with("<|")) << rendered.substr(taken);
            }
    }
}

class ToolTest : public ApiTest {
  protected:
    static Json with_tools(Json extra = Json::object()) {
        Json body = chat("What is the weather in Paris?");
        body["tools"] = {weather_tool, clock_tool};
        body["max_tokens"] = 220;
        body["temperature"] = 1;
        body["seed"] = 4;
        body.update(extra);
        return body;
    }
    Json choice(const Json& body) {
        const auto answer = ask(chat_path, body);
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        return answer->status() == 200 ? answer->json()["choices"][0] : Json();
    }
    static void expect_call(const Json& call) {
        EXPECT_EQ(call["type"], "function");
        EXPECT_EQ(call["id"].get<std::string>().size(), 9u);
        const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>());
        EXPECT_TRUE(arguments.is_object());
        if (call["function"]["name"] != "get_weather") return;
        EXPECT_GE(arguments["days"], 1);
        EXPECT_LE(arguments["days"], 7);
        EXPECT_EQ(arguments.size(), 2u);
    }
};

TEST_F(ToolTest, ARequiredCallIsMadeAndANamedOneIsThatOne) {
    const Json any = choice(
        with_tools({{"tool_choice", "required"}, {"parallel_tool_calls", false}}));
    ASSERT_EQ(any["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(any["message"]["content"], nullptr);
    expect_call(any["message"]["tool_calls"][0]);

    const Json named = choice(with_tools(
        {{"tool_choice", {{"type", "function"}, {"function", {{"name", "get_weather"}}}}},
         {"parallel_tool_calls", false},
         {"stop", {"\"", "e"}}}));
    ASSERT_EQ(named["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(named["message"]["tool_calls"][0]["function"]["name"], "get_weather");
    EXPECT_EQ(named["finish_reason"], "tool_calls");
    expect_call(named["message"]["tool_calls"][0]);
}

TEST_F(ToolTest, SeveralCallsFitTheirBudget) {
    const Json one = choice(with_tools({{"tool_choice", "required"}, {"max_tokens", 300}}));
    ASSERT_GE(one["message"]["tool_calls"].size(), 1u);
    for (const Json& call : one["message"]["tool_calls"]) expect_call(call);
}

TEST_F(ToolTest, AStreamJoinsToTheWholeAnswer) {
    Json body = with_tools(
        {{"tool_choice", {{"type", "function"}, {"function", {{"name", "get_weather"}}}}},
         {"parallel_tool_calls", false}});
    const Json whole = choice(body)["message"]["tool_calls"][0]["function"];
    body["stream"] = true;
    const auto streamed = ask(chat_path, body);
    std::string name, arguments, reason;
    int begun = 0;
    for (const Json& chunk : streamed->chunks()) {
        const Json& one = chunk["choices"][0];
        if (one["finish_reason"].is_string()) reason = one["finish_reason"].get<std::string>();
        if (!one["delta"].contains("tool_calls")) {
            EXPECT_TRUE(one["delta"].value("content", Json()).is_null() || one["delta"].empty());
            continue;
        }
        const Json& call = one["delta"]["tool_calls"][0];
        EXPECT_EQ(call["index"], 0);
        if (call.contains("id")) {
            ++begun;
            name = call["function"]["name"].get<std::string>();
            EXPECT_EQ(call["type"], "function");
        } else {
            EXPECT_FALSE(call["function"].contains("name"));
        }
        arguments += call["function"]["arguments"].get<std::string>();
    }
    EXPECT_EQ(begun, 1);
    EXPECT_EQ(name, whole["name"]);
    EXPECT_EQ(arguments, whole["arguments"]);
    EXPECT_EQ(reason, "tool_calls");
}

TEST_F(ToolTest, AutoSaysWhatItLikesAndStopsWhereItIsTold) {
    Json body = with_tools({{"temperature", 0}, {"max_tokens", 16}});
    const Json said = choice(body);
    EXPECT_FALSE(said["message"].contains("tool_calls"));
    const std::string text = said["message"]["content"];
    ASSERT_GT(text.size(), 8u);
    EXPECT_EQ(said["finish_reason"], "length");
    body["stop"] = text.substr(4, 3);
    const Json stopped = choice(body);
    EXPECT_EQ(stopped["message"]["content"], text.substr(0, text.find(text.substr(4, 3))));
    EXPECT_EQ(stopped["finish_reason"], "stop");
}

TEST_F(ToolTest, AResultGoesBackThroughTheTemplate) {
    Json body = with_tools({{"max_tokens", 6}, {"tool_choice", "auto"}});
    const auto tokens = [&] {
        const auto answer = ask(chat_path, body);
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        return answer->json()["usage"]["prompt_tokens"].get<int>();
    };
    const int before = tokens();
    body["messages"].push_back(
        {{"role", "assistant"},
         {"content", nullptr},
         {"tool_calls",
          {{{"id", "abcdefghi"},
            {"type", "function"},
            {"function",
             {{"name", "get_weather"}, {"arguments", "{\"place\": \"Paris\", \"days\": 2}"}}}}}}});
    body["messages"].push_back(
        {{"role", "tool"}, {"tool_call_id", "abcdefghi"}, {"content", "It rains in Paris."}});
    EXPECT_GT(tokens(), before + 20);
}

TEST_F(ToolTest, InvalidToolsAreRefusedByName) {
    const std::pair<Json, const char*> cases[] = {
        {{{"tools", 3}}, "tools"},
        {{{"tools", Json::array({{{"type", "function"}}})}}, "tools[0]"},
        {{{"tools", Json::array({{{"type", "retrieval"}}})}, {"tool_choice", "required"}},
         "tool_choice"},
        {{{"tools", Json::array({{{"type", "function"}, {"function", {{"name", "a b"}}}}})}},
         "tools[0].function.name"},
        {{{"tools", Json::array()}, {"tool_choice", "required"}}, "tool_choice"},
        {{{"tool_choice", {{"type", "function"}, {"function", {{"name", "other"}}}}}},
         "tool_choice"},
        {{{"tool_choice", "sometimes"}}, "tool_choice"},
        {{{"tools", Json::array({{{"type", "function"},
                                  {"function",
                                   {{"name", "f"},
                                    {"strict", true},
                                    {"parameters",
                                     {{"type", "object"},
                                      {"properties", {{"a", {{"uniqueItems", true}}}}}}}}}}})}},
         "tools"},
        {{{"tool_choice", "required"}, {"max_tokens", 10}}, "max_tokens"},
    };
    for (const auto& [extra, param] : cases) {
        const auto answer = ask(chat_path, with_tools(extra));
        EXPECT_EQ(answer->status(), 400u) << extra;
        EXPECT_EQ(answer->json()["error"]["param"], param) << answer->response().body;
    }
}

TEST(ToolCallsTest, NoSchemaOfAParameterStopsTheRequest) {
    const CallSyntax syntax = call_syntax(*ChatTemplate::parse(parameter_template).value(),
                                          *DemoModel::get().tokenizer);
    const OrderedJson parameters = OrderedJson::parse(R"({"type": "object", "properties": {
        "never": {"type": "integer", "minimum": 2, "maximum": 1}, "far": {"$ref": "x.json"},
        "short": {"type": "string", "maxLength": 3}}, "required": ["never", "far", "short"]})");
    ToolChoice choice{.mode = ToolChoice::Mode::required, .tools = {{"do", parameters}}};
    std::vector<GrammarNode> nodes;
    WeakenedTools weakened;
    const NodeId root = add_tool_answer(nodes, choice, syntax, {}, weakened).value();
    EXPECT_TRUE(Grammar::build(std::move(nodes), root).ok());
    ASSERT_EQ(weakened.list.size(), 3u) << weakened.list;
    EXPECT_EQ(weakened.list[0]["path"], "properties.never");
    EXPECT_EQ(weakened.list[2]["keyword"], "maxLength");
    EXPECT_TRUE(weakened.judges.contains("do"));
}

TEST_F(ToolTest, CallsWithParametersReachTheClientAsJson) {
    api_ = std::make_unique<Api>(model_.package, model_.tokenizer,
                                 ChatTemplate::parse(parameter_template).value(), *engine_,
                                 ApiOptions{});
    Json body = with_tools({{"tool_choice", "required"}, {"parallel_tool_calls", false}});
    body["tools"][0]["function"]["parameters"]["properties"]["place"].erase("maxLength");
    body["tools"][0]["function"]["parameters"]["properties"]["place"]["enum"] = {"Paris", "Rome"};
    const Json said = choice(body);
    EXPECT_EQ(said["finish_reason"], "tool_calls");
    expect_call(said["message"]["tool_calls"][0]);
}

struct Heard {
    std::string reasoning;
    Told told;
    std::uint32_t num_calls = 0;
    bool operator==(const Heard&) const = default;
};
Heard hear(std::initializer_list<std::string_view> pieces, ChannelBegin begin, bool calls) {
    ChannelSplitter splitter(begin, calls);
    Heard heard;
    const auto take = [&](ChannelText part) {
        heard.reasoning += part.reasoning;
        heard.told.take({std::move(part.content), std::move(part.calls)});
    };
    for (const std::string_view piece : pieces) take(splitter.push(piece));
    take(splitter.finish());
    heard.num_calls = splitter.num_calls();
    return heard;
}

TEST(ToolChannelsTest, MessagesAreToldApartWhereverTheTextIsCut) {
    const std::string thoughts =
        "<|channel|>analysis<|message|>A < b, <|or so.<|end|>"
        "<|start|>assistant";
    const std::string arguments = R"({"a": "<|b", "c": [{}]})";
    const Heard called{"A < b, <|or so.", {"", {{"get_weather", arguments}}}, 1};
    const struct {
        std::string text;
        ChannelBegin begin;
        bool calls;
        Heard heard;
    } cases[] = {
        {thoughts + "<|channel|>final<|message|>Yes <|.",
         ChannelBegin::header,
         true,
         {"A < b, <|or so.", {"Yes <|.", {}}, 0}},
        {thoughts + "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" +
             arguments + "<|call|>",
         ChannelBegin::header, true, called},
        {thoughts + " to=functions.get_weather<|channel|>commentary json<|message|>" + arguments,
         ChannelBegin::header, true, called},
        {"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
         "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
         ChannelBegin::header,
         true,
         {"", {"I look.", {{"f", "{}"}}}, 1}},
        {"and so on.<|end|><|start|>assistant<|channel|>final<|message|>So.",
         ChannelBegin::thoughts,
         false,
         {"and so on.", {"So.", {}}, 0}},
        {" the rest", ChannelBegin::words, true, {"", {" the rest", {}}, 0}},
        {"Plain words to you", ChannelBegin::header, true, {"", {"Plain words to you", {}}, 0}},
        {"<|channel|>anal", ChannelBegin::header, true, {"", {"", {}}, 0}},
        {"<|channel|>commentary to=functions.f json<|message|>{}<|call|>",
         ChannelBegin::header,
         false,
         {"", {"{}", {}}, 0}},
    };
    for (const auto& one : cases) {
        const std::string_view text = one.text;
        for (std::size_t cut = 0; cut <= text.size(); ++cut) {
            const Heard heard = hear({text.substr(0, cut), text.substr(cut)}, one.begin, one.calls);
            EXPECT_EQ(heard, one.heard)
                << text << " at " << cut << ": " << heard.reasoning << " / " << heard.told.content;
        }
    }
}

TEST(ToolChannelsTest, APromptSaysWhereItsAnswerBegins) {
    EXPECT_EQ(channel_begin("<|end|><|start|>assistant"), ChannelBegin::header);
    EXPECT_EQ(channel_begin("<|start|>assistant<|channel|>analysis<|message|>"),
              ChannelBegin::thoughts);
    EXPECT_EQ(channel_begin("<|start|>assistant<|channel|>final<|message|>\n"),
              ChannelBegin::words);
}

// The demo model with a chat template that uses channels. The marks of channels are plain
// characters for the demo's tokenizer. For a second tokenizer they are seven tokens of the
// vocabulary.
class ToolChannelTest : public ToolTest, public testing::WithParamInterface<bool> {
  protected:
    void SetUp() override {
        tokenizer_ = GetParam() ? with_marks() : model_.tokenizer;
        engine_ = std::make_unique<Engine>(*model_.decoder, experts_, EngineOptions{});
        api_ = std::make_unique<Api>(model_.package, tokenizer_, template_of("gptoss.jinja"),
                                     *engine_, ApiOptions{}, ApiObserver{});
    }
    std::shared_ptr<const Tokenizer> with_marks() const {
        Json config = Json::parse(model_.package->tokenizer_file("tokenizer_config.json").value());
        TokenId id = 7000;
        for (const char* mark : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>",
                                 "<|constrain|>", "<|call|>", "<|return|>"})
            config["added_tokens_decoder"][std::to_string(id++)] = {
                {"content", mark},     {"lstrip", false},      {"rstrip", false},
                {"normalized", false}, {"single_word", false}, {"special", true}};
        return Tokenizer::load(model_.package->tokenizer_file("tokenizer.json").value(),
                               config.dump())
            .value();
    }
    static Json named_call(Json extra = Json::object()) {
        Json body = with_tools(
            {{"tool_choice", {{"type", "function"}, {"function", {{"name", "get_weather"}}}}},
             {"max_tokens", 300}});
        body.update(extra);
        return body;
    }
    std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(ToolChannelTest, ARequiredCallIsMadeAndAStreamJoinsToIt) {
    Json body = named_call();
    const Json whole = choice(body);
    ASSERT_EQ(whole["message"]["tool_calls"].size(), 1u) << whole;
    EXPECT_EQ(whole["message"]["content"], nullptr);
    const Json& call = whole["message"]["tool_calls"][0];
    expect_call(call);
    EXPECT_EQ(call["function"]["name"], "get_weather");

    body["stream"] = true;
    std::string reasoning, name, arguments, content;
    for (const Json& chunk : ask(chat_path, body)->chunks()) {
        const Json& delta = chunk["choices"][0]["delta"];
        if (delta.contains("reasoning_content"))
            reasoning += delta["reasoning_content"].get<std::string>();
        if (delta.contains("content") && delta["content"].is_string())
            content += delta["content"].get<std::string>();
        if (!delta.contains("tool_calls")) continue;
        const Json& piece = delta["tool_calls"][0]["function"];
        name += piece.value("name", "");
        arguments += piece["arguments"].get<std::string>();
    }
    EXPECT_EQ(name, "get_weather");
    EXPECT_EQ(arguments, call["function"]["arguments"]);
    EXPECT_EQ(reasoning, whole["message"].value("reasoning_content", ""));
    EXPECT_EQ(content, "");
}

TEST_P(ToolChannelTest, ASchemaHoldsInTheFinalChannelAndNoMarkIsShown) {
    const Json schema{{"type", "object"},
                      {"properties", {{"sea", {{"enum", {"calm", "rough"}}}}}},
                      {"required", {"sea"}},
                      {"additionalProperties", false}};
    for (const int max_tokens : {160, 400}) {
        const Json one = choice(
            chat("How is the sea?",
                 {{"json_schema", schema}, {"temperature", 1}, {"max_tokens", max_tokens}}));
        const std::string content = one["message"]["content"].get<std::string>();
        EXPECT_EQ(Json::parse(content).size(), 1u) << content;
        EXPECT_EQ(one["message"].value("reasoning_content", "").find("<|end|>"), std::string::npos);
    }
    // If the request asks for no form, the model need not write a message header: its whole text is
    // then content.
    const Json free = choice(chat("How is the sea?"));
    EXPECT_FALSE(free["message"]["content"].get<std::string>().empty());
}

TEST_P(ToolChannelTest, AutoIsWordsOrACallAndThoughtsAreApart) {
    const Json one = choice(with_tools({{"max_tokens", 400}}));
    const Json& message = one["message"];
    const std::string shown =
        message.value("reasoning_content", "") +
        (message["content"].is_string() ? message["content"] : Json("")).get<std::string>();
    for (const char* mark : {"<|channel|>", "<|message|>", "<|start|>", "<|end|>"})
        EXPECT_EQ(shown.find(mark), std::string::npos) << one;
    if (message.contains("tool_calls")) expect_call(message["tool_calls"][0]);
}

TEST_P(ToolChannelTest, AResultGoesBackThroughTheTemplate) {
    Json body = named_call();
    const Json first = choice(body)["message"];
    const auto rendered = [&] {
        const auto answer = ask(&Api::apply_template, body);
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        return answer->json()["prompt"].get<std::string>();
    };
    Json turn = first;
    turn["reasoning_content"] = "It asks for the weather.";
    body["messages"].push_back(turn);
    body["messages"].push_back({{"role", "tool"},
                                {"tool_call_id", first["tool_calls"][0]["id"]},
                                {"content", "It rains."}});
    const std::string arguments = first["tool_calls"][0]["function"]["arguments"];
    const std::string wanted =
        "<|start|>assistant<|channel|>analysis<|message|>It asks for the weather.<|end|>"
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>" +
        arguments +
        "<|call|><|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"
        "\"It rains.\"<|end|><|start|>assistant";
    EXPECT_TRUE(rendered().ends_with(wanted)) << rendered();
    body["tool_choice"] = "auto";
    choice(body);

    body["messages"] = Json::array({{{"role", "tool"}, {"content", "It rains."}}});
    EXPECT_EQ(ask(chat_path, body)->json()["error"]["param"], "messages")
        << "a result without a call";
}

TEST_P(ToolChannelTest, AnEffortGoesToTheTemplateAndABudgetBelowTheLeastIsRefused) {
    Json body = chat("Hi", {{"reasoning_effort", "high"}, {"max_tokens", 1}});
    EXPECT_EQ(ask(chat_path, body)->status(), 200u);

    const auto short_one = ask(chat_path, named_call({{"max_tokens", 10}}));
    EXPECT_EQ(short_one->status(), 400u);
    EXPECT_EQ(short_one->json()["error"]["param"], "max_tokens");
}

INSTANTIATE_TEST_SUITE_P(Marks, ToolChannelTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "AsTokens" : "AsCharacters"; });

}  // namespace
}  // namespace moex::test
