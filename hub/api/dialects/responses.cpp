#include "hub/api/dialects/responses.h"

#include "hub/api/openai/openai_response.h"

namespace moex {
namespace {

enum class Kind { none, reasoning, message, call };

// An item of the response's output while its text is still growing.
struct Item {
    Kind kind = Kind::none;
    std::string id, words;  // `words`: the text of the item, or the arguments of a call
    std::string name = {}, call_id = {};
    OrderedJson logprobs = OrderedJson::array();
};

OrderedJson part_json(const Item& item) {
    if (item.kind == Kind::reasoning) return {{"type", "reasoning_text"}, {"text", item.words}};
    return {{"type", "output_text"},
            {"text", item.words},
            {"annotations", OrderedJson::array()},
            {"logprobs", item.logprobs}};
}

// Returns an output item as JSON. `status` is in_progress, completed or incomplete. An item in
// progress has no content part yet.
OrderedJson item_json(const Item& item, const char* status) {
    const bool is_begun = std::string_view(status) == "in_progress";
    const auto parts = [&] {
        return is_begun ? OrderedJson::array() : OrderedJson::array({part_json(item)});
    };
    if (item.kind == Kind::reasoning)
        return {{"id", item.id},
                {"type", "reasoning"},
                {"summary", OrderedJson::array()},
                {"content", parts()},
                {"status", status}};
    if (item.kind == Kind::message)
        return {{"id", item.id},
                {"type", "message"},
                {"role", "assistant"},
                {"content", parts()},
                {"status", status}};
    return {{"id", item.id},     {"type", "function_call"}, {"call_id", item.call_id},
            {"name", item.name}, {"arguments", item.words}, {"status", status}};
}

class ResponsesReply : public ReplyWriter {
  public:
    explicit ResponsesReply(WriterInputs inputs)
        : ReplyWriter(Dialect::responses),
          header_(std::move(inputs.header)),
          tokenizer_(std::move(inputs.tokenizer)),
          has_logprobs_(inputs.params.logprobs),
          echoed_(echo_of(inputs)) {}

    OrderedJson whole(std::span<const AnswerChoice> choices, const AnswerTotals& totals) override {
        // Build the same output items as a stream does, and drop the events.
        const AnswerChoice& choice = choices[0];
        if (!choice.reasoning.empty()) say(0, {choice.reasoning, {}}, {});
        if (!choice.content.empty()) say(0, {{}, choice.content}, choice.tokens);
        for (const CalledFunction& call : choice.calls)
            ResponsesReply::call(0, {.name = call.name, .arguments = call.arguments}, call.id);
        end_choice(0, choice, &totals);
        return response(status_of(choice), &totals);
    }

    Events begin(std::uint64_t) override {
        Events out;
        add(out, "response.created", {{"response", response("in_progress", nullptr)}});
        add(out, "response.in_progress", {{"response", response("in_progress", nullptr)}});
        return out;
    }

    Events progress(std::size_t, const PromptProgress& progress) override {
        Events out;
        add(out, "response.in_progress",
            {{"response", response("in_progress", nullptr)},
             {"prompt_progress", progress_json(progress)}});
        return out;
    }

    void time(const GenerationStats& stats, const Usage& usage) override {
        timings_ = timings_json(stats, usage);
    }

    Events say(std::size_t, ReasonedText text, std::span<const TokenText> tokens) override {
        Events out;
        if (!text.reasoning.empty()) {
            open(out, {.kind = Kind::reasoning, .id = item_id("rs_")});
            add_delta(out, "response.reasoning_text.delta", text.reasoning);
        }
        if (text.content.empty() && (tokens.empty() || open_.kind != Kind::message)) return out;
        open(out, {.kind = Kind::message, .id = item_id("msg_")});
        OrderedJson logprobs = OrderedJson::array();
        if (has_logprobs_) logprobs = chat_logprobs_json(tokens, tokenizer_.get())["content"];
        open_.logprobs.insert(open_.logprobs.end(), logprobs.begin(), logprobs.end());
        add_delta(out, "response.output_text.delta", text.content, &logprobs);
        return out;
    }

    Events call(std::size_t, const CallPiece& piece, const std::string& id) override {
        Events out;
        if (!id.empty()) {
            close(out, "completed");
            open(out, {.kind = Kind::call, .id = "fc_" + id, .name = piece.name, .call_id = id});
        }
        if (!piece.arguments.empty())
            add_delta(out, "response.function_call_arguments.delta", piece.arguments);
        return out;
    }

    Events end_choice(std::size_t, const AnswerChoice& choice, const AnswerTotals*) override {
        Events out;
        status_ = status_of(choice);
        close(out, status_);
        return out;
    }

    Events end(const AnswerTotals& totals) override {
        Events out;
        add(out, text("response.", status_),
            {{"response", response(status_, &totals)},
             {"timings", timings_json(totals.stats, totals.usage)}});
        return out;
    }

    Events fail(const Refusal& refusal) override {
        Events out;
        OrderedJson failed = response("failed", nullptr);
        failed["error"] = {{"code", refusal.code.empty() ? "server_error" : refusal.code},
                           {"message", refusal.message}};
        add(out, "response.failed", {{"response", std::move(failed)}});
        return out;
    }

  private:
    static const char* status_of(const AnswerChoice& choice) {
        return choice.finish_reason == "length" ? "incomplete" : "completed";
    }

    static OrderedJson echo_of(const WriterInputs& inputs) {
        const auto asked = [&](const char* name, const OrderedJson& otherwise) {
            const OrderedJson& value = member(inputs.body, name);
            return value.is_null() ? otherwise : value;
        };
        return {{"instructions", asked("instructions", nullptr)},
                {"max_output_tokens", asked("max_output_tokens", nullptr)},
                {"metadata", asked("metadata", OrderedJson::object())},
                {"parallel_tool_calls", inputs.params.calls.parallel},
                {"previous_response_id", nullptr},
                {"store", false},
                {"temperature", inputs.params.sampling.temperature},
                {"text", asked("text", {{"format", {{"type", "text"}}}})},
                {"tool_choice", asked("tool_choice", "auto")},
                {"tools", asked("tools", OrderedJson::array())},
                {"top_p", inputs.params.sampling.top_p},
                {"truncation", "disabled"}};
    }

    static OrderedJson usage_json(const Usage& usage) {
        return {
            {"input_tokens", usage.prompt_tokens},
            {"input_tokens_details",
             {{"cached_tokens", usage.cached_tokens},
              {"cached_tokens_disk", usage.cached_tokens_disk}}},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens.value_or(0)}}},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
    }

    OrderedJson response(const char* status, const AnswerTotals* totals) const {
        const bool is_cut = std::string_view(status) == "incomplete";
        OrderedJson out{{"id", header_.id},
                        {"object", "response"},
                        {"created_at", header_.created_s},
                        {"status", status},
                        {"error", nullptr},
                        {"incomplete_details",
                         is_cut ? OrderedJson{{"reason", "max_output_tokens"}} : OrderedJson()},
                        {"model", header_.model},
                        {"output", output_}};
        out.update(echoed_);
        out["usage"] = totals ? usage_json(totals->usage) : OrderedJson();
        if (totals && !totals->notes.empty()) out["moex"] = totals->notes;
        return out;
    }

    std::string item_id(const char* prefix) const {
        return text(prefix, header_.id.substr(header_.id.find('_') + 1), output_.size());
    }

    void add(Events& out, const std::string& type, const OrderedJson& fields) {
        OrderedJson event{{"type", type}, {"sequence_number", num_events_++}};
        event.update(fields);
        out.push_back({dump_json(event), type});
    }

    // Adds an event about the output item that is open.
    void add_about(Events& out, const std::string& type, const OrderedJson& fields) {
        OrderedJson about{{"item_id", open_.id}, {"output_index", output_.size()}};
        if (open_.kind != Kind::call) about["content_index"] = 0;
        about.update(fields);
        add(out, type, about);
    }

    void add_delta(Events& out, const std::string& type, const std::string& words,
                   const OrderedJson* logprobs = nullptr) {
        open_.words += words;
        OrderedJson fields{{"delta", words}};
        if (logprobs) fields["logprobs"] = *logprobs;
        if (!timings_.is_null()) fields["timings"] = std::exchange(timings_, nullptr);
        add_about(out, type, fields);
    }

    void open(Events& out, Item item) {
        if (open_.kind == item.kind) return;
        close(out, "completed");
        open_ = std::move(item);
        add(out, "response.output_item.added",
            {{"output_index", output_.size()}, {"item", item_json(open_, "in_progress")}});
        if (open_.kind != Kind::call)
            add_about(out, "response.content_part.added", {{"part", part_json(open_)}});
    }

    void close(Events& out, const char* status) {
        if (open_.kind == Kind::none) return;
        if (open_.kind == Kind::call) {
            add_about(out, "response.function_call_arguments.done",
                      {{"name", open_.name}, {"arguments", open_.words}});
        } else if (open_.kind == Kind::reasoning) {
            add_about(out, "response.reasoning_text.done", {{"text", open_.words}});
        } else {
            add_about(out, "response.output_text.done",
                      {{"text", open_.words}, {"logprobs", open_.logprobs}});
        }
        if (open_.kind != Kind::call)
            add_about(out, "response.content_part.done", {{"part", part_json(open_)}});

        OrderedJson item = item_json(open_, status);
        add(out, "response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
        output_.push_back(std::move(item));
        open_ = {};
    }

    const AnswerHeader header_;
    const std::shared_ptr<const Tokenizer> tokenizer_;
    const bool has_logprobs_;
    const OrderedJson echoed_;
    OrderedJson output_ = OrderedJson::array();  // complete items
    Item open_;
    const char* status_ = "completed";
    std::uint64_t num_events_ = 0;
    OrderedJson timings_;  // of the next piece of text; null: none
};

std::unique_ptr<ReplyWriter> write(WriterInputs inputs) {
    return std::make_unique<ResponsesReply>(std::move(inputs));
}

}  // namespace

const CompletionEndpoint responses_endpoint{
    .id_prefix = "resp_", .read = read_responses, .write = write};

}  // namespace moex
