// Reads the form of an answer, and refuses what the hub cannot do.
#include <algorithm>

#include "hub/api/request_parts.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

using Kind = AnswerForm::Kind;

// Reads the parts of a form that several dialects share, and remembers the first field that asks
// for a form.
class FormReader {
  public:
    FormReader(BodyFields& fields, AnswerForm& form) : fields_(fields), form_(form) {}

    void schema(const OrderedJson* given, const std::string& param) {
        if (!given || !begins(param)) return;
        OrderedJson schema = *given;
        if (schema.is_string()) {  // vLLM's clients also send the text of a schema
            auto parsed = parse_strict_json<OrderedJson>(schema.get_ref<const std::string&>(),
                                                         param, {.depth_max = 64});
            if (!parsed.ok()) return fields_.wrong(param, "a JSON schema", *given);
            schema = *std::move(parsed);
        }
        form_ = {.kind = Kind::json_schema, .schema = std::move(schema), .param = param};
    }

    void object(const OrderedJson* given, const std::string& param) {
        if (given && *given == true && begins(param))
            form_ = {.kind = Kind::json_object, .param = param};
    }

    void words(const OrderedJson* given, const std::string& param, Kind kind) {
        if (!given || *given == "" || !begins(param)) return;
        if (!given->is_string()) return fields_.wrong(param, "a string", *given);
        form_ = {.kind = kind, .grammar = given->get<std::string>(), .param = param};
    }

    void choice(const OrderedJson* given, const std::string& param) {
        constexpr std::size_t choices_max = 4096;
        if (!given || !begins(param)) return;
        const bool is_list = given->is_array() && !given->empty() && given->size() <= choices_max &&
                             std::all_of(given->begin(), given->end(), [](const OrderedJson& one) {
                                 return one.is_string() && one != "";
                             });
        if (!is_list)
            return fields_.wrong(param, text("1 to ", choices_max, " strings that are not empty"),
                                 *given);
        form_ = {.kind = Kind::choice, .schema = *given, .param = param};
    }

    // Reads an object with one of `json`, `regex`, `choice`, `grammar` and `json_object`.
    void structured(const char* name) {
        const OrderedJson* const given = fields_.find(name);
        if (!given) return;
        if (!given->is_object()) return fields_.wrong(name, "an object", *given);
        const auto inside = [&](const char* key) {
            const OrderedJson& value = member(*given, key);
            return value.is_null() ? nullptr : &value;
        };
        const auto param = [&](const char* key) { return text(name, '.', key); };
        schema(inside("json"), param("json"));
        words(inside("regex"), param("regex"), Kind::regex);
        choice(inside("choice"), param("choice"));
        words(inside("grammar"), param("grammar"), Kind::grammar);
        object(inside("json_object"), param("json_object"));
        if (inside("structural_tag"))
            fields_.unsupported(param("structural_tag"), "use 'tools' or another form.");
    }

    bool begins(const std::string& param) {
        if (form_.kind == Kind::free) return true;
        fields_.refuse(text("'", form_.param, "' and '", param, "' cannot both be given."),
                       "invalid_value", param);
        return false;
    }

  private:
    BodyFields& fields_;
    AnswerForm& form_;
};

void read_response_format(BodyFields& fields, FormReader& reader, AnswerForm& form) {
    const OrderedJson* format = fields.find("response_format");
    if (!format) return;
    const std::string wanted = "{\"type\": \"text\", \"json_object\" or \"json_schema\", ...}";
    const OrderedJson& type = member(*format, "type");
    if (type == "text" || !reader.begins("response_format")) return;

    if (type == "json_object") {
        form = {.kind = Kind::json_object, .param = "response_format"};
        const OrderedJson& schema = member(*format, "schema");
        if (schema.is_null()) return;
        form.kind = Kind::json_schema;
        form.schema = schema;
        form.param = "response_format.schema";
    } else if (type == "json_schema") {
        const OrderedJson& inside = member(*format, "json_schema");
        if (!inside.is_object() || !inside.contains("schema"))
            return fields.wrong("response_format.json_schema",
                                "an object {\"name\": ..., \"schema\": ...}", inside);
        form = {.kind = Kind::json_schema,
                .schema = inside["schema"],
                .param = "response_format.json_schema.schema"};
    } else {
        fields.wrong("response_format", wanted, *format);
    }
}

// Refuses the fields of other servers that constrain an answer in a way that the hub does not have.
void refuse_constraints(BodyFields& fields) {
    const auto refuse = [&](const char* name, const char* why) {
        const OrderedJson* const value = fields.find(name);
        const bool is_empty = !value || *value == false || *value == 0 || *value == "" ||
                              (value->is_structured() && value->empty());
        if (!is_empty) fields.unsupported(name, why);
    };
    for (const char* name : {"allowed_token_ids", "logits_processors", "structural_tag"})
        refuse(name, "use 'response_format', 'regex' or 'grammar'.");
    refuse("chat_template", "the checkpoint's own is used.");
    refuse("use_beam_search", "there is no beam search.");
    refuse("lora", "there are no adapters.");
    refuse("stop_regex", "use 'stop'.");
    for (const char* name : {"include_stop_str_in_output", "no_stop_trim"})
        refuse(name, "an answer ends before the stop string.");
    for (const char* name : {"n_indent", "t_max_predict_ms"}) refuse(name, "use 'stop'.");
    refuse("truncate_prompt_tokens", "a prompt that is too long is refused, not cut.");
}

// Refuses the fields of other servers that ask for a part of the answer that the hub does not have.
void refuse_parts(BodyFields& fields, const CompletionParams& params) {
    const auto refuse = [&](const char* name, const char* why) {
        const OrderedJson* const value = fields.find(name);
        const bool is_asked = value && *value != false && *value != 0 &&
                              !(value->is_array() && value->empty());
        if (is_asked) fields.unsupported(name, why);
    };
    if (params.is_chat) {
        refuse("echo", "a chat's prompt is not echoed; /v1/completions does so.");
        refuse("n_probs", "use 'logprobs' and 'top_logprobs'.");
    }
    for (const char* name : {"return_tokens", "return_token_ids", "return_tokens_as_token_ids"})
        refuse(name, "answers have no token ids; POST /tokenize gives those of a text.");
    refuse("response_fields", "answers have all their fields.");
    refuse("post_sampling_probs", "use 'logprobs': they are those before sampling.");
}

}  // namespace

void read_form(BodyFields& fields, CompletionParams& out) {
    FormReader reader(fields, out.form);
    reader.schema(fields.find("json_schema"), "json_schema");
    reader.words(fields.find("grammar"), "grammar", Kind::grammar);
    reader.words(fields.find("ebnf"), "ebnf", Kind::grammar);
    reader.words(fields.find("regex"), "regex", Kind::regex);
    reader.schema(fields.find("guided_json"), "guided_json");
    reader.words(fields.find("guided_regex"), "guided_regex", Kind::regex);
    reader.choice(fields.find("guided_choice"), "guided_choice");
    reader.words(fields.find("guided_grammar"), "guided_grammar", Kind::grammar);
    for (const char* name : {"structured_outputs", "guided_decoding"}) reader.structured(name);
    read_response_format(fields, reader, out.form);

    // These fields belong to other routes, and ask for a form there.
    if (const OrderedJson* format = fields.find("format"); format && *format != "")
        fields.unsupported("format", "use 'response_format'.");
    if (const OrderedJson* config = fields.find("text")) {
        const OrderedJson& format = member(*config, "format");
        if (!format.is_null() && member(format, "type") != "text")
            fields.unsupported("text.format", "use 'response_format'.");
    }
}

void refuse_unsupported(BodyFields& fields, const CompletionParams& params) {
    const auto non_empty = [&](const char* name, const char* why) {
        const OrderedJson* value = fields.find(name);
        if (value && !((value->is_array() || value->is_object()) && value->empty()))
            fields.unsupported(name, why);
    };

    if (params.is_chat) {
        const OrderedJson* const call = fields.find("function_call");
        if (!call || *call != "none") non_empty("functions", "use 'tools'.");
        if (call && *call != "none" && *call != "auto")
            fields.unsupported("function_call", "use 'tool_choice'.");

        if (const OrderedJson* modalities = fields.find("modalities");
            modalities && *modalities != OrderedJson::array({"text"}))
            fields.unsupported("modalities", "only [\"text\"] is.");

        non_empty("audio", "text only.");
        non_empty("prediction", "predicted outputs are not implemented.");
        non_empty("web_search_options", "there is no web search.");
    } else {
        if (const OrderedJson* best_of = fields.find("best_of"); best_of && *best_of != 1)
            fields.unsupported("best_of", "only 1 is.");
    }
    refuse_constraints(fields);
    refuse_parts(fields, params);
    refuse_stateful(fields);
}

void note_dropped(const BodyFields& fields, CompletionParams& out) {
    for (const auto& [name, neutral] : advice_fields) {
        const OrderedJson* const value = fields.find(name);
        const bool is_neutral = !value || (value->is_number() && *value == neutral) ||
                                (value->is_boolean() && *value == (neutral != 0));
        if (!is_neutral) out.notes["dropped"].push_back(name);
    }
}

Refusal in_clients_words(Refusal refusal,
                         std::span<const std::pair<std::string_view, std::string_view>> names) {
    for (const auto& [ours, theirs] : names) {
        if (refusal.param != ours) continue;
        const std::string quoted = text('\'', ours, '\'');
        if (const std::size_t at = refusal.message.find(quoted); at != std::string::npos)
            refusal.message.replace(at, quoted.size(), text('\'', theirs, '\''));
        refusal.param = theirs;
        break;
    }
    return refusal;
}

void refuse_stateful(BodyFields& fields) {
    for (const char* name : {"thread", "thread_id", "previous_response_id", "previous_message_id",
                             "conversation", "conversation_id"}) {
        const OrderedJson* const value = fields.find(name);
        if (value && *value != "" && *value != false)
            fields.unsupported(name,
                               "nothing is stored here: send the earlier turns with each request.");
    }
}

}  // namespace moex
