#include "hub/api/dialects/ollama.h"

#include <cstdio>
#include <ctime>

#include "hub/api/body_fields.h"
#include "hub/api/openai/openai_response.h"
#include "hub/api/request_parts.h"

namespace moex {
namespace {

std::string without_tag(std::string name) {
    constexpr std::string_view tag = ":latest";
    if (name.ends_with(tag)) name.resize(name.size() - tag.size());
    return name;
}

void copy(const BodyFields& from, const char* name, OrderedJson& to, const char* as) {
    if (const OrderedJson* value = from.find(name)) to[as] = *value;
}

// Reads `options` and the other fields that /api/chat and /api/generate share.
OrderedJson read_common(BodyFields& fields, const OrderedJson& body) {
    OrderedJson out{{"stream", true}};
    copy(fields, "stream", out, "stream");
    if (fields.find("prompt_logprobs"))
        fields.unsupported("prompt_logprobs",
                           "Ollama's answers have no form for it; /v1/chat/completions has.");
    if (const auto model = read_ollama_model(body); model.ok())
        out["model"] = *model;
    else
        fields.refuse(model.refusal());

    if (const OrderedJson* options = fields.find("options")) {
        if (!options->is_object()) fields.wrong("options", "an object", *options);
        const BodyFields given(*options);
        for (const char* name : {"temperature", "top_p", "top_k", "min_p", "seed", "stop",
                                 "presence_penalty", "frequency_penalty", "repeat_penalty"})
            copy(given, name, out, name);
        for (const auto& [name, neutral] : advice_fields) copy(given, name, out, name);
        // A num_predict of zero or less allows tokens up to the end of the context.
        const OrderedJson* tokens = given.find("num_predict");
        if (tokens && !(tokens->is_number() && tokens->get<double>() <= 0))
            out["max_tokens"] = *tokens;
    }

    for (const char* name : constraint_fields) copy(fields, name, out, name);
    if (const OrderedJson* format = fields.find("format"); format && *format != "") {
        if (*format == "json")
            out["response_format"] = {{"type", "json_object"}};
        else if (format->is_object())
            out["json_schema"] = *format;
        else
            fields.wrong("format", "\"json\" or a schema", *format);
    }

    if (const OrderedJson* think = fields.find("think")) {
        if (!think->is_boolean() && !think->is_string())
            fields.wrong("think", "true, false, \"low\", \"medium\", \"high\" or \"max\"", *think);
        out["chat_template_kwargs"] = {{"enable_thinking", *think != false}};
        if (think->is_string()) out["reasoning_effort"] = *think;
    }
    return out;
}

void refuse_images(BodyFields& fields, const OrderedJson& object, const std::string& where) {
    const OrderedJson& images = member(object, "images");
    if (!images.is_null() && images != OrderedJson::array())
        fields.unsupported(where, "text only.");
}

void read_messages(BodyFields& fields, const OrderedJson& messages, OrderedJson& out) {
    if (!messages.is_array()) return fields.wrong("messages", "an array of messages", messages);
    out = OrderedJson::array();
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const OrderedJson& message = messages[i];
        const std::string where = text("messages[", i, "]");
        if (!message.is_object())
            return fields.wrong(where, "an object with role and content", message);
        refuse_images(fields, message, where + ".images");

        OrderedJson one = message;
        if (member(message, "content").is_null()) one["content"] = "";
        if (message.contains("thinking")) one["reasoning_content"] = message["thinking"];
        if (message.contains("tool_name")) one["name"] = message["tool_name"];
        out.push_back(std::move(one));
    }
}

Checked<CompletionParams> named_as_asked(Checked<CompletionParams> params, const char* source) {
    constexpr std::pair<std::string_view, std::string_view> names[] = {
        {"reasoning_effort", "think"}, {"max_tokens", "num_predict"}};
    if (!params.ok()) return in_clients_words(params.refusal(), names);
    params->source = source;
    params->max_tokens_param = "num_predict";
    params->effort_param = "think";
    const bool is_own_form = params->form.param == "json_schema" ||
                             params->form.param == "response_format";
    if (is_own_form) params->form.param = "format";
    return params;
}

Checked<CompletionParams> read_chat(const OrderedJson& body, const ParamLimits& limits) {
    BodyFields fields(body);
    OrderedJson chat = read_common(fields, body);
    read_messages(fields, member(body, "messages"), chat["messages"]);
    for (const char* name :
         {"tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs"})
        copy(fields, name, chat, name);
    if (fields.problem()) return *fields.problem();
    return named_as_asked(read_chat_params(chat, limits), "messages");
}

void refuse_unsupported(BodyFields& fields, const OrderedJson& body) {
    refuse_images(fields, body, "images");
    const auto refuse_given = [&](const char* name, const char* why) {
        const OrderedJson* value = fields.find(name);
        if (value && *value != "" && !(value->is_array() && value->empty()))
            fields.unsupported(name, why);
    };
    refuse_given("template", "the checkpoint's own is used; `raw` goes without.");
    refuse_given("context", "use /api/chat with earlier messages.");
}

Checked<CompletionParams> read_generate(const OrderedJson& body, const ParamLimits& limits) {
    BodyFields fields(body);
    OrderedJson out = read_common(fields, body);
    refuse_unsupported(fields, body);
    std::string prompt, system;
    bool is_raw = false, has_logprobs = false;
    fields.string("prompt", prompt);
    fields.string("system", system);
    fields.boolean("raw", is_raw);
    fields.boolean("logprobs", has_logprobs);
    if (fields.problem()) return *fields.problem();

    const OrderedJson* const suffix = fields.find("suffix");
    const bool fills = suffix && *suffix != "";
    if (is_raw || fills) {
        out["prompt"] = prompt;
        if (fills) out["suffix"] = *suffix;
        if (has_logprobs) out["logprobs"] = body.value("top_logprobs", OrderedJson(0));
        auto params = read_completion_params(out, limits);
        // A prompt with a suffix has no place for words of the system.
        if (params.ok() && !system.empty()) params->notes["dropped"].push_back("system");
        return named_as_asked(std::move(params), "prompt");
    }
    out["messages"] = OrderedJson::array();
    if (!system.empty()) out["messages"].push_back({{"role", "system"}, {"content", system}});
    out["messages"].push_back({{"role", "user"}, {"content", prompt}});
    copy(fields, "logprobs", out, "logprobs");
    copy(fields, "top_logprobs", out, "top_logprobs");
    return named_as_asked(read_chat_params(out, limits), "prompt");
}

std::int64_t nanoseconds(Duration time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

std::string now_in_words() {
    return ollama_time(std::chrono::system_clock::now().time_since_epoch());
}

// Answers a body without a prompt, which asks the hub to load the model. The model is always
// loaded.
std::optional<OrderedJson> answer_empty(const OrderedJson& body, bool is_chat) {
    const OrderedJson& words = member(body, is_chat ? "messages" : "prompt");
    const OrderedJson& suffix = member(body, "suffix");
    const bool is_empty = is_chat ? words.is_array() && words.empty()
                                  : (words.is_null() || words == "") &&
                                        (suffix.is_null() || suffix == "");
    const OrderedJson& model = member(body, "model");
    if (!is_empty || !model.is_string() || !member(body, "images").is_null()) return std::nullopt;

    OrderedJson out{{"model", model}, {"created_at", now_in_words()}};
    if (is_chat)
        out["message"] = {{"role", "assistant"}, {"content", ""}};
    else
        out["response"] = "";
    out["done"] = true;
    out["done_reason"] = "load";
    return out;
}

class OllamaReply : public ReplyWriter {
  public:
    OllamaReply(WriterInputs inputs, bool is_chat)
        : ReplyWriter(Dialect::ollama),
          model_(model_of(inputs)),
          tokenizer_(std::move(inputs.tokenizer)),
          is_chat_(is_chat),
          has_logprobs_(inputs.params.logprobs) {}

    OrderedJson whole(std::span<const AnswerChoice> choices, const AnswerTotals& totals) override {
        const AnswerChoice& choice = choices[0];
        OrderedJson out = line({choice.reasoning, choice.content}, choice.tokens);
        for (std::size_t i = 0; i < choice.calls.size(); ++i)
            out["message"]["tool_calls"].push_back(call_json(i, choice.calls[i]));
        add_end(out, choice, totals);
        return out;
    }

    Events begin(std::uint64_t) override { return {}; }

    Events say(std::size_t, ReasonedText text, std::span<const TokenText> tokens) override {
        return {{dump_json(line(std::move(text), tokens))}};
    }

    // Collects the pieces of a tool call. The call is sent in one line, because its arguments are a
    // JSON object.
    Events call(std::size_t, const CallPiece& piece, const std::string& id) override {
        if (id.empty()) {
            call_->arguments += piece.arguments;
            return {};
        }
        Events out = end_call();
        call_ = CalledFunction{id, piece.name, piece.arguments};
        return out;
    }

    Events end_choice(std::size_t, const AnswerChoice& choice,
                      const AnswerTotals* totals) override {
        Events out = end_call();
        OrderedJson last = line({}, {});
        add_end(last, choice, *totals);
        out.push_back({dump_json(last)});
        return out;
    }

    Events end(const AnswerTotals&) override { return {}; }

  private:
    // Returns the model's name as the client sent it.
    static std::string model_of(const WriterInputs& inputs) {
        const OrderedJson& model = member(inputs.body, "model");
        return model.is_string() ? model.get<std::string>() : inputs.header.model;
    }

    OrderedJson line(ReasonedText text, std::span<const TokenText> tokens) const {
        OrderedJson out{{"model", model_}, {"created_at", now_in_words()}};
        if (is_chat_) {
            OrderedJson& message = out["message"] = {{"role", "assistant"},
                                                     {"content", std::move(text.content)}};
            if (!text.reasoning.empty()) message["thinking"] = std::move(text.reasoning);
        } else {
            out["response"] = std::move(text.content);
            if (!text.reasoning.empty()) out["thinking"] = std::move(text.reasoning);
        }
        if (has_logprobs_ && !tokens.empty())
            out["logprobs"] = chat_logprobs_json(tokens, tokenizer_.get())["content"];
        out["done"] = false;
        return out;
    }

    static OrderedJson call_json(std::size_t index, const CalledFunction& call) {
        OrderedJson arguments = OrderedJson::parse(call.arguments, nullptr, false);
        if (!arguments.is_object()) arguments = OrderedJson::object();
        return {{"id", call.id},
                {"function",
                 {{"index", index}, {"name", call.name}, {"arguments", std::move(arguments)}}}};
    }

    Events end_call() {
        if (!call_) return {};
        OrderedJson out = line({}, {});
        out["message"]["tool_calls"].push_back(call_json(num_calls_++, *call_));
        call_.reset();
        return {{dump_json(out)}};
    }

    static void add_end(OrderedJson& out, const AnswerChoice& choice, const AnswerTotals& totals) {
        out["done"] = true;
        out["done_reason"] = choice.finish_reason == "length" ? "length" : "stop";
        out["total_duration"] = nanoseconds(totals.took);
        out["load_duration"] = nanoseconds(totals.stats.queued);
        out["prompt_eval_count"] = totals.usage.prompt_tokens;
        out["prompt_eval_duration"] = nanoseconds(totals.stats.prefill);
        out["eval_count"] = totals.usage.completion_tokens;
        out["eval_duration"] = nanoseconds(totals.stats.decode);
        if (!totals.notes.empty()) out["moex"] = totals.notes;
    }

    const std::string model_;
    const std::shared_ptr<const Tokenizer> tokenizer_;
    const bool is_chat_, has_logprobs_;
    std::optional<CalledFunction> call_;  // the tool call whose pieces are being collected
    std::size_t num_calls_ = 0;
};

template <bool is_chat>
std::unique_ptr<ReplyWriter> write(WriterInputs inputs) {
    return std::make_unique<OllamaReply>(std::move(inputs), is_chat);
}

template <bool is_chat>
std::optional<OrderedJson> answer_nothing(const OrderedJson& body) {
    return answer_empty(body, is_chat);
}

Checked<EmbeddingParams> read_embed(const OrderedJson& body, std::size_t vocab_size) {
    MOEX_OR_REFUSE(model, read_ollama_model(body));
    BodyFields fields(body);
    EmbeddingParams params;
    params.model = std::move(model);
    params.truncates = true;
    fields.boolean("truncate", params.truncates);
    if (fields.find("dimensions"))
        fields.unsupported("dimensions", "a row is as wide as the model's hidden state.");
    constexpr std::size_t inputs_max = 2048;
    params.inputs = read_text_inputs(fields, "input",
                                     {.count_max = inputs_max, .vocab_size = vocab_size});
    if (fields.problem()) return *fields.problem();
    return params;
}

OrderedJson write_embed(const Embeddings& embeddings) {
    return {{"model", embeddings.model},
            {"embeddings", embeddings.rows},
            {"total_duration", nanoseconds(embeddings.took)},
            {"load_duration", nanoseconds(embeddings.queued)},
            {"prompt_eval_count", embeddings.prompt_tokens}};
}

// Reads the older form: one text in `prompt`.
Checked<EmbeddingParams> read_one_embedding(const OrderedJson& body, std::size_t vocab_size) {
    OrderedJson newer = body;
    newer["input"] = member(body, "prompt");
    if (newer["input"].is_null()) newer["input"] = "";
    return read_embed(newer, vocab_size);
}

OrderedJson write_one_embedding(const Embeddings& embeddings) {
    return {{"embedding", embeddings.rows[0]}};
}

}  // namespace

const EmbeddingEndpoint ollama_one_embedding_endpoint{.read = read_one_embedding,
                                                      .write = write_one_embedding};
const EmbeddingEndpoint ollama_embedding_endpoint{.read = read_embed, .write = write_embed};
const CompletionEndpoint ollama_chat_endpoint{
    .read = read_chat, .write = write<true>, .answer_empty = answer_nothing<true>};
const CompletionEndpoint ollama_generate_endpoint{
    .read = read_generate, .write = write<false>, .answer_empty = answer_nothing<false>};

Checked<std::string> read_ollama_model(const OrderedJson& body) {
    const OrderedJson& given = member(body, "model");
    const OrderedJson& model = given.is_null() ? member(body, "name") : given;
    if (!model.is_string() || model == "")
        return Refusal{400, "model is required", "missing_required_parameter", "model"};
    return without_tag(model.get<std::string>());
}

std::string ollama_time(std::chrono::nanoseconds since_epoch) {
    constexpr std::int64_t second = 1'000'000'000;
    const std::time_t seconds = since_epoch.count() / second;
    std::tm parts{};
    gmtime_r(&seconds, &parts);
    char day[32], out[64];
    std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &parts);
    std::snprintf(out, sizeof out, "%s.%09lldZ", day,
                  static_cast<long long>(since_epoch.count() % second));
    return out;
}

}  // namespace moex
