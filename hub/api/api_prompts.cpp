// Makes prompts: turns messages and texts into token ids, checks that they fit the context, and
// finds out whether the answer begins inside thoughts.
#include <algorithm>
#include <limits>

#include "hub/api/api_state.h"

namespace moex {

// Refuses a text with too many bytes before the text is tokenised. A text has at least as many
// tokens as its length divided by the length of the longest token.
Checked<void> ApiState::check_bytes(std::uint64_t bytes, const char* source) const {
    if (bytes <= context_bytes_max) return {};
    const std::uint64_t tokens_min = bytes * context_tokens / context_bytes_max;
    return Refusal{
        .status = 400,
        .message = text("prompt is too long: at least ", tokens_min, " tokens > ", context_tokens,
                        " maximum. The prompt has ", bytes,
                        " bytes; this model's maximum context "
                        "length is ",
                        context_tokens, " tokens, the answer included; shorten the ", source, "."),
        .code = "context_length_exceeded",
        .param = source,
        .numbers = {
            {"n_prompt_tokens", tokens_min}, {"n_prompt", tokens_min}, {"n_ctx", context_tokens}}};
}

namespace {

// Returns the text that the generation continues: the content of the last message, or the message's
// thoughts if it has no content.
const std::string& last_words(const OrderedJson& message) {
    const auto& content = message["content"].get_ref<const std::string&>();
    const auto reasoning = message.find("reasoning_content");
    return content.empty() && reasoning != message.end() ? reasoning->get_ref<const std::string&>()
                                                         : content;
}

std::uint64_t text_bytes(const OrderedJson& messages) {
    std::uint64_t bytes = 0;
    for (const OrderedJson& message : messages)
        for (const OrderedJson& field : message)
            bytes += field.is_string() ? field.get_ref<const std::string&>().size()
                                       : field.dump().size();
    return bytes;
}

// Moves the words of all system messages into a first one, for a template that takes no other.
void fold_system_messages(OrderedJson& messages) {
    std::string words;
    OrderedJson others = OrderedJson::array();
    for (OrderedJson& message : messages) {
        if (message["role"] != "system") {
            others.push_back(std::move(message));
            continue;
        }
        const auto& content = message["content"].get_ref<const std::string&>();
        words += (words.empty() || content.empty() ? "" : "\n\n") + content;
    }
    others.insert(others.begin(), OrderedJson{{"role", "system"}, {"content", words}});
    messages = std::move(others);
}

bool has_late_system(const OrderedJson& messages) {
    return std::any_of(messages.begin() + 1, messages.end(),
                       [](const OrderedJson& message) { return message["role"] == "system"; });
}

// Sets the variable of the chat template for the reasoning effort: a level, or a switch that turns
// thoughts off. An empty `effort` sets nothing. Template variables that the request sets itself
// take precedence.
void add_effort(const std::string& effort, const ChatTemplate& chat_template,
                OrderedJson& variables) {
    if (effort.empty()) return;
    if (chat_template.mentions("reasoning_effort")) {
        if (!variables.contains("reasoning_effort")) variables["reasoning_effort"] = effort;
    } else if (effort == "none" && chat_template.mentions("enable_thinking")) {
        if (!variables.contains("enable_thinking")) variables["enable_thinking"] = false;
    }
}

}  // namespace

bool ApiState::finds_late_system() const {
    constexpr const char* words = "late words of the system";
    const OrderedJson messages{{{"role", "system"}, {"content", "first"}},
                               {{"role", "user"}, {"content", "question"}},
                               {{"role", "system"}, {"content", words}}};
    const auto rendered = chat_template->render(
        {{"messages", messages}, {"add_generation_prompt", true}});
    return rendered.ok() && rendered->find(words) != std::string::npos;
}

// Returns true if the chat template has a setting for this effort. "none" also means the switch
// that turns thoughts off, and a model that does not think has nothing to turn off.
bool ApiState::has_effort_setting(const std::string& effort) const {
    return effort.empty() || effort == "none" ||
           (chat_template && chat_template->mentions("reasoning_effort"));
}

// Renders a chat into token ids. The contents of messages cannot name special tokens.
Checked<ApiState::Prompts> ApiState::encode_chat(const CompletionParams& params) const {
    if (!tokenizer || !chat_template)
        return Refusal{400, "The package has no chat template; use /v1/completions.",
                       "no_chat_template", params.source};

    OrderedJson variables = params.template_variables;
    add_effort(params.reasoning_effort, *chat_template, variables);
    variables["add_generation_prompt"] = params.add_generation_prompt;
    OrderedJson messages = params.messages;
    if (!takes_late_system && has_late_system(messages)) fold_system_messages(messages);
    if (call_syntax.has_channels)  // templates of models with channels name the field "thinking"
        for (OrderedJson& message : messages)
            if (message.contains("reasoning_content"))
                message["thinking"] = message["reasoning_content"];
    if (chat_template->mentions("tools"))
        variables["tools"] = params.tools;
    else
        write_out_tools(messages, params.tools, call_syntax);

    // Bound the length of the rendered prompt instead of the messages, since a template may drop
    // messages.
    TemplateLimits limits;
    limits.output_bytes_max = std::min(limits.output_bytes_max, context_bytes_max);
    auto ids = params.continues
                   ? chat_template->render_open_ids(messages, variables,
                                                    last_words(messages.back()), *tokenizer, limits)
                   : chat_template->render_ids(messages, variables, *tokenizer, limits);
    if (ids.ok()) return Prompts{*std::move(ids)};

    if (ids.error().code == ErrorCode::overloaded)
        MOEX_ADMIT(check_bytes(text_bytes(params.messages) + params.tools.dump().size(),
                               params.source.c_str()));
    if (ids.error().code == ErrorCode::not_found)
        return Refusal{400,
                       text("The last message cannot be continued: ", ids.error().message, "."),
                       "chat_template", params.source};
    return Refusal{400,
                   text("The model's chat template refuses these messages: ", ids.error().message),
                   "chat_template", params.source};
}

// A prompt that may be cut leaves the answer its `max_tokens`, at most half of the context. Neither
// prompt nor suffix names a special token.
Checked<ApiState::Prompts> ApiState::encode_middle(CompletionParams& params) const {
    MiddleWish& wish = *params.middle;
    if (!tokenizer || !fill_middle)
        return Refusal{400,
                       text("'", wish.param,
                            "' is not supported by this server: the vocabulary of "
                            "the model has no tokens for filling in the middle."),
                       "unsupported_parameter", wish.param};
    const std::uint32_t answer_tokens = params.max_tokens.value_or(context_tokens / 4);
    const std::size_t tokens_max = wish.may_cut ? context_tokens - std::clamp(answer_tokens, 1u,
                                                                              context_tokens / 2)
                                                : std::numeric_limits<std::size_t>::max();
    Prompts prompts;
    for (const TextInput& prompt : params.prompts) {
        MiddleParts parts{.files = wish.files};
        if (const auto* const words = std::get_if<std::string>(&prompt)) {
            if (!wish.may_cut)
                MOEX_ADMIT(check_bytes(words->size() + wish.suffix.size(), params.source.c_str()));
            parts.prefix = tokenizer->encode(*words + wish.prompt_end, SpecialTokens::as_text);
        } else {
            parts.prefix = std::get<std::vector<TokenId>>(prompt);
        }
        parts.suffix = encode_inside(*tokenizer, wish.suffix);
        MiddlePrompt made = make_middle_prompt(*fill_middle, *tokenizer, std::move(parts),
                                               tokens_max);
        wish.was_cut = wish.was_cut || made.was_cut;
        prompts.push_back(std::move(made.ids));
    }
    return prompts;
}

// Tokenises the prompts of a completion. The texts of these prompts may name special tokens.
Checked<ApiState::Prompts> ApiState::encode_texts(CompletionParams& params,
                                                  std::vector<std::string>& echoes) const {
    if (params.middle) return encode_middle(params);
    Prompts prompts;
    for (auto& prompt : params.prompts) {
        const auto* const words = std::get_if<std::string>(&prompt);
        std::string echo = words ? *words : std::string();
        MOEX_OR_REFUSE(ids, encode_input(std::move(prompt), "prompt"));
        if (!words && tokenizer && params.echo) echo = tokenizer->decode(ids, true);
        if (params.echo && tokenizer) echoes.push_back(std::move(echo));
        prompts.push_back(std::move(ids));
    }

    if (params.echo && echoes.size() != prompts.size())
        return Refusal{400, "'echo' needs a tokenizer.", "no_tokenizer", "echo"};
    return prompts;
}

// Tokenises one input text. The text may name special tokens, as the prompt of a completion may.
Checked<std::vector<TokenId>> ApiState::encode_input(TextInput input, const char* source,
                                                     bool truncates) const {
    if (auto* ids = std::get_if<std::vector<TokenId>>(&input)) return std::move(*ids);
    if (!tokenizer)
        return Refusal{400, "The package has no tokenizer; send token ids.", "no_tokenizer",
                       source};
    const auto& words = std::get<std::string>(input);
    if (!truncates) MOEX_ADMIT(check_bytes(words.size(), source));
    return tokenizer->encode_prompt(words);
}

namespace {

// Returns the text of a prompt's last tokens, including special tokens.
std::string tail_of(const std::vector<TokenId>& prompt, const Tokenizer& tokenizer) {
    // Number of tokens; enough for a tag and the line ends after the tag.
    constexpr std::size_t tail_tokens = 16;
    const std::size_t tail = std::min(prompt.size(), tail_tokens);
    return tokenizer.decode(std::span(prompt).last(tail), false);
}

}  // namespace

// Returns true if the first token of the answer is a thought: inside a block that the template
// opened, or a block that the continued message did not close.
bool ApiState::begins_in_reasoning(const CompletionParams& params,
                                   const std::vector<TokenId>& prompt) const {
    if (params.continues) {
        const OrderedJson& last = params.messages.back();
        const std::string& content = last["content"].get_ref<const std::string&>();
        const std::size_t open = content.rfind(think_open);
        return content.empty() ||
               (open != std::string::npos && content.find(think_close, open) == std::string::npos);
    }
    return ends_in_open_block(tail_of(prompt, *tokenizer));
}

ChannelBegin ApiState::begins_in_channel(const CompletionParams& params,
                                         const std::vector<TokenId>& prompt) const {
    if (!params.continues) return channel_begin(tail_of(prompt, *tokenizer));
    const bool has_words = !params.messages.back()["content"].get_ref<const std::string&>().empty();
    return has_words ? ChannelBegin::words : ChannelBegin::thoughts;
}

Checked<void> ApiState::check_fits(const std::vector<TokenId>& prompt, const char* source) const {
    if (prompt.empty()) return Refusal{400, "The prompt is empty.", "invalid_value", source};
    if (prompt.size() < context_tokens) return {};
    return Refusal{
        .status = 400,
        .message = text("prompt is too long: ", prompt.size(), " tokens > ", context_tokens,
                        " maximum. This model's maximum context length "
                        "is ",
                        context_tokens,
                        " tokens, the answer included; shorten "
                        "the ",
                        source, "."),
        .code = "context_length_exceeded",
        .param = source,
        .numbers = {{"n_prompt_tokens", prompt.size()},
                    {"n_prompt", prompt.size()},
                    {"n_ctx", context_tokens}}};
}

// Returns the largest total number of tokens that the prompts and all their answers may have.
std::uint64_t ApiState::tokens_max(const Prompts& prompts, std::uint32_t n,
                                   std::uint32_t max_tokens) const {
    std::uint64_t tokens = 0;
    for (const auto& prompt : prompts) {
        const std::uint64_t room = context_tokens - prompt.size();
        tokens += prompt.size() + n * std::min<std::uint64_t>(max_tokens, room);
    }
    return tokens;
}

}  // namespace moex
