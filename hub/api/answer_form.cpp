#include "hub/api/answer_form.h"

#include "hub/api/grammar/json_schema.h"
#include "hub/api/reasoning.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Kind = GrammarNode::Kind;
using Nodes = std::vector<GrammarNode>;

NodeId add(Nodes& nodes, GrammarNode node) {
    nodes.push_back(std::move(node));
    return static_cast<NodeId>(nodes.size() - 1);
}

NodeId add_marker(Nodes& nodes, std::optional<TokenId> token, std::string_view words) {
    if (token) return add(nodes, {.kind = Kind::token, .token = *token});
    GrammarNode node{.kind = Kind::words};
    node.words.add(std::string(words), 0, 0);
    return add(nodes, std::move(node));
}

// Thoughts up to their end tag, and the line ends behind it. The budget forces the tag.
NodeId add_thoughts(Nodes& nodes, const ReasoningTags& tags) {
    GrammarNode free{.kind = Kind::text, .any_token = true};
    free.texts = tags.close ? text_without("") : text_until(think_close);
    std::vector<NodeId> parts{add(nodes, std::move(free))};
    if (tags.close) parts.push_back(add_marker(nodes, tags.close, think_close));
    const NodeId line_end = add_marker(nodes, std::nullopt, "\n");
    parts.push_back(add(nodes, {.kind = Kind::repeat, .max = 2, .children = {line_end}}));
    return add(nodes, {.kind = Kind::sequence, .children = std::move(parts)});
}

NodeId add_reasoning(Nodes& nodes, NodeId answer, const ReasoningTags& tags) {
    if (!tags.begun && !tags.possible) return answer;
    const NodeId thoughts = add_thoughts(nodes, tags);
    if (tags.begun) return add(nodes, {.kind = Kind::sequence, .children = {thoughts, answer}});
    const NodeId open = add_marker(nodes, tags.open, think_open);
    const NodeId block = add(nodes, {.kind = Kind::sequence, .children = {open, thoughts, answer}});
    return add(nodes, {.kind = Kind::choice, .children = {answer, block}});
}

Result<std::shared_ptr<const Grammar>> build(const AnswerForm& form, const ReasoningTags& tags) {
    static const OrderedJson any_object{{"type", "object"}};
    Nodes nodes;
    const bool is_schema = form.kind == AnswerForm::Kind::json_schema;
    MOEX_ASSIGN(answer, add_schema(nodes, is_schema ? form.schema : any_object, "schema"));
    const NodeId root = add_reasoning(nodes, answer, tags);
    return Grammar::build(std::move(nodes), root);
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

Checked<std::shared_ptr<const Grammar>> grammar_of_form(const AnswerForm& form,
                                                        const ReasoningTags& tags,
                                                        MaskMaker& masks) {
    if (masks.vocabulary().end_ids().empty() || !masks.vocabulary().has_all_bytes())
        return Refusal{400,
                       text("'", form.param, "' is not supported with this model: its vocabulary ",
                            "lacks an end of text, or bytes."),
                       "unsupported_parameter", form.param};

    const std::string key = text(static_cast<int>(form.kind), tags.possible, tags.begun, ' ',
                                 form.schema.dump(), ' ', form.grammar);
    auto grammar = masks.grammar(key, [&] { return build(form, tags); });
    if (grammar.ok()) return *std::move(grammar);
    const bool unsupported = grammar.error().code == ErrorCode::unsupported;
    return Refusal{400, text("Invalid '", form.param, "': ", grammar.error().message, "."),
                   unsupported ? "unsupported_parameter" : "invalid_value", form.param};
}

Refusal too_short(const AnswerForm& form, std::uint64_t least_tokens, std::uint64_t room_tokens) {
    return {.status = 400,
            .message = text("'", form.param, "' asks for an answer of at least ", least_tokens,
                            " tokens, counted as one a byte; 'max_tokens' and the context leave ",
                            room_tokens, "."),
            .code = "max_tokens_too_small",
            .param = "max_tokens",
            .numbers = {{"n_min_tokens", least_tokens}, {"n_max_tokens", room_tokens}}};
}

}  // namespace moex
