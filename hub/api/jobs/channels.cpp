#include "hub/api/jobs/channels.h"

#include <algorithm>
#include <array>
#include <utility>

#include "hub/api/grammar/json_schema.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Kind = GrammarNode::Kind;
using Nodes = std::vector<GrammarNode>;

constexpr std::string_view start_mark = "<|start|>", channel_mark = "<|channel|>",
                           message_mark = "<|message|>", end_mark = "<|end|>",
                           constrain_mark = "<|constrain|>", call_mark = "<|call|>",
                           return_mark = "<|return|>";
constexpr std::string_view recipient_words = "to=functions.", channel_blanks = " \t\r\n";
constexpr std::uint32_t preludes_max = 8;  // most messages of an answer before its last message

std::size_t begun_mark_bytes(std::string_view text, std::string_view mark) {
    for (std::size_t length = std::min(text.size(), mark.size()); length > 0; --length)
        if (text.ends_with(mark.substr(0, length))) return length;
    return 0;
}

// Returns the name that begins at offset `begin` of a message's header; it extends up to a blank or
// the next mark.
std::string_view name_at(std::string_view header, std::size_t begin) {
    return header.substr(begin, header.find_first_of(" \t\r\n<", begin) - begin);
}

// Returns true if the beginning of an answer may still become a header.
bool may_be_header(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(channel_blanks), text.size()));
    for (const std::string_view begin : {start_mark, channel_mark, recipient_words})
        if (begin.starts_with(text) || text.starts_with(begin)) return true;
    return false;
}

// Adds the nodes for an answer in channels to a grammar.
class Writer {
  public:
    Writer(Nodes& nodes, const Vocabulary& vocabulary) : nodes_(nodes), vocabulary_(vocabulary) {}

    NodeId words(std::string text) {
        GrammarNode node{.kind = Kind::words};
        node.words.add(std::move(text), 0, 0);
        return add(std::move(node));
    }
    NodeId mark(std::string_view text) {
        if (const auto token = token_of(text)) return add({.kind = Kind::token, .token = *token});
        return words(std::string(text));
    }
    NodeId sequence(std::vector<NodeId> parts) {
        return add({.kind = Kind::sequence, .children = std::move(parts)});
    }
    NodeId choice(std::vector<NodeId> parts) {
        return add({.kind = Kind::choice, .children = std::move(parts)});
    }
    NodeId repeat(NodeId part, std::uint32_t max) {
        return add({.kind = Kind::repeat, .max = max, .children = {part}});
    }
    // Returns a node that accepts any text up to the end of the message.
    NodeId free_text() {
        return add({.kind = Kind::text,
                    .texts = text_without(token_of(end_mark) ? std::string_view() : end_mark)});
    }
    // Returns a node that accepts any text, the mark that ends its message, and the opening of the
    // next message.
    NodeId text_and_next() {
        const NodeId next = sequence({mark(start_mark), words("assistant")});
        if (token_of(end_mark)) return sequence({free_text(), mark(end_mark), next});
        return sequence({add({.kind = Kind::text, .texts = text_until(end_mark)}), next});
    }
    NodeId header(std::string_view channel) {
        return sequence({mark(channel_mark), words(std::string(channel)), mark(message_mark)});
    }
    NodeId call(const std::string& name, NodeId arguments) {
        const std::string recipient = text(recipient_words, name);
        const NodeId in_channel = sequence({mark(channel_mark),
                                            words(text("commentary ", recipient, " ")),
                                            mark(constrain_mark), words("json")});
        const NodeId in_front = sequence(
            {words(" " + recipient), mark(channel_mark), words("commentary json")});
        return sequence({choice({in_channel, in_front}), mark(message_mark), arguments});
    }

  private:
    NodeId add(GrammarNode node) {
        nodes_.push_back(std::move(node));
        return static_cast<NodeId>(nodes_.size() - 1);
    }
    std::optional<TokenId> token_of(std::string_view text) const {
        for (const TokenId id : vocabulary_.special())
            if (vocabulary_.bytes(id) == text) return id;
        return std::nullopt;
    }

    Nodes& nodes_;
    const Vocabulary& vocabulary_;
};

}  // namespace

ChannelBegin channel_begin(std::string_view tail) {
    const std::size_t last = tail.find_last_not_of(channel_blanks);
    tail = tail.substr(0, last == std::string_view::npos ? 0 : last + 1);
    if (!tail.ends_with(message_mark)) return ChannelBegin::header;

    const std::size_t channel = tail.rfind(channel_mark);
    const bool thinks = channel != std::string_view::npos &&
                        name_at(tail, channel + channel_mark.size()) == "analysis";
    return thinks ? ChannelBegin::thoughts : ChannelBegin::words;
}

std::vector<TokenId> channel_stops(const Tokenizer& tokenizer) {
    std::vector<TokenId> stops;
    for (const std::string_view mark : {return_mark, call_mark})
        if (const auto id = tokenizer.token_id(mark); id && tokenizer.is_added(*id))
            stops.push_back(*id);
    return stops;
}

Result<NodeId> add_channel_answer(Nodes& nodes, const ToolChoice& choice, ChannelBegin begin,
                                  std::optional<NodeId> said, const Vocabulary& vocabulary,
                                  WeakenedTools& weakened) {
    Writer write(nodes, vocabulary);
    const bool must_call = choice.mode == ToolChoice::Mode::required;
    std::vector<NodeId> ends;
    if (!must_call)
        ends.push_back(write.sequence({write.header("final"), said ? *said : write.free_text()}));
    for (const Tool& tool : choice.tools) {
        if (choice.mode == ToolChoice::Mode::none) break;
        if (!choice.name.empty() && tool.name != choice.name) continue;
        MOEX_ASSIGN(arguments, add_arguments(nodes, tool, CallSyntax{}, weakened));
        ends.push_back(write.call(tool.name, arguments));
    }

    // Messages with thoughts may precede the answer. Words may precede a call only if the request
    // asks for no form of the answer.
    const auto message = [&](std::string_view channel) {
        return write.sequence({write.header(channel), write.text_and_next()});
    };
    std::vector<NodeId> preludes{message("analysis")};
    if (!must_call && !said) preludes.push_back(message("commentary"));
    const NodeId prelude = write.repeat(write.choice(std::move(preludes)), preludes_max);
    const NodeId messages = write.sequence({prelude, write.choice(std::move(ends))});

    if (begin == ChannelBegin::header) return messages;
    const NodeId further = write.sequence({write.text_and_next(), messages});
    if (begin == ChannelBegin::thoughts || must_call) return further;
    if (said) return *said;
    return write.choice({write.free_text(), further});
}

ChannelSplitter::ChannelSplitter(ChannelBegin begin, bool calls)
    : part_(begin == ChannelBegin::header     ? Part::header
            : begin == ChannelBegin::thoughts ? Part::thoughts
                                              : Part::words),
      calls_(calls) {}

// Reads the header of a message; returns false if the header is not complete yet.
bool ChannelSplitter::read_header(ChannelText& out) {
    const std::size_t end = held_.find(message_mark);
    if (end == std::string::npos) {
        if (held_.empty() || may_be_header(held_)) return false;
        part_ = Part::words;
        return true;
    }

    const std::string header = held_.substr(0, end);
    held_.erase(0, end + message_mark.size());
    const std::size_t recipient = header.find(recipient_words);
    const std::size_t channel = header.find(channel_mark);
    if (calls_ && recipient != std::string::npos) {
        const std::size_t name = recipient + recipient_words.size();
        out.calls.push_back({.index = num_calls_++, .name = std::string(name_at(header, name))});
        part_ = Part::arguments;
    } else {
        const bool thinks = channel != std::string::npos &&
                            name_at(header, channel + channel_mark.size()) == "analysis";
        part_ = thinks ? Part::thoughts : Part::words;
    }
    return true;
}

void ChannelSplitter::say(ChannelText& out, std::string text) {
    if (text.empty()) return;
    switch (part_) {
        case Part::thoughts: out.reasoning += text; break;
        case Part::arguments:
            out.calls.push_back({.index = num_calls_ - 1, .arguments = std::move(text)});
            break;
        default: out.content += text; break;
    }
}

bool ChannelSplitter::step(ChannelText& out) {
    if (part_ == Part::header) return read_header(out);

    // Find the first mark, which ends the message. Hold back a mark that may be forming.
    std::size_t first = std::string::npos, kept = 0, mark_bytes = 0;
    for (const std::string_view mark :
         {end_mark, call_mark, return_mark, start_mark, channel_mark}) {
        const std::size_t found = held_.find(mark);
        const bool is_end = mark == end_mark || mark == call_mark || mark == return_mark;
        kept = std::max(kept, begun_mark_bytes(held_, mark));
        if (found >= first) continue;
        first = found;
        mark_bytes = is_end ? mark.size() : 0;  // any other mark is kept: it opens the next header
    }

    const bool ends = first != std::string::npos;
    const std::size_t said = ends ? first : held_.size() - kept;
    say(out, held_.substr(0, said));
    held_.erase(0, ends ? said + mark_bytes : said);
    if (ends) part_ = Part::header;
    return ends;
}

ChannelText ChannelSplitter::push(std::string_view piece) {
    held_ += piece;
    ChannelText out;
    while (step(out)) {}
    return out;
}

ChannelText ChannelSplitter::finish() {
    ChannelText out;
    std::string rest = std::exchange(held_, {});
    // Drop the header of a message if the answer ended inside it.
    const bool is_header = part_ == Part::header && rest.find("<|") != std::string::npos;
    if (!is_header) say(out, std::move(rest));
    return out;
}

}  // namespace moex
