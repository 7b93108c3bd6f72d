#include "hub/api/openai/openai_reply.h"

#include <utility>

#include "hub/api/openai/openai_response.h"

namespace moex {
namespace {

class OpenAiReply : public ReplyWriter {
  public:
    explicit OpenAiReply(WriterInputs inputs)
        : ReplyWriter(Dialect::openai),
          header_(std::move(inputs.header)),
          tokenizer_(std::move(inputs.tokenizer)),
          num_choices_(inputs.num_choices),
          is_chat_(inputs.params.is_chat),
          includes_usage_(inputs.params.include_usage),
          has_logprobs_(inputs.params.logprobs),
          echoes_scores_(inputs.params.echo && inputs.params.logprobs),
          scores_prompts_(inputs.params.prompt_logprobs.has_value()) {}

    OrderedJson whole(std::span<const AnswerChoice> choices, const AnswerTotals& totals) override {
        OrderedJson body = answer_object(header_, is_chat_, false);
        for (const AnswerChoice& choice : choices)
            body["choices"].push_back(whole_choice(body["choices"].size(), choice));
        // The first choice is enough, since all have the same prompt.
        if (scores_prompts_ && is_chat_)
            body["prompt_logprobs"] = prompt_logprobs_json(choices.front().prompt_scores,
                                                           tokenizer_.get());
        add_totals(body, totals);
        return body;
    }

    Events begin(std::uint64_t) override {
        Events out;
        if (!is_chat_) return out;
        for (std::size_t i = 0; i < num_choices_; ++i)
            out.push_back(
                event_of(chunk(i, {{"role", "assistant"}, {"content", nullptr}}, nullptr)));
        return out;
    }

    Events progress(std::size_t index, const PromptProgress& progress) override {
        OrderedJson out = chunk(index, is_chat_ ? OrderedJson::object() : OrderedJson(""), nullptr);
        out["prompt_progress"] = progress_json(progress);
        return {event_of(out)};
    }

    void time(const GenerationStats& stats, const Usage& usage) override {
        timings_ = timings_json(stats, usage);
    }

    Events say(std::size_t index, ReasonedText text, std::span<const TokenText> tokens) override {
        const OrderedJson logprobs = has_logprobs_ ? logprobs_json(tokens) : OrderedJson();
        OrderedJson out = chunk(index, payload(std::move(text)), logprobs);
        if (!timings_.is_null()) out["timings"] = std::exchange(timings_, nullptr);
        return {event_of(out)};
    }

    Events call(std::size_t index, const CallPiece& piece, const std::string& id) override {
        OrderedJson delta{{"index", piece.index}};
        OrderedJson function = OrderedJson::object();
        if (!id.empty()) {
            delta.update({{"id", id}, {"type", "function"}});
            function["name"] = piece.name;
        }
        function["arguments"] = piece.arguments;
        delta["function"] = std::move(function);
        return {event_of(chunk(index, {{"tool_calls", OrderedJson::array({delta})}}, nullptr))};
    }

    Events end_choice(std::size_t index, const AnswerChoice& choice,
                      const AnswerTotals* totals) override {
        OrderedJson last = chunk(index, is_chat_ ? OrderedJson::object() : OrderedJson(""), nullptr,
                                 choice.finish_reason);
        if (totals && !includes_usage_) {
            last["timings"] = timings_json(totals->stats, totals->usage);
            last["moex"] = provenance_json(*totals);
        }
        return {event_of(last)};
    }

    Events end(const AnswerTotals& totals) override {
        Events out;
        if (includes_usage_) {
            OrderedJson last = answer_object(header_, is_chat_, true);
            add_totals(last, totals);
            out.push_back(event_of(last));
        }
        out.push_back({"[DONE]"});
        return out;
    }

  private:
    static StreamEvent event_of(const OrderedJson& chunk) { return {dump_json(chunk)}; }

    static void add_totals(OrderedJson& body, const AnswerTotals& totals) {
        body["usage"] = usage_json(totals.usage);
        body["timings"] = timings_json(totals.stats, totals.usage);
        body["moex"] = provenance_json(totals);
    }

    OrderedJson whole_choice(std::size_t index, const AnswerChoice& choice) const {
        OrderedJson out{{"index", index}};
        if (is_chat_)
            out["message"] = message_of(choice);
        else
            out["text"] = choice.content;

        if (echoes_scores_)
            out["logprobs"] = echo_logprobs_json(choice.prompt_tokens, choice.tokens,
                                                 tokenizer_.get());
        else
            out["logprobs"] = has_logprobs_ ? logprobs_json(choice.tokens) : OrderedJson();
        out["finish_reason"] = choice.finish_reason;
        if (scores_prompts_ && !is_chat_)
            out["prompt_logprobs"] = prompt_logprobs_json(choice.prompt_scores, tokenizer_.get());
        return out;
    }

    // Thoughts have two names: DeepSeek's, and that of OpenRouter and of newer servers.
    static void add_reasoning(OrderedJson& message, const std::string& reasoning) {
        message["reasoning_content"] = reasoning;
        message["reasoning"] = reasoning;
    }

    static OrderedJson message_of(const AnswerChoice& choice) {
        OrderedJson message{
            {"role", "assistant"}, {"content", choice.content}, {"refusal", nullptr}};
        if (!choice.reasoning.empty()) add_reasoning(message, choice.reasoning);
        if (choice.calls.empty()) return message;

        if (choice.content.empty()) message["content"] = nullptr;
        for (const CalledFunction& call : choice.calls)
            message["tool_calls"].push_back(
                {{"id", call.id},
                 {"type", "function"},
                 {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
        return message;
    }

    OrderedJson payload(ReasonedText text) const {
        if (!is_chat_) return text.content;
        OrderedJson delta = OrderedJson::object();
        if (!text.reasoning.empty()) add_reasoning(delta, text.reasoning);
        if (!text.content.empty() || delta.empty()) delta["content"] = std::move(text.content);
        return delta;
    }

    OrderedJson chunk(std::size_t index, OrderedJson payload, OrderedJson logprobs,
                      const std::string& finish_reason = {}) const {
        OrderedJson out = answer_object(header_, is_chat_, true);
        out["choices"].push_back(
            {{"index", index},
             {is_chat_ ? "delta" : "text", std::move(payload)},
             {"logprobs", std::move(logprobs)},
             {"finish_reason",
              finish_reason.empty() ? OrderedJson() : OrderedJson(finish_reason)}});
        if (includes_usage_) out["usage"] = nullptr;
        return out;
    }

    OrderedJson logprobs_json(std::span<const TokenText> tokens) const {
        return is_chat_ ? chat_logprobs_json(tokens, tokenizer_.get())
                        : legacy_logprobs_json(tokens, tokenizer_.get());
    }

    const AnswerHeader header_;
    const std::shared_ptr<const Tokenizer> tokenizer_;
    const std::size_t num_choices_;
    const bool is_chat_, includes_usage_, has_logprobs_, echoes_scores_, scores_prompts_;
    OrderedJson timings_;  // of the next piece of text; null: none
};

std::unique_ptr<ReplyWriter> write_openai(WriterInputs inputs) {
    return std::make_unique<OpenAiReply>(std::move(inputs));
}

}  // namespace

const CompletionEndpoint openai_chat_endpoint{
    .id_prefix = "chatcmpl-", .read = read_chat_params, .write = write_openai};
const CompletionEndpoint openai_text_endpoint{
    .id_prefix = "cmpl-", .read = read_completion_params, .write = write_openai};

}  // namespace moex
