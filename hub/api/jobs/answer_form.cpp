#include "hub/api/jobs/answer_form.h"

#include <algorithm>

#include "hub/api/grammar/gbnf.h"
#include "hub/api/grammar/json_schema.h"
#include "hub/api/jobs/grammar_nodes.h"
#include "hub/api/jobs/reasoning.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Kind = GrammarNode::Kind;
using Nodes = std::vector<GrammarNode>;

NodeId add_marker(Nodes& nodes, std::optional<TokenId> token, std::string_view words) {
    if (token) return add_node(nodes, {.kind = Kind::token, .token = *token});
    return add_words(nodes, std::string(words));
}

// Adds nodes for the model's thoughts up to their end tag, and for the line ends after the tag.
// When the token budget runs out, only the end tag is allowed.
NodeId add_thoughts(Nodes& nodes, const ReasoningTags& tags) {
    GrammarNode free{.kind = Kind::text, .any_token = true};
    free.texts = tags.close ? text_without("") : text_until(think_close);
    std::vector<NodeId> parts{add_node(nodes, std::move(free))};
    if (tags.close) parts.push_back(add_marker(nodes, tags.close, think_close));
    const NodeId line_end = add_marker(nodes, std::nullopt, "\n");
    parts.push_back(add_node(nodes, {.kind = Kind::repeat, .max = 2, .children = {line_end}}));
    return add_node(nodes, {.kind = Kind::sequence, .children = std::move(parts)});
}

NodeId add_reasoning(Nodes& nodes, NodeId answer, const ReasoningTags& tags) {
    if (!tags.begun && !tags.possible) return answer;
    const NodeId thoughts = add_thoughts(nodes, tags);
    if (tags.begun)
        return add_node(nodes, {.kind = Kind::sequence, .children = {thoughts, answer}});
    const NodeId open = add_marker(nodes, tags.open, think_open);
    const NodeId block = add_node(nodes,
                                  {.kind = Kind::sequence, .children = {open, thoughts, answer}});
    return add_node(nodes, {.kind = Kind::choice, .children = {answer, block}});
}

// Adds a node for one of the texts that a choice lists.
NodeId add_choice(Nodes& nodes, const OrderedJson& texts) {
    GrammarNode node{.kind = Kind::words};
    for (const OrderedJson& one : texts) node.words.add(one.get<std::string>(), 0, 0);
    return add_node(nodes, std::move(node));
}

Result<NodeId> add_regex(Nodes& nodes, const std::string& pattern) {
    MOEX_ASSIGN(expression, parse_pattern(pattern));
    MOEX_ASSIGN(texts, automaton_of(expression));
    return add_node(nodes, {.kind = Kind::text, .texts = texts});
}

Result<NodeId> add_form(Nodes& nodes, const AnswerForm& form, const Vocabulary& vocabulary) {
    if (form.kind == AnswerForm::Kind::choice) return add_choice(nodes, form.schema);
    if (form.kind == AnswerForm::Kind::regex) return add_regex(nodes, form.grammar);
    if (form.kind == AnswerForm::Kind::grammar) {
        const auto find_token = [&](std::string_view words) -> std::optional<TokenId> {
            for (const auto ids : {vocabulary.special(), vocabulary.end_ids()})
                for (const TokenId id : ids)
                    if (vocabulary.bytes(id) == words) return id;
            return std::nullopt;
        };
        return add_gbnf(nodes, form.grammar, find_token, vocabulary.size());
    }
    static const OrderedJson any_object{{"type", "object"}};
    const bool is_schema = form.kind == AnswerForm::Kind::json_schema;
    return add_schema(nodes, is_schema ? form.schema : any_object, "schema",
                      {.closes_objects = !form.opens_objects});
}

Result<std::shared_ptr<const AnswerRules>> build(const AnswerWish& wish, const ReasoningTags& tags,
                                                 const Vocabulary& vocabulary,
                                                 WeakenedTools weakened) {
    Nodes nodes;
    std::optional<NodeId> said;
    if (wish.form.kind != AnswerForm::Kind::free) {
        MOEX_ASSIGN(form, add_form(nodes, wish.form, vocabulary));
        said = form;
    }
    NodeId root = 0;
    if (wish.channels) {
        MOEX_ASSIGN(answer, add_channel_answer(nodes, wish.calls, *wish.channels, said, vocabulary,
                                               weakened));
        root = answer;
    } else {
        const bool calls = wish.calls.mode != ToolChoice::Mode::none;
        MOEX_ASSIGN(answer, calls ? add_tool_answer(nodes, wish.calls, wish.syntax, said, weakened)
                                  : Result<NodeId>(*said));
        root = add_reasoning(nodes, answer, tags);
    }
    MOEX_ASSIGN(grammar, Grammar::build(std::move(nodes), root));
    return std::make_shared<const AnswerRules>(AnswerRules{grammar, std::move(weakened)});
}

// Builds the rules of an answer. If all tools together exceed a limit of grammars, the arguments of
// tools that are not strict are any objects.
Result<std::shared_ptr<const AnswerRules>> build(const AnswerWish& wish, const ReasoningTags& tags,
                                                 const Vocabulary& vocabulary) {
    const bool closes = !wish.calls.opens_objects;
    auto rules = build(wish, tags, vocabulary, WeakenedTools{.closes_objects = closes});
    if (rules.ok() || rules.error().code != ErrorCode::unsupported) return rules;
    const bool may_weaken = wish.calls.mode != ToolChoice::Mode::none &&
                            std::any_of(wish.calls.tools.begin(), wish.calls.tools.end(),
                                        [](const Tool& tool) { return !tool.is_strict; });
    if (!may_weaken) return rules;
    auto weaker = build(wish, tags, vocabulary, {.takes_any = true, .closes_objects = closes});
    return weaker.ok() ? weaker : rules;
}

}  // namespace

void ReasoningTags::find(const Tokenizer& tokenizer) {
    const auto token = [&](std::string_view words) {
        const auto id = tokenizer.token_id(words);
        return id && tokenizer.is_added(*id) ? id : std::nullopt;
    };
    open = token(think_open);
    close = token(think_close);
}

const std::string& AnswerWish::param() const {
    static const std::string tools = "tools";
    return calls.mode == ToolChoice::Mode::none ? form.param : tools;
}

Checked<std::shared_ptr<const AnswerRules>> rules_of_answer(const AnswerWish& wish,
                                                            const ReasoningTags& tags,
                                                            MaskMaker& masks) {
    const std::string& param = wish.param();
    if (masks.vocabulary().end_ids().empty() || !masks.vocabulary().has_all_bytes())
        return Refusal{400,
                       text("'", param, "' is not supported with this model: its vocabulary ",
                            "lacks an end of text, or bytes."),
                       "unsupported_parameter", param};

    std::string key = text(static_cast<int>(wish.form.kind), tags.possible, tags.begun,
                           wish.form.opens_objects, wish.calls.opens_objects,
                           static_cast<int>(wish.calls.mode), wish.calls.parallel,
                           wish.channels ? static_cast<int>(*wish.channels) : -1, ' ',
                           wish.calls.name, ' ', wish.form.schema.dump(), ' ', wish.form.grammar);
    for (const Tool& tool : wish.calls.tools)
        key += text(' ', tool.name, ' ', tool.is_strict, tool.parameters.dump());
    auto rules = masks.rules(key, [&] { return build(wish, tags, masks.vocabulary()); });
    if (rules.ok()) return *std::move(rules);
    const bool unsupported = rules.error().code == ErrorCode::unsupported;
    return Refusal{400, text("Invalid '", param, "': ", rules.error().message, "."),
                   unsupported ? "unsupported_parameter" : "invalid_value", param};
}

Refusal too_short(const AnswerWish& wish, const std::string& max_tokens_param,
                  std::uint64_t least_tokens, std::uint64_t room_tokens) {
    return {.status = 400,
            .message = text("'", wish.param(), "' asks for an answer of at least ", least_tokens,
                            " tokens, counted as one a byte; '", max_tokens_param,
                            "' and the context leave ", room_tokens, "."),
            .code = "max_tokens_too_small",
            .param = max_tokens_param,
            .numbers = {{"n_min_tokens", least_tokens}, {"n_max_tokens", room_tokens}}};
}

}  // namespace moex
