// Tests of call syntaxes that are derived from a template, and of the tokens in their fixed texts.
#include "tests/hub/api/api_fixture.h"

#include "hub/api/grammar/grammar_state.h"
#include "hub/api/jobs/tool_calls.h"

namespace moex::test {
namespace {

// Templates of a syntax that the hub does not know by name: it is derived from what they write.
const std::pair<const char*, const char*> derived_templates[] = {
    // a list of calls with a tag around each
    {"<calls>{% for c in m.tool_calls %}<call name=\"{{ c.function.name }}\">"
     "{{ c.function.arguments | tojson }}</call>{% endfor %}</calls>",
     "<calls><call name=\"a\">{\"k\": \"v\"}</call><call name=\"b\">{}</call></calls>"},
    // DeepSeek's marks
    {"<|calls|>{% for c in m.tool_calls %}<|call|>{{ c.function.name }}<|sep|>"
     "{{ c.function.arguments | tojson }}<|end|>{% endfor %}<|over|>",
     "<|calls|><|call|>a<|sep|>{\"k\": \"v\"}<|end|><|call|>b<|sep|>{}<|end|><|over|>"},
    // an array behind a word
    {"CALLS: [{% for c in m.tool_calls %}{{ ', ' if not loop.first }}{\"tool\": \"{{ "
     "c.function.name }}\","
     " \"input\": {{ c.function.arguments | tojson }}}{% endfor %}]",
     "CALLS: [{\"tool\": \"a\", \"input\": {\"k\": \"v\"}}, {\"tool\": \"b\", \"input\": {}}]"},
    // parameters with the name in an attribute
    {"<use>\n{% for c in m.tool_calls %}<invoke name=\"{{ c.function.name }}\">\n"
     "{% for k, v in c.function.arguments | items %}<parameter name=\"{{ k }}\">"
     "{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n{% endfor "
     "%}</use>",
     "<use>\n<invoke name=\"a\">\n<parameter name=\"k\">v</parameter>\n</invoke>\n"
     "<invoke name=\"b\">\n</invoke>\n</use>"},
    // GLM's parameters without line ends
    {"{% for c in m.tool_calls %}<call>{{ c.function.name }}{% for k, v in c.function.arguments | "
     "items %}<key>{{ k }}</key><value>{{ v if v is string else v | tojson }}</value>{% endfor %}"
     "</call>{% endfor %}",
     "<call>a<key>k</key><value>v</value></call><call>b</call>"},
};

std::shared_ptr<const ChatTemplate> with_calls(const std::string& written) {
    return ChatTemplate::parse(
               "{%- for m in messages %}<turn>{{ m.role }}\n"
               "{%- if m.tool_calls %}" +
               written +
               "{%- else %}{{ m.content }}{%- endif %}<end>\n{%- endfor %}"
               "{%- if add_generation_prompt %}<turn>assistant\n{%- endif %}")
        .value();
}

TEST(ToolCallsTest, AnUnknownSyntaxIsDerivedFromRenderedCalls) {
    for (const auto& [source, text] : derived_templates) {
        const CallSyntax syntax = call_syntax(*with_calls(source), *DemoModel::get().tokenizer);
        ASSERT_STREQ(syntax.name, "template") << source;
        EXPECT_TRUE(syntax.is_known);

        // The mask accepts what the template writes, and the reader takes it apart.
        const OrderedJson parameters = OrderedJson::parse(
            R"({"type": "object", "properties": {"k": {"type": "string"}}})");
        ToolChoice choice{.mode = ToolChoice::Mode::required,
                          .tools = {{"a", parameters}, {"b", parameters}}};
        std::vector<GrammarNode> nodes;
        WeakenedTools weakened;
        const NodeId root = add_tool_answer(nodes, choice, syntax, {}, weakened).value();
        GrammarState state(Grammar::build(std::move(nodes), root).value());
        EXPECT_TRUE(state.take(text)) << text;
        EXPECT_TRUE(state.may_end()) << text;

        CallSplitter splitter(syntax, true, choice.tools);
        std::string called;
        for (const CallPiece& piece : splitter.push(text).calls)
            called += piece.name + piece.arguments;
        EXPECT_EQ(called, "a{\"k\": \"v\"}b{}") << text;
    }
}

TEST(ToolCallsTest, ASyntaxThatCannotBeWrittenAgainIsNotDerived) {
    for (const char* source : {
             "",
             "{% for c in m.tool_calls %}[{{ c.id }}]{{ c.function.arguments | tojson }}{% endfor "
             "%}",
             "{% for c in m.tool_calls %}<c>{{ c.function.name }}({% for k, v in "
             "c.function.arguments | items %}{{ k }}={{ v | tojson }},{% endfor %})</c>{% endfor "
             "%}",
             "{% for c in m.tool_calls %}<c>{{ c.function.name }} "
             "{{ c.function.arguments | tojson | upper }}</c>{% endfor %}",
         }) {
        const CallSyntax syntax = call_syntax(*with_calls(source), *DemoModel::get().tokenizer);
        EXPECT_STREQ(syntax.name, "hermes") << source;
        EXPECT_FALSE(syntax.is_known);
    }
}

// A marker that is a token of the vocabulary is written as this token, not letter by letter.
TEST(ToolCallsTest, MarkersOfTheVocabularyAreWrittenAsTokens) {
    CallSyntax syntax{.name = "marked",
                      .opens = "<|im_start|>",
                      .before_arguments = ":",
                      .behind = "<|im_end|>",
                      .between = "<|im_start|>"};
    find_markers(syntax, *DemoModel::get().tokenizer);
    ASSERT_EQ(syntax.markers.size(), 2u);
    ToolChoice choice{.mode = ToolChoice::Mode::required,
                      .tools = {{"f", OrderedJson::parse(R"({"type": "object"})")}}};
    std::vector<GrammarNode> nodes;
    WeakenedTools weakened;
    const NodeId root = add_tool_answer(nodes, choice, syntax, {}, weakened).value();
    const auto grammar = Grammar::build(std::move(nodes), root).value();
    GrammarState letters(grammar), tokens(grammar);
    EXPECT_FALSE(letters.take("<|im_start|>"));
    const auto& tokenizer = *DemoModel::get().tokenizer;
    EXPECT_TRUE(tokens.take_token(*tokenizer.token_id("<|im_start|>")));
    EXPECT_TRUE(tokens.take("f:{}"));
    EXPECT_FALSE(tokens.may_end());
    EXPECT_TRUE(tokens.take_token(*tokenizer.token_id("<|im_end|>")));
    EXPECT_TRUE(tokens.may_end());
}

}  // namespace
}  // namespace moex::test
