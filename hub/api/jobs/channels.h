// Answers that come in channels, as GPT-OSS writes them: messages, each with a header that names
// its channel, "analysis" for thoughts, "final" and "commentary" for words, and, of a call, its
// recipient: functions.NAME, in the channel's header or in front of it.
//   <|channel|>analysis<|message|>THOUGHTS<|end|><|start|>assistant<|channel|>commentary
//   to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>
// An answer has one call at most, and it ends there.
// Source: OpenAI, "Harmony response format"; GPT-OSS's chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/vocabulary.h"
#include "hub/api/jobs/tool_calls.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// Where an answer begins: in front of its first header, or inside a message.
enum class ChannelBegin { header, thoughts, words };
// What a rendered prompt ends in; `tail`: its last tokens as text, special ones too.
ChannelBegin channel_begin(std::string_view tail);

// Ends of messages behind which nothing is generated, where they are tokens.
std::vector<TokenId> channel_stops(const Tokenizer& tokenizer);

// Answers that call tools as `choice` says, behind their thoughts and words. `said`: what an answer
// without a call is; none: any text.
Result<NodeId> add_channel_answer(std::vector<GrammarNode>& nodes, const ToolChoice& choice,
                                  ChannelBegin begin, std::optional<NodeId> said,
                                  const Vocabulary& vocabulary);

struct ChannelText {
    std::string reasoning, content;
    std::vector<CallPiece> calls;
};

// Takes an answer apart as it comes. The same parts come out wherever the text was cut. Text
// without any header is content.
class ChannelSplitter {
  public:
    // `calls`: tools may be called; else a call is no more than words.
    ChannelSplitter(ChannelBegin begin, bool calls);
    ChannelText push(std::string_view piece);
    ChannelText finish();

    bool in_reasoning() const { return part_ == Part::thoughts; }
    bool undecided() const { return part_ == Part::header; }  // a token may belong to either
    std::uint32_t num_calls() const { return num_calls_; }

  private:
    enum class Part { header, thoughts, words, arguments };
    bool step(ChannelText& out);
    bool read_header(ChannelText& out);
    void say(ChannelText& out, std::string text);

    Part part_;
    bool calls_;
    std::string held_;
    std::uint32_t num_calls_ = 0;
};

}  // namespace moex
