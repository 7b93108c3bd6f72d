#include "hub/api/dialects/anthropic.h"

namespace moex {
namespace {

enum class Block { none, thinking, text, tool_use };

class AnthropicReply : public ReplyWriter {
  public:
    explicit AnthropicReply(WriterInputs inputs)
        : ReplyWriter(Dialect::anthropic),
          header_(std::move(inputs.header)) {}

    OrderedJson whole(std::span<const AnswerChoice> choices, const AnswerTotals& totals) override {
        const AnswerChoice& choice = choices[0];
        OrderedJson out = message();
        OrderedJson& content = out["content"];
        if (!choice.reasoning.empty()) {
            content.push_back(begun(Block::thinking));
            content.back()["thinking"] = choice.reasoning;
        }
        if (!choice.content.empty())
            content.push_back({{"type", "text"}, {"text", choice.content}});
        for (const CalledFunction& call : choice.calls) {
            content.push_back(begun(Block::tool_use, call.name, call.id));
            OrderedJson input = OrderedJson::parse(call.arguments, nullptr, false);
            if (input.is_object()) content.back()["input"] = std::move(input);
        }
        add_end(out, choice);
        out["usage"] = usage_json(totals.usage);
        if (!totals.notes.empty()) out["moex"] = totals.notes;
        return out;
    }

    Events begin(std::uint64_t prompt_tokens) override {
        OrderedJson first = message();
        first["usage"] = usage_json({.prompt_tokens = prompt_tokens});
        return {event_of({{"type", "message_start"}, {"message", std::move(first)}})};
    }

    Events say(std::size_t, ReasonedText text, std::span<const TokenText>) override {
        Events out;
        if (!text.reasoning.empty()) {
            open(Block::thinking, out);
            add_delta(out, {{"type", "thinking_delta"}, {"thinking", std::move(text.reasoning)}});
        }
        if (!text.content.empty()) {
            open(Block::text, out);
            add_delta(out, {{"type", "text_delta"}, {"text", std::move(text.content)}});
        }
        return out;
    }

    Events call(std::size_t, const CallPiece& piece, const std::string& id) override {
        Events out;
        if (!id.empty()) {
            close(out);
            open(Block::tool_use, out, piece.name, id);
        }
        if (!piece.arguments.empty())
            add_delta(out, {{"type", "input_json_delta"}, {"partial_json", piece.arguments}});
        return out;
    }

    // `totals` is never null here, since a reply in this dialect has only one choice.
    Events end_choice(std::size_t, const AnswerChoice& choice,
                      const AnswerTotals* totals) override {
        Events out;
        close(out);
        OrderedJson delta = OrderedJson::object();
        add_end(delta, choice);
        OrderedJson last{{"type", "message_delta"},
                         {"delta", std::move(delta)},
                         {"usage", usage_json(totals->usage)}};
        if (!totals->notes.empty()) last["moex"] = totals->notes;
        out.push_back(event_of(last));
        return out;
    }

    Events end(const AnswerTotals&) override { return {event_of({{"type", "message_stop"}})}; }

  private:
    static StreamEvent event_of(const OrderedJson& event) {
        return {dump_json(event), event["type"].get<std::string>()};
    }

    // input_tokens does not include prompt tokens that were computed for an earlier request.
    static OrderedJson usage_json(const Usage& usage) {
        return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
                {"cache_creation_input_tokens", 0},
                {"cache_read_input_tokens", usage.cached_tokens},
                {"output_tokens", usage.completion_tokens}};
    }

    OrderedJson message() const {
        return {{"id", header_.id},
                {"type", "message"},
                {"role", "assistant"},
                {"model", header_.model},
                {"content", OrderedJson::array()},
                {"stop_reason", nullptr},
                {"stop_sequence", nullptr}};
    }

    static void add_end(OrderedJson& out, const AnswerChoice& choice) {
        const std::string& reason = choice.finish_reason;
        out["stop_reason"] = reason == "length"       ? "max_tokens"
                             : reason == "tool_calls" ? "tool_use"
                             : !choice.stop.empty()   ? "stop_sequence"
                                                      : "end_turn";
        out["stop_sequence"] = choice.stop.empty() ? OrderedJson() : OrderedJson(choice.stop);
    }

    static OrderedJson begun(Block block, const std::string& name = {},
                             const std::string& id = {}) {
        if (block == Block::thinking)
            return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
        if (block == Block::text) return {{"type", "text"}, {"text", ""}};
        return {{"type", "tool_use"}, {"id", id}, {"name", name}, {"input", OrderedJson::object()}};
    }

    void open(Block block, Events& out, const std::string& name = {}, const std::string& id = {}) {
        if (open_ == block) return;
        close(out);
        open_ = block;
        out.push_back(event_of({{"type", "content_block_start"},
                                {"index", index_},
                                {"content_block", begun(block, name, id)}}));
    }

    void close(Events& out) {
        if (open_ == Block::none) return;
        open_ = Block::none;
        out.push_back(event_of({{"type", "content_block_stop"}, {"index", index_++}}));
    }

    void add_delta(Events& out, OrderedJson delta) const {
        out.push_back(event_of(
            {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}}));
    }

    const AnswerHeader header_;
    Block open_ = Block::none;
    std::size_t index_ = 0;  // index of the open content block, or of the next one
};

std::unique_ptr<ReplyWriter> write(WriterInputs inputs) {
    return std::make_unique<AnthropicReply>(std::move(inputs));
}

}  // namespace

const CompletionEndpoint anthropic_endpoint{
    .id_prefix = "msg_", .read = read_anthropic, .write = write};

}  // namespace moex
